"""Fixtures of the swarm's tests: a client, a worker, a swarm for each module, and three nodes for the harmless tests."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.swarm.client import Client, connected
from tests.swarm.nodes import Node, Swarm
from tests.workers.openai_worker import OpenAIWorker, running

HERE = Path(__file__).parent
LONG = [HERE / f"test_{name}.py" for name in ("mesh_fuzz", "guides", "stalled", "batches")]
"""Files whose tests take minutes. They start first: the last to start would keep one process busy while the others are idle."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the tests that take minutes first."""
    items.sort(key=lambda item: item.path not in LONG)


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
