"""Machines that are switched on: nodes meet in any order, and a power cut loses nothing that was acknowledged."""

import asyncio
import os
import random
import sqlite3
import time
from collections.abc import AsyncIterator
from contextlib import closing

import aiohttp
import pytest

from tests.lab.lab import Lab, any_order
from tests.swarm.client import Client
from tests.swarm.nodes import Node
from tests.swarm.waiting import SLACK, percentile, show

pytestmark = [pytest.mark.lab, pytest.mark.timeout(600)]

POWER_CUTS = 50 if os.environ.get("LAB_LONG") else 10
NOWHERE = "http://127.0.0.1:9/v1"

ROUTABLE = 3.0
"""Seconds until other nodes route requests to a node that is back."""


@pytest.fixture(scope="module")
def booted() -> dict[str, Node]:
    """The nodes that run, by name."""
    return {}


@pytest.fixture
async def five(lab: Lab, booted: dict[str, Node]) -> AsyncIterator[list[Node]]:
    """Five nodes that were switched on in any order, last the one that all the others know."""
    if not booted:
        order = any_order(range(1, 6), last=1)
        show("switched on", order=" ".join(map(str, order)))
        booted.update({n.name: n for n in await asyncio.to_thread(lab.start_all, order)})
    yield [booted[name] for name in sorted(booted)]
    assert all(node.running for node in booted.values())


async def test_five_nodes_meet_in_whatever_order_they_are_switched_on(
    five: list[Node], lab: Lab, client: Client
) -> None:
    met = await client.met(five, within=30)
    url = await asyncio.to_thread(lab.worker, 4)
    await client.register(five[3], "cold", ["boot"], url)
    listed = await client.listed(five, "boot")
    equal = await client.agreed(five, within=10)
    answers = [await client.chat(node, "boot") for node in five]
    assert {(answer.status, answer.node) for answer in answers} == {(200, five[3].peer)}
    show("cold boot", met_after_the_last_was_ready=met, listed=listed, digests_equal=equal)


async def test_a_node_that_loses_power_again_and_again_keeps_its_name_and_its_models(
    five: list[Node], booted: dict[str, Node], lab: Lab, client: Client
) -> None:
    victim, asked = five[4], five[1]
    peer, rng = victim.peer, random.Random(7)
    url = await asyncio.to_thread(lab.worker, 5)
    await client.register(victim, "kept", ["kept"], url)
    acknowledged = {"kept"}
    ready: list[float] = []
    routed: list[float] = []
    for turn in range(POWER_CUTS):
        async with asyncio.TaskGroup() as group:
            group.create_task(_register_until_it_dies(client, victim, turn, acknowledged))
            await asyncio.sleep(rng.uniform(0.0, 1.0))
            await asyncio.to_thread(lab.kill, victim)
        began = time.monotonic()
        victim = booted["h5"] = await asyncio.to_thread(lab.start, 5)
        ready.append(time.monotonic() - began)
        assert victim.peer == peer
        assert acknowledged <= await client.models(victim)
        routed.append(await _routed(client, asked, victim))
    assert len(acknowledged) > POWER_CUTS
    await client.met([*five[:4], victim], within=20)
    await client.listed([*five[:4], victim], *acknowledged)
    await client.agreed([*five[:4], victim], within=10)
    show(
        f"{POWER_CUTS} power cuts",
        acknowledged=str(len(acknowledged)),
        ready_p50=percentile(ready, 0.5),
        ready_max=max(ready),
        asked_elsewhere_and_answered_by_it_after_ready_max=max(routed),
    )
    assert max(routed) < SLACK * ROUTABLE
    with closing(sqlite3.connect(f"file:{victim.folder}/modelvine.db?mode=ro", uri=True)) as store:
        assert store.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


async def _register_until_it_dies(
    client: Client, node: Node, turn: int, acknowledged: set[str]
) -> None:
    """Register one model after the other; note those that the node acknowledged."""
    for number in range(1000):
        model = f"kept-{turn}-{number}"
        row = {"project": "kept", "model": model, "api": NOWHERE, "type": 0}
        try:
            answer = await client.post(node, "/api/v0/ai/model/register", row)
        except aiohttp.ClientError:
            return
        if answer.status == 200:
            acknowledged.add(model)
        await asyncio.sleep(0.02)


async def _routed(client: Client, asked: Node, by: Node) -> float:
    """Ask `asked` until the answer comes from `by`; return the seconds."""
    began = time.monotonic()
    while True:
        answer = await client.chat(asked, "kept")
        if (answer.status, answer.node) == (200, by.peer):
            return time.monotonic() - began
        assert time.monotonic() - began < 20, answer
        await asyncio.sleep(0.05)
