"""`/api/v0` on the network: identities, connections, saved peers, and the description of a node's machine."""

import pytest

from registry.mesh.memory import MemoryNet, address_of
from registry.store import Space
from tests.node.faces.assembly import World, node, told, until

FORWARDED = {"X-Forwarded-For": "203.0.113.9"}


async def test_a_node_describes_itself(alone):
    status, body = await told(alone.http.get("/api/v0/id"))
    assert (status, body["code"], body["peer_id"]) == (200, 0, alone.context.peer)
    assert body["addresses"] == [address_of(alone.context.peer)]
    assert body["agent_version"].startswith("modelvine/")
    assert body.keys() >= {"protocol_version", "protocols", "message"}
    assert body["protocols"] == ["/memory/1"]


async def test_a_node_describes_another_as_that_one_describes_itself(mesh):
    fields = {"node_id": mesh.one.context.peer}
    _, own = await told(mesh.one.http.post("/api/v0/peer", json=fields))
    _, other = await told(mesh.two.http.post("/api/v0/peer", json=fields))
    assert own == other


async def test_live_nodes_are_listed_and_lost_ones_are_not(mesh):
    both = {mesh.one.context.peer, mesh.two.context.peer}
    assert set((await told(mesh.two.http.get("/api/v0/peers")))[1]["data"]) == both
    mesh.one.context.registry.mesh.fail()
    presence = mesh.two.context.registry.presence
    await until(lambda: presence(mesh.one.context.peer).value == "lost")
    listed = (await told(mesh.two.http.get("/api/v0/peers")))[1]["data"]
    assert listed == [mesh.two.context.peer]
    found = (await told(mesh.two.http.get("/api/v0/rendezvous/peers")))[1]["data"]
    assert found == [mesh.one.context.peer]
    mesh.one.context.registry.mesh.recover()


async def test_connections_are_bare_lists(mesh):
    other = mesh.one.context.peer
    get = mesh.two.http.get
    (connection,) = (await told(get("/api/v0/swarm/peers")))[1]
    assert connection == {
        "id": other,
        "peer": other,
        "addr": address_of(other),
        "latency": "0s",
        "direction": "outbound",
    }
    addresses = [{"peer": other, "addrs": [address_of(other)]}]
    assert (await told(get("/api/v0/swarm/addrs")))[1] == addresses
    assert (await told(get("/api/v0/pubsub/peers")))[1] == [other]


async def test_peers_are_connected_and_disconnected_by_address(mesh):
    fields = {"node_addr": address_of(mesh.one.context.peer)}
    own_mesh = mesh.two.context.registry.mesh
    done = (200, {"code": 0, "message": "ok"})
    assert await told(mesh.two.http.post("/api/v0/swarm/disconnect", json=fields)) == done
    await until(lambda: own_mesh.connections() == ())
    assert await told(mesh.two.http.post("/api/v0/swarm/connect", json=fields)) == done
    assert [c.peer for c in own_mesh.connections()] == [mesh.one.context.peer]


async def test_disconnecting_an_unconnected_peer_is_an_error(alone, stranger):
    call = alone.http.post("/api/v0/swarm/disconnect", json={"node_addr": address_of(stranger)})
    status, body = await told(call)
    assert (status, body["code"], body["error"]["param"]) == (400, 1001, "node_addr")
    assert body["message"] == f"this node is not connected to {stranger}"


async def test_a_peer_that_does_not_answer_is_502(alone, stranger):
    call = alone.http.post("/api/v0/swarm/connect", json={"node_addr": address_of(stranger)})
    status, body = await told(call)
    assert (status, body["error"]["code"]) == (502, "peer_unreachable")


CHANGES = (
    "/api/v0/swarm/connect",
    "/api/v0/swarm/disconnect",
    "/api/v0/bootstrap/add",
    "/api/v0/bootstrap/rm",
)


@pytest.mark.parametrize("path", CHANGES)
@pytest.mark.parametrize(
    "address",
    [
        "",
        "nonsense",
        "/ip4/127.0.0.1/tcp/6101",
        "/ip4/300.0.0.1/tcp/1/p2p/{peer}",
        "/p2p/{peer}",
        "/ip4/127.0.0.1/tcp/1/p2p/short",
        "/ip4/127.0.0.1/tcp/1/p2p/" + "1" * 5_000,
    ],
    ids=lambda address: address[:32],
)
async def test_an_address_that_cannot_be_dialled_is_refused(alone, stranger, path, address):
    fields = {"node_addr": address.format(peer=stranger)}
    status, body = await told(alone.http.post(path, json=fields))
    assert (status, body["code"], body["error"]["param"]) == (400, 1001, "node_addr")


@pytest.mark.parametrize("path", CHANGES)
async def test_connections_are_changed_from_this_machine_only(alone, stranger, path):
    fields = {"node_addr": address_of(stranger)}
    assert (await told(alone.http.post(path, json=fields, headers=FORWARDED)))[0] == 403


async def test_bootstrap_addresses_are_listed_durable_and_removable(alone, stranger):
    fields = {"node_addr": address_of(stranger)}
    listing = "/api/v0/bootstrap/list"
    await told(alone.http.post("/api/v0/bootstrap/add", json=fields))
    assert (await told(alone.http.get(listing)))[1]["data"] == [address_of(stranger)]
    assert list(await alone.store.read(Space.PEERS)) == [address_of(stranger)]
    removed = alone.http.post("/api/v0/bootstrap/rm", json=fields)
    assert await told(removed) == (200, {"code": 0, "message": "ok"})
    again = alone.http.post("/api/v0/bootstrap/rm", json=fields)
    assert await told(again) == (200, {"code": 0, "message": "not existed"})
    assert (await told(alone.http.get(listing)))[1]["data"] == []


PATH = "/api/v0/host/info"
PARTS = {"os", "cpu", "memory", "disk", "gpu"}


async def test_a_node_describes_its_own_machine(alone):
    for fields in ({"node_id": alone.context.peer}, {"node_id": ""}, {}):
        status, body = await told(alone.http.post(PATH, json=fields))
        assert (status, body["code"]) == (200, 0)
        assert body.keys() == PARTS | {"code", "message"}


async def test_a_node_asks_another_over_their_link(mesh):
    fields = {"node_id": mesh.one.context.peer}
    status, body = await told(mesh.two.http.post(PATH, json=fields))
    assert (status, body["code"]) == (200, 0)
    assert body["memory"]["total_physical_bytes"] > 0
    assert not any(disk["serial_number"] for disk in body["disk"])


async def test_an_unknown_node_is_404_and_an_invalid_name_400(alone, stranger):
    for name, status in ((stranger, 404), ("nonsense", 404), ("no name", 400)):
        assert (await told(alone.http.post(PATH, json={"node_id": name})))[0] == status


async def test_a_node_that_is_gone_is_502():
    world = World(MemoryNet())
    async with node(world) as one:
        async with node(world) as other:
            gone = other.context.peer
            await until(lambda: gone in one.context.registry.catalog.held)
        status, body = await told(one.http.post(PATH, json={"node_id": gone}))
        assert (status, body["error"]["code"]) == (502, "peer_unreachable")


async def test_serial_numbers_stay_on_this_machine(alone):
    headers = {"X-Forwarded-For": "203.0.113.9"}
    _, body = await told(alone.http.post(PATH, json={}, headers=headers))
    assert not any(disk["serial_number"] for disk in body["disk"])
