"""Runs the tests of the lane on the event loop that nodes use, and on the standard library's."""

import asyncio

import uvloop


def pytest_asyncio_loop_factories(config, item):
    """Return the event loop factories of a test, by name."""
    return {"uvloop": uvloop.new_event_loop, "asyncio": asyncio.new_event_loop}
