"""Connections between nodes, as each node reports its own, and hostile reports."""

import orjson
import pytest

from node.config.settings import KeylessAccess
from node.faces.v1.topology import CONNECTIONS, FRESH, MAX_LISTED, read
from registry.mesh.memory import MemoryNet
from registry.records import PeerId
from tests.node.faces.assembly import World, node, settings_of, told, until

PATH = "/api/v1/topology"
NODE, OTHER, THIRD = map(PeerId, ("12D3KooWa", "12D3KooWb", "12D3KooWc"))
KNOWN = {NODE, OTHER, THIRD}


def said(*rows: object) -> bytes:
    return orjson.dumps({"connections": rows})


@pytest.fixture
async def three():
    """Yield three nodes that know each other."""
    world = World(MemoryNet())
    async with node(world) as one, node(world) as two, node(world) as three:
        nodes = (one, two, three)
        await until(lambda: all(len(n.context.registry.catalog.held) == 3 for n in nodes))
        await until(lambda: all(len(n.context.registry.mesh.connections()) == 2 for n in nodes))
        yield nodes


async def test_a_node_reports_its_own_connections_to_known_nodes(mesh):
    status, body = await told(mesh.two.http.get("/api/v1/connections"))
    assert status == 200
    assert body == {"connections": [{"node": mesh.one.context.peer, "relayed": False}]}


async def test_connections_between_other_nodes_are_shown_once_each(three):
    ids = [running.context.peer for running in three]
    status, body = await told(three[0].http.get(PATH))
    assert (status, body["told"]) == (200, sorted(ids))
    pairs = [(link["one"], link["other"]) for link in body["links"]]
    assert len(pairs) == len(set(pairs)) == 3
    assert (min(ids[1:]), max(ids[1:])) in pairs
    assert not any(link["relayed"] for link in body["links"])


async def test_nodes_are_asked_again_only_after_a_while(three):
    seen = three[0].context.topology.seen
    first = await seen(100.0, "r")
    assert await seen(100.0 + FRESH - 0.1, "r") is first
    assert await seen(100.0 + FRESH, "r") is not first


async def test_a_lost_node_is_missing_from_the_reports(three):
    gone = three[2].context
    seen = three[0].context.topology.seen
    await gone.links.close()
    gone.registry.mesh.fail()
    presence = three[0].context.registry.presence
    await until(lambda: presence(gone.peer).value == "lost")
    body = await seen(0.0, "r")
    assert gone.peer not in body["told"]
    assert three[1].context.peer in body["told"]
    gone.registry.mesh.recover()


async def test_a_reader_that_cannot_wait_gets_the_last_result_and_later_the_new_one(three):
    topology = three[0].context.topology
    assert await topology.seen_within(0.0, 100.0, "r") == {}
    first = await topology.seen(100.0, "r")
    assert len(first["links"]) == 3
    assert await topology.seen_within(0.0, 100.0 + FRESH, "r") is first
    second = await topology.seen(100.0 + FRESH, "r")
    assert second is not first
    assert await topology.seen_within(5.0, 100.0 + FRESH, "r") is second


async def test_a_caller_that_may_not_look_is_refused():
    elsewhere = {"X-Forwarded-For": "203.0.113.9"}
    async with node(World(MemoryNet()), settings_of(keyless=KeylessAccess.MACHINE)) as closed:
        for path in (PATH, CONNECTIONS):
            assert (await told(closed.http.get(path)))[0] == 200
            assert (await told(closed.http.get(path, headers=elsewhere)))[0] == 401


class TestWhatANodeSays:
    def test_names_nodes_that_are_known_and_not_itself(self):
        rows = [{"node": OTHER, "relayed": True}, {"node": "stranger", "relayed": False}]
        assert read(said(*rows, {"node": NODE, "relayed": False}), NODE, KNOWN) == {OTHER: True}

    def test_counts_a_connection_as_relayed_only_if_relayed_is_true(self):
        assert read(said({"node": OTHER, "relayed": "yes"}), NODE, KNOWN) == {OTHER: False}

    def test_is_read_up_to_a_bound(self):
        rows = [{"node": OTHER, "relayed": False}] * MAX_LISTED
        assert read(said(*rows, {"node": THIRD, "relayed": False}), NODE, KNOWN) == {OTHER: False}

    @pytest.mark.parametrize(
        "answer",
        [
            b"",
            b"[]",
            b"null",
            b"{}",
            b'{"connections": null}',
            b'{"connections": {}}',
            b'{"connections": "a"}',
            b'{"connections": [1]}',
            b'{"connections": [{"node": "a"}]}',
            b'{"connections": [["node", "relayed"]]}',
            b"[" * 5000,
        ],
    )
    def test_is_rejected_where_it_has_another_shape(self, answer):
        assert read(answer, NODE, KNOWN) is None

    def test_names_nodes_by_text_only(self):
        assert read(said({"node": [OTHER], "relayed": False}), NODE, KNOWN) == {}
