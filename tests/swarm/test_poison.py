"""Does the worst that a member may send block a node? Ten nodes in a row, each knowing the one before it; one is attacked."""

import asyncio
import time
from collections.abc import Coroutine

import pytest

from node.observe.samples import WINDOW
from tests.swarm.attacks.attacker import Attacker
from tests.swarm.client import Client
from tests.swarm.nodes import Node, Start, Swarm
from tests.swarm.waiting import percentile, show, until

pytestmark = [pytest.mark.swarm, pytest.mark.alone, pytest.mark.timeout(400)]

NODES = 10
SPARSE = {"mesh": {"degree": 2}}
WORST = (
    "records of the worst shapes",
    "a loud member",
    "19,900 made-up nodes listed by a member",
    "newer words of 100 strangers",
    "200 forgeries",
)
SPREAD = 3

MAX_BUSY = 0.5
"""Seconds of processor time that any of the ten may compute without a pause; how late it wakes depends on the machine, too."""


async def test_the_worst_that_a_member_may_send_blocks_none_of_ten_nodes(
    swarm: Swarm, client: Client
) -> None:
    nodes: list[Node] = []
    for number in range(NODES):
        nodes.append(swarm.start(Start(f"node{number}", SPARSE), known=nodes[-1:]))
    await client.met(nodes, within=30)
    worker = swarm.start_worker("worker")
    await client.register(nodes[-1], "honest", ["honest"], worker.fields["url"])
    await client.listed(nodes, "honest")
    attacker = Attacker(nodes[0], swarm.folder / "attacker.log")
    try:
        await _ask_while(_at_rest(nodes, client), nodes, client, "at rest")
        for kind in WORST:
            attack = asyncio.to_thread(attacker.do, kind)
            await _ask_while(attack, nodes, client, kind)
            if kind == WORST[0]:
                await _have_spread(nodes, client)
    finally:
        attacker.end()
    bad = [(await client.events(node))["frames_bad"] for node in nodes]
    show("bad frames", at_each=str(bad))
    # Each node judges before it passes on: a frame that no node may accept ends where it came in.
    assert bad[0] > 0
    assert sum(bad[1:]) == 0
    assert max([await client.loop_busy(node) for node in nodes]) <= MAX_BUSY
    assert all(node.running and "Traceback" not in node.log for node in nodes)


async def _ask_while(
    lasts: Coroutine[object, object, object], nodes: list[Node], client: Client, label: str
) -> None:
    """Send requests along the whole row while something lasts; show how long they took, and how late each node was."""
    waits = []
    async with asyncio.TaskGroup() as group:
        task = group.create_task(lasts)
        while not task.done():
            began = time.monotonic()
            answer = await client.chat(nodes[0], "honest")
            assert answer.status == 200, answer
            waits.append(time.monotonic() - began)
            await asyncio.sleep(0.05)
    lags = [await client.loop_lag(node) for node in nodes]
    busy = [await client.loop_busy(node) for node in nodes]
    p50, p99 = percentile(waits, 0.5), percentile(waits, 0.99)
    show(label, p50=p50, p99=p99, lag_of_the_worst=max(lags), busy_of_the_worst=max(busy))


async def _at_rest(nodes: list[Node], client: Client) -> None:
    """Wait until the long computations at the nodes' start are out of the time that is measured."""

    async def forgotten() -> bool:
        return max([await client.loop_busy(node) for node in nodes]) <= MAX_BUSY

    await until(
        forgotten, within=WINDOW, otherwise="a node computes for long though nothing happens"
    )


async def _have_spread(nodes: list[Node], client: Client) -> None:
    """Wait until the last node holds as many of the records as there is room for: each node weighs heavy ones."""

    async def held() -> bool:
        return len((await client.get(nodes[-1], "/api/v1/nodes"))["nodes"]) >= NODES + SPREAD

    await until(held, within=20, otherwise="the worst records have not come to the last node")
