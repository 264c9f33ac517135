"""Description of a node's machine, for its own callers and for other nodes."""

from registry.mesh.memory.network import MemoryNet
from tests.node.faces.assembly import World, node, told, until

PATH = "/api/v0/host/info"
PARTS = {"os", "cpu", "memory", "disk", "gpu"}


async def test_a_node_describes_its_own_machine(alone):
    for asked in ({"node_id": alone.context.peer}, {"node_id": ""}, {}):
        status, body = await told(alone.http.post(PATH, json=asked))
        assert (status, body["code"]) == (200, 0)
        assert body.keys() == PARTS | {"code", "message"}


async def test_a_node_asks_another_over_their_link(mesh):
    asked = {"node_id": mesh.one.context.peer}
    status, body = await told(mesh.two.http.post(PATH, json=asked))
    assert (status, body["code"]) == (200, 0)
    assert body["memory"]["total_physical_bytes"] > 0
    assert not any(disk["serial_number"] for disk in body["disk"])


async def test_an_unknown_node_is_404_and_an_invalid_name_400(alone, stranger):
    for asked, status in ((stranger, 404), ("nonsense", 404), ("no name", 400)):
        assert (await told(alone.http.post(PATH, json={"node_id": asked})))[0] == status


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
