"""Thread that unpacks and parses large bodies, one at a time, outside of the event loop."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from router.openai.large_json import is_large

_LONG_BYTES = 4 * 1024 * 1024  # scanning a body of this size some ten times takes 20 ms
# One thread only: several would take turns before the event loop gets its own, and each keeps memory of its own.
_READER = ThreadPoolExecutor(1, thread_name_prefix="large-bodies")

Made = TypeVar("Made")


def is_large_body(body: bytes) -> bool:
    """Return whether a body is large enough to be processed in the thread."""
    # A multipart form, which begins with its boundary, has no commas that would have to be counted.
    return len(body) > _LONG_BYTES or (not body.startswith(b"--") and is_large(body))


async def in_thread_if_large(body: bytes, work: Callable[[], Made]) -> Made:
    """Return the result of `work` on a body, done in the thread if the body is large."""
    return await run_in_thread(work) if is_large_body(body) else work()


async def run_in_thread(work: Callable[[], Made]) -> Made:
    """Return the result of `work`, done in the thread."""
    return await asyncio.get_running_loop().run_in_executor(_READER, work)
