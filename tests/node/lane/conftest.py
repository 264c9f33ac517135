"""The lane is tested on the event loop that nodes run on, and on the standard library's."""

import asyncio

import uvloop


def pytest_asyncio_loop_factories(config, item):
    """Return what makes the loops of a test, by name."""
    return {"uvloop": uvloop.new_event_loop, "asyncio": asyncio.new_event_loop}
