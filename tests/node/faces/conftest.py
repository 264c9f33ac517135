"""Nodes and workers for the tests of the faces."""

import pytest

from node.config.settings import KeylessAccess
from registry.mesh.memory import MemoryNet
from registry.signing import Identity
from tests.node.faces.assembly import TOKEN, Pair, World, bearer, node, settings_of, until


@pytest.fixture
async def alone():
    async with node(World(MemoryNet())) as running:
        yield running


@pytest.fixture
async def mesh():
    world = World(MemoryNet())
    async with node(world) as one, node(world) as two:
        await until(lambda: two.context.peer in one.context.registry.catalog.held)
        await until(lambda: one.context.peer in two.context.registry.catalog.held)
        yield Pair(one, two)


@pytest.fixture
def stranger():
    """Return a peer id that no node of the test has."""
    return Identity(bytes(range(32))).peer


@pytest.fixture
async def served(alone, worker):
    """Return a node with a worker for the model `tiny`."""
    await alone.register(worker)
    return alone


@pytest.fixture
async def closed(worker):
    """Yield a node that serves no caller without a key."""
    async with node(World(MemoryNet()), settings_of(keyless=KeylessAccess.NOBODY)) as running:
        running.http.headers.update(bearer(TOKEN))
        await running.register(worker)
        del running.http.headers["Authorization"]
        yield running
