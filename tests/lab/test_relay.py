"""What if the one relay of two hidden nodes comes back after a while? They reach each other through it again, and soon."""

import asyncio
import time
from collections.abc import Iterator

import pytest

from tests.lab.lab import Lab
from tests.lab.nat import INSIDE, NatNetwork
from tests.swarm.client import Client
from tests.swarm.nodes import Node
from tests.swarm.waiting import show, until

pytestmark = [pytest.mark.lab, pytest.mark.timeout(300)]

MODEL = "hidden"

AGAIN = 3.0
"""Seconds after which two hidden nodes reach each other through a relay that is back."""


@pytest.fixture(scope="module")
def network(possible: None) -> Iterator[NatNetwork]:
    """One host in the open, two behind routers of their own."""
    with NatNetwork(hosts=3, hidden={2, 3}) as network:
        yield network


@pytest.fixture(scope="module")
def started(lab: Lab) -> list[Node]:
    """The relay, and the two nodes that know no other node."""
    return [lab.start(1, "--relay"), *(lab.start(host, listen=INSIDE) for host in (2, 3))]


@pytest.fixture
async def hidden(lab: Lab, started: list[Node], client: Client) -> list[Node]:
    """The two nodes behind routers; the second serves a model."""
    await client.met(started, within=30)
    await client.register(started[2], MODEL, [MODEL], lab.worker(3))
    await client.listed(started, MODEL)
    return started[1:]


@pytest.mark.parametrize("away", [8.0, 25.0])
async def test_two_hidden_nodes_reach_each_other_soon_after_their_one_relay_is_back(
    hidden: list[Node], lab: Lab, started: list[Node], client: Client, away: float
) -> None:
    asker, serving = hidden

    async def answered() -> bool:
        answer = await client.chat(asker, MODEL)
        return (answer.status, answer.node) == (200, serving.peer)

    await until(answered, within=20, otherwise="the relay does not help")
    lab.kill(started[0])
    await asyncio.sleep(away)
    assert (await client.chat(asker, MODEL)).status in (502, 503, 504)
    started[0] = lab.start(1, "--relay")
    back = time.monotonic()
    met = await client.met(started, within=AGAIN)
    again = await until(answered, within=AGAIN, since=back, otherwise="the way is not used again")
    show(f"the one relay was away for {away:g} s", all_met_after=met, answered_after=again)
