"""How nodes without configured peers find each other, each on a host of its own."""

import asyncio
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.lab.lab import Lab
from tests.lab.net import Network
from tests.swarm.client import Client
from tests.swarm.nodes import Node
from tests.swarm.waiting import show, until

pytestmark = [pytest.mark.lab, pytest.mark.timeout(240)]


@pytest.fixture
def lab(tmp_path: Path, network: Network) -> Iterator[Lab]:
    """Hosts without nodes, and without records of the nodes that an earlier test ran there."""
    with Lab(tmp_path, network) as lab:
        yield lab


async def test_nodes_of_one_network_without_configured_peers_find_serve_and_remember_each_other(
    lab: Lab, client: Client
) -> None:
    # A node that listens on loopback only searches on its own machine only, and is heard nowhere else.
    hidden = await asyncio.to_thread(lab.start, 3, "--mdns", known=(), listen="127.0.0.1")
    one = await asyncio.to_thread(lab.start, 1, "--mdns", known=())
    two = await asyncio.to_thread(lab.start, 2, "--mdns", known=())
    met = await client.met([one, two], within=15)
    url = await asyncio.to_thread(lab.worker, 1)
    await client.register(one, "found", ["found"], url)
    await client.listed([two], "found")
    answer = await client.chat(two, "found")
    assert (answer.status, answer.node) == (200, one.peer)
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


async def test_nodes_that_start_before_their_machines_have_an_address_find_each_other_once_they_have(
    lab: Lab, network: Network, client: Client
) -> None:
    for host in (5, 6):
        network.take_address(host)
    start = partial(lab.start, known=(), listen="0.0.0.0")
    nodes = [await asyncio.to_thread(start, host, "--mdns") for host in (5, 6)]
    for host in (5, 6):
        network.give_address(host)
    # Nodes look every half a minute whether their addresses have changed.
    met = await client.met(nodes, within=45)
    for node in nodes:
        await asyncio.to_thread(lab.kill, node)
    show("found by multicast once they had an address", met_after_the_second_had_one=met)


async def test_strangers_that_know_one_rendezvous_point_serve_each_other_and_go_on_without_it(
    lab: Lab, client: Client
) -> None:
    point = await asyncio.to_thread(lab.start, 4, "--rendezvous-point", known=())
    rendezvous = f"--rendezvous={lab.mesh_address(4)}"
    start = partial(lab.start, known=())
    five, six = [await asyncio.to_thread(start, host, rendezvous) for host in (5, 6)]
    met = await client.met([five, six], within=20)
    url = await asyncio.to_thread(lab.worker, 5)
    await client.register(five, "stranger", ["stranger"], url)
    await client.listed([six], "stranger")
    await asyncio.to_thread(lab.kill, point)
    await until(
        partial(_alone_together, client, five, six), within=20, otherwise="the point still counts"
    )
    answer = await client.chat(six, "stranger")
    assert (answer.status, answer.node) == (200, five.peer)
    await asyncio.to_thread(lab.kill, six)
    six = await asyncio.to_thread(start, 6, rendezvous)
    again = await client.met([five, six], within=20)
    show("found at a point", met_after_the_second_was_ready=met, again_without_the_point=again)


async def _alone_together(client: Client, one: Node, other: Node) -> bool:
    views = [await client.states(node) for node in (one, other)]
    return all(set(view) == {one.peer, other.peer} for view in views)


async def _origins(client: Client, nodes: Iterable[Node]) -> set[str]:
    """Return how these nodes came by their connections."""
    views = [await client.get(node, "/api/v1/nodes") for node in nodes]
    return {row["origin"] for view in views for row in view["nodes"] if not row["self"]}
