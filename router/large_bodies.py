"""Thread that unpacks and parses large bodies, one at a time, outside of the event loop."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from router.openai.large_json import is_large

_LONG_BYTES = 4 * 1024 * 1024  # to go through a body that is no longer some ten times takes 20 ms
# One alone: several would take turns with one another before the event loop has its own, and each keeps memory of its own.
_READER = ThreadPoolExecutor(1, thread_name_prefix="large-bodies")

Made = TypeVar("Made")


def takes_long(body: bytes) -> bool:
    """Whether what is made of a body is made in a thread."""
    # A form, which begins with its boundary, has no commas that would have to be counted.
    return len(body) > _LONG_BYTES or (not body.startswith(b"--") and is_large(body))


async def aside(body: bytes, work: Callable[[], Made]) -> Made:
    """Return what is made of a body, in a thread where it is large."""
    return await in_thread(work) if takes_long(body) else work()


async def in_thread(work: Callable[[], Made]) -> Made:
    """Return what is made, in the thread."""
    return await asyncio.get_running_loop().run_in_executor(_READER, work)
