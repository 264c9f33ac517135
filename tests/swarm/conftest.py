"""Fixtures of the swarm's tests: a client, a worker, a swarm for each module, and three nodes for the harmless tests."""

from collections.abc import AsyncIterator, Iterator

import pytest

from tests.swarm.client import Client, connected
from tests.swarm.nodes import Node, Swarm
from tests.workers.openai_worker import OpenAIWorker, running


@pytest.fixture(scope="module")
def swarm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Swarm]:
    """A swarm without nodes yet; whatever is started in it ends with the module."""
    with Swarm(tmp_path_factory.mktemp("swarm")) as swarm:
        yield swarm


@pytest.fixture(scope="session")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Node]]:
    """Three nodes that no test ends: each test unregisters what it has registered in them."""
    with Swarm(tmp_path_factory.mktemp("three")) as swarm:
        yield swarm.start_all("node1", "node2", "node3")


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    """A client of its own for each test."""
    async with connected() as client:
        yield client


@pytest.fixture
async def worker() -> AsyncIterator[OpenAIWorker]:
    """A worker that no node knows yet."""
    async with running() as started:
        yield started
