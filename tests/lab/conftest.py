"""What do the tests of the lab share? A network of six hosts for one module, a client that sits on any of them."""

from collections.abc import AsyncIterator, Iterator

import pytest

from tests.lab.lab import Lab, connected
from tests.lab.net import Network, missing
from tests.swarm.client import Client


@pytest.fixture(scope="session")
def possible() -> None:
    """Say in one line why nothing of this can run here, where it cannot."""
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
