"""How do nodes find each other that were told of nobody? Each on a host of its own."""

import asyncio
from collections.abc import Iterable

import pytest

from tests.lab.lab import Lab
from tests.swarm.client import Client
from tests.swarm.nodes import Node
from tests.swarm.waiting import show

pytestmark = [pytest.mark.lab, pytest.mark.timeout(240)]


async def test_nodes_of_one_network_that_were_told_of_nobody_serve_each_other_and_remember_it(
    lab: Lab, client: Client
) -> None:
    # Who listens on its own machine only looks round on that machine only, and is heard nowhere else.
    hidden = await asyncio.to_thread(lab.start, 3, "--mdns", known=(), listen="127.0.0.1")
    one = await asyncio.to_thread(lab.start, 1, "--mdns", known=())
    two = await asyncio.to_thread(lab.start, 2, "--mdns", known=())
    met = await client.met([one, two], within=15)
    url = await asyncio.to_thread(lab.worker, 1)
    await client.register(one, "found", ["found"], url)
    await client.listed([two], "found")
    seen = await client.chat(two, "found")
    assert (seen.status, seen.node) == (200, one.peer)
    assert await _origins(client, [one, two]) == {"mdns", "inbound"}

    await asyncio.to_thread(lab.kill, two)
    two = await asyncio.to_thread(lab.start, 2, known=())
    again = await client.met([one, two], within=15)
    assert await _origins(client, [two]) <= {"record", "inbound"}
    assert set(await client.states(hidden)) == {hidden.peer}
    show(
        "found by multicast",
        met_after_the_second_was_ready=met,
        again_from_memory_without_multicast=again,
    )


async def _origins(client: Client, nodes: Iterable[Node]) -> set[str]:
    """Return how these nodes came by their connections."""
    views = [await client.get(node, "/api/v1/nodes") for node in nodes]
    return {row["origin"] for view in views for row in view["nodes"] if not row["self"]}
