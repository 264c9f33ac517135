"""Fixtures of the lab: a network of six hosts for each module, five nodes on it, a client that asks from any host."""

from collections.abc import AsyncIterator, Iterator, Sequence

import pytest

from tests.lab.lab import Lab, connected
from tests.lab.net import Network, missing
from tests.swarm.client import Client
from tests.swarm.nodes import Node


@pytest.fixture(scope="session")
def possible() -> None:
    """Skip the lab's tests where they cannot run, with the reason in one line."""
    if lacking := missing():
        pytest.skip(f"THE LAB SUITE DOES NOT RUN: it needs {lacking}")


@pytest.fixture(scope="module")
def network(possible: None) -> Iterator[Network]:
    """Six hosts that reach one another."""
    with Network(hosts=6) as network:
        yield network


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory, network: Network) -> Iterator[Lab]:
    """Hosts without nodes yet."""
    with Lab(tmp_path_factory.mktemp("lab"), network) as lab:
        yield lab


@pytest.fixture
async def client(network: Network) -> AsyncIterator[Client]:
    """A client of its own for each test."""
    async with connected(network) as client:
        yield client


@pytest.fixture(scope="module")
def started(lab: Lab) -> list[Node]:
    """Five nodes on hosts 1 to 5."""
    return sorted(lab.start_all(range(1, 6)), key=lambda node: node.name)


@pytest.fixture(scope="module")
def workers(lab: Lab, started: list[Node]) -> dict[int, str]:
    """A worker each on hosts 2 to 5."""
    return {host: lab.worker(host) for host in range(2, 6)}


@pytest.fixture
async def five(
    lab: Lab, network: Network, started: list[Node], workers: dict[int, str], client: Client
) -> AsyncIterator[list[Node]]:
    """The five nodes, with all faults ended and each node alive in every view."""
    await _well(lab, network, started)
    await client.met(started, within=30)
    await client.agreed(started, within=30)
    yield started
    await _well(lab, network, started)
    assert all(node.running for node in started)


async def _well(lab: Lab, network: Network, nodes: Sequence[Node]) -> None:
    network.heal()
    for node in nodes:
        lab.thaw(node)
