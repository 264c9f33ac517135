"""How a node sees the network, and how it is taken out of service."""

import pytest

from registry.members.liveness import REASONS, Evidence, Presence, Status
from registry.mesh.memory import MemoryNet
from registry.records import Standing
from tests.node.faces.assembly import World, node, told, until


async def test_equal_digests_mean_equal_registries(mesh, worker):
    await mesh.one.register(worker)
    await mesh.knows(mesh.two, "tiny")
    _, one = await told(mesh.one.http.get("/api/v1/catalog?digest=1"))
    _, two = await told(mesh.two.http.get("/api/v1/catalog?digest=1"))
    assert one == two
    assert one.keys() == {"digest", "records"}
    assert one["records"] == 2


async def test_the_catalog_shows_every_live_record(mesh, worker):
    await mesh.one.register(worker, type=1, cid="c")
    await mesh.knows(mesh.two, "tiny")
    _, body = await told(mesh.two.http.get("/api/v1/catalog"))
    nodes = {entry["node"]: entry for entry in body["nodes"]}
    served = nodes[mesh.one.context.peer]
    assert served["services"] == [
        {"project": "p", "model": "tiny", "type": 1, "cid": "c", "context": None}
    ]
    assert (served["state"], served["standing"], served["self"]) == ("alive", "serving", False)
    assert nodes[mesh.two.context.peer]["self"] is True
    assert 0 <= served["age"] < 5
    assert served["version"] == list(mesh.one.context.registry.own_record.version)
    assert served["agent"].startswith("modelvine/")
    assert worker.url not in str(body)


async def test_a_lost_node_leaves_the_catalog_and_stays_in_the_list_of_nodes(mesh):
    mesh.one.context.registry.mesh.fail()
    presence = mesh.two.context.registry.presence
    await until(lambda: presence(mesh.one.context.peer).value == "lost")
    _, catalog = await told(mesh.two.http.get("/api/v1/catalog"))
    assert [entry["node"] for entry in catalog["nodes"]] == [mesh.two.context.peer]
    _, nodes = await told(mesh.two.http.get("/api/v1/nodes"))
    states = {entry["node"]: (entry["state"], entry["connection"]) for entry in nodes["nodes"]}
    assert states[mesh.one.context.peer] == ("lost", "none")
    mesh.one.context.registry.mesh.recover()


async def test_nodes_are_listed_with_how_they_are_reached(mesh):
    _, body = await told(mesh.two.http.get("/api/v1/nodes"))
    assert body["handshakes_failed"] == 0
    nodes = {entry["node"]: entry for entry in body["nodes"]}
    one = nodes[mesh.one.context.peer]
    assert (one["state"], one["connection"], one["models"]) == ("alive", "direct", 0)
    assert one["links"] == [mesh.one.context.listening.link]
    assert one["addresses"]
    assert one.keys() >= {"last_heard", "round_trip", "agent", "since"}
    assert one["why"] == REASONS[Evidence(one["evidence"])]
    assert one["origin"] == "bootstrap"
    own_row = nodes[mesh.two.context.peer]
    assert (own_row["connection"], own_row["origin"]) == ("self", "")


class TestDraining:
    async def test_reaches_other_nodes_and_can_be_undone(self, mesh):
        presence = mesh.two.context.registry.presence
        _, body = await told(mesh.one.http.post("/api/v1/drain"))
        assert (body["code"], body["standing"]) == (0, "draining")
        await until(lambda: presence(mesh.one.context.peer).value == "draining")
        _, ready = await told(mesh.one.http.get("/readyz"))
        assert "draining" in ready["parts"]["http"]
        assert "its own callers" in ready["parts"]["http"]
        _, body = await told(mesh.one.http.post("/api/v1/undrain", json={}))
        assert body["standing"] == "serving"
        await until(lambda: presence(mesh.one.context.peer).value == "alive")

    @pytest.mark.parametrize("path", ["/api/v1/drain", "/api/v1/undrain"])
    async def test_is_for_callers_on_this_machine_and_not_for_pages(self, alone, path):
        for headers in ({"X-Forwarded-For": "203.0.113.9"}, {"Origin": "https://evil.example"}):
            status, body = await told(alone.http.post(path, headers=headers))
            assert (status, body["code"]) == (403, 1010)


async def test_a_stopped_node_is_shown_as_left_by_its_own_announcement():
    world = World(MemoryNet())
    async with node(world) as one:
        async with node(world) as other:
            gone = other.context.peer
            await until(lambda: gone in one.context.registry.catalog.held)
            await other.context.registry.set_standing(Standing.LEFT)
            await until(lambda: one.context.registry.presence(gone) is Presence.LEFT)
        health_of = one.context.registry.health_of
        # Long after: the node no longer tries to reach it.
        await until(lambda: health_of(gone).contact is Status.LOST)
        rows = (await told(one.http.get("/api/v1/nodes")))[1]["nodes"]
        (row,) = (row for row in rows if row["node"] == gone)
        assert (row["state"], row["evidence"]) == ("left", "word")
        assert row["why"] == "it announced that it leaves"
        assert row["since"] == pytest.approx(row["last_heard"], abs=0.1)
