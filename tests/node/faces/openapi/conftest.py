"""A node that serves no caller without a key, and the description of its own API."""

import pytest

from node.auth.keys import Allowance, Role
from node.config.settings import KeylessAccess
from node.faces.app import public_app
from node.faces.openapi.document import document, operations
from registry.mesh.memory import MemoryNet
from tests.node.faces.assembly import World, node, settings_of


@pytest.fixture
async def closed():
    async with node(World(MemoryNet()), settings_of(keyless=KeylessAccess.NOBODY)) as running:
        yield running


@pytest.fixture
async def keys(closed):
    """Return a key of each role."""
    allowances = {role.value: Allowance(role=role) for role in Role}
    return await closed.context.keys.create(allowances)


@pytest.fixture
def app(closed):
    return public_app(closed.context)


@pytest.fixture
def api(app):
    return document(app)


@pytest.fixture
def described(app):
    return list(operations(app))
