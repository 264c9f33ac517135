"""Pairs of nodes that know only each other and are cut off on bad links: they are one mesh again soon after the cut."""

import asyncio
import os
import time

import pytest

from tests.lab.lab import Lab
from tests.lab.net import Network
from tests.swarm.client import Client
from tests.swarm.nodes import Node
from tests.swarm.waiting import show, until

CUT = 90.0 if os.environ.get("LAB_LONG") else 40.0
"""Seconds; long enough for pauses that double to reach their maximum."""

HEALED = 10.0
"""Seconds after which a model of the other side is listed, and answers."""

MODEL = "across"

pytestmark = [pytest.mark.lab, pytest.mark.timeout(300 + CUT)]


@pytest.mark.parametrize("profile", ["lan", "wan"])
async def test_a_mesh_of_two_nodes_heals_soon_after_a_cut_on_slow_lossy_links(
    lab: Lab, network: Network, client: Client, profile: str
) -> None:
    pairs = [
        (
            lab.start(one, f"--profile={profile}", known=()),
            lab.start(other, f"--profile={profile}", known=(one,)),
        )
        for one, other in ((1, 2), (3, 4), (5, 6))
    ]
    for host, (one, other) in zip((2, 4, 6), pairs, strict=True):
        await client.met([one, other], within=30)
        await client.register(other, MODEL, [MODEL], lab.worker(host))
        await client.listed([one, other], MODEL)
    network.delay(50, jitter=5)
    network.lose(2.0)
    network.partition({1, 3, 5}, {2, 4, 6})
    await asyncio.sleep(CUT)
    for one, _ in pairs:
        assert MODEL not in await client.models(one)
    network.mend()
    healed = time.monotonic()
    took = await asyncio.gather(*(_healed(client, *pair, since=healed) for pair in pairs))
    show(
        f"{CUT:g} s cut, 50 ms, 2 % loss, {profile}", healed_after=str([round(s, 1) for s in took])
    )
    network.heal()
    for node in (node for pair in pairs for node in pair):
        lab.kill(node)


async def _healed(client: Client, one: Node, other: Node, *, since: float) -> float:
    async def listed() -> bool:
        return MODEL in await client.models(one)

    async def answered() -> bool:
        answer = await client.chat(one, MODEL)
        return (answer.status, answer.node) == (200, other.peer)

    await until(
        listed, within=HEALED, since=since, otherwise="the other side's model is not listed"
    )
    return await until(answered, within=HEALED, since=since, otherwise="the way is not used again")
