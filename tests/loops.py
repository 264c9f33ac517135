"""Event loops of tests that run on both: asyncio's own, and uvloop, which a node uses. A folder's conftest imports the hook."""

import asyncio
from collections.abc import Callable, Mapping

import uvloop


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Return the factories by name."""
    return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}
