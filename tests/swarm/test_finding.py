"""How does a node without peers work, and how does it get to know others? Real nodes, configured through `/api/v0`."""

import asyncio
import re
from typing import Any

import pytest

from tests.swarm.client import Client
from tests.swarm.nodes import Node, Start, Swarm
from tests.swarm.waiting import until

pytestmark = pytest.mark.swarm

INVITED = re.compile(r"no other node is connected.* --bootstrap (\S+);")


async def tell(client: Client, node: Node, path: str, address: str) -> dict[str, Any]:
    answer = await client.post(node, f"/api/v0/{path}", {"node_addr": address})
    assert answer.status == 200, answer.body
    return (await client.get(node, "/api/v0/bootstrap/list"))["data"]


async def origins(client: Client, node: Node) -> dict[str, str]:
    rows = (await client.get(node, "/api/v1/nodes"))["nodes"]
    return {row["node"]: row["origin"] for row in rows if not row["self"]}


async def test_a_lone_node_serves_its_own_models_and_says_how_to_join_it(
    swarm: Swarm, client: Client
) -> None:
    lone = await asyncio.to_thread(swarm.start, "lone")
    worker = await asyncio.to_thread(swarm.start_worker, "lone-worker")
    await client.register(lone, "mine", ["own"], worker.fields["url"])
    answer = await client.chat(lone, "own")
    assert (answer.status, answer.route) == (200, "local")
    await until(
        lambda: INVITED.search(lone.log) is not None, within=5, otherwise="not an invitation"
    )
    match = INVITED.search(lone.log)
    assert match is not None
    joiner = Start("joiner", {"mesh": {"bootstrap": [match[1]]}})
    joined = await asyncio.to_thread(swarm.start, joiner)
    await client.met([lone, joined])
    assert INVITED.search(joined.log) is None
    assert await origins(client, joined) == {lone.peer: "bootstrap"}


async def test_an_added_address_is_dialled_listed_and_survives_a_restart(
    swarm: Swarm, client: Client
) -> None:
    one = await asyncio.to_thread(swarm.start, "one")
    two = await asyncio.to_thread(swarm.start, "two")
    assert await tell(client, two, "bootstrap/add", one.p2p) == [one.p2p]
    await client.met([one, two])
    assert await origins(client, two) == {one.peer: "bootstrap"}
    await asyncio.to_thread(swarm.stop, two)
    two = await asyncio.to_thread(swarm.again, two)
    await client.met([one, two])
    assert (await client.get(two, "/api/v0/bootstrap/list"))["data"] == [one.p2p]
    assert await tell(client, two, "bootstrap/rm", one.p2p) == []
    assert (await origins(client, two)).keys() == {one.peer}  # its record keeps it connected


async def test_a_configured_address_that_was_removed_is_dialled_no_more_after_a_restart(
    swarm: Swarm, client: Client
) -> None:
    one = await asyncio.to_thread(swarm.start, "kept")
    gone = await asyncio.to_thread(swarm.start, "gone")
    start = Start("chooser", {"mesh": {"bootstrap": [one.p2p, gone.p2p]}})
    node = await asyncio.to_thread(swarm.start, start)
    await client.met([one, gone, node])
    await asyncio.to_thread(swarm.stop, gone)
    assert await tell(client, node, "bootstrap/rm", gone.p2p) == [one.p2p]
    await asyncio.to_thread(swarm.stop, node)
    node = await asyncio.to_thread(swarm.again, node)
    await client.met([one, node])
    assert (await client.get(node, "/api/v0/bootstrap/list"))["data"] == [one.p2p]


async def test_a_connection_on_request_is_made_at_once_and_added_to_no_list(
    swarm: Swarm, client: Client
) -> None:
    one = await asyncio.to_thread(swarm.start, "called")
    two = await asyncio.to_thread(swarm.start, "caller")
    assert await tell(client, two, "swarm/connect", one.p2p) == []
    assert [row["peer"] for row in await client.get(two, "/api/v0/swarm/peers")] == [one.peer]
    await client.met([one, two])
    assert await origins(client, two) == {one.peer: "asked"}
    await asyncio.to_thread(swarm.stop, two)
    two = await asyncio.to_thread(swarm.again, two)
    await client.met([one, two])  # remembered by its record
    assert set((await origins(client, two)).values()) <= {"record", "inbound"}
