"""Fixtures of the node's tests: a worker, nodes as processes with a client, and one PostgreSQL server for all."""

import pytest

from tests.postgres_server import PostgresServer
from tests.swarm.client import connected
from tests.swarm.nodes import Swarm
from tests.workers.openai_worker import running


@pytest.fixture(scope="session")
def postgres():
    with PostgresServer() as server:
        yield server


@pytest.fixture
async def worker():
    async with running() as started:
        yield started


@pytest.fixture
def swarm(tmp_path):
    """A swarm without nodes yet; whatever is started in it ends with the test."""
    with Swarm(tmp_path) as swarm:
        yield swarm


@pytest.fixture
async def client():
    async with connected() as client:
        yield client
