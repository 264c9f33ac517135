"""Loops between nodes that are each other's workers: refused at once, and no other request is affected."""

import time

import pytest

from registry.mesh.memory import MemoryNet
from router.peers.headers import VIA
from tests.node.faces.assembly import World, node, settings_of, told

PATH = "/v1/chat/completions"
CHAT = {"model": "tiny", "messages": []}
SOON = 5.0
"""Seconds; an endless loop would last until the first byte is overdue, a minute."""


@pytest.fixture
async def round_about():
    """Yield two nodes of different meshes, each registered as the other's worker."""
    unhurried = settings_of(first_byte_timeout=60.0)
    async with (
        node(World(MemoryNet()), unhurried) as one,
        node(World(MemoryNet()), unhurried) as two,
    ):
        await one.register(_Url(two), project="p")
        await two.register(_Url(one), project="p")
        yield one, two


class _Url:
    def __init__(self, running) -> None:
        self.url = f"http://{running.context.listening.http}"


async def seen(running) -> int:
    """Return how many requests for a model a node has answered, with any status."""
    async with running.http.get("/metrics") as response:
        lines = (await response.text()).splitlines()
    counted = (line for line in lines if line.startswith("modelvine_requests_total{"))
    return int(sum(float(line.rpartition(" ")[2]) for line in counted))


@pytest.mark.parametrize("stream", [True, False])
async def test_a_request_in_a_loop_is_refused_at_once_and_opens_no_circuit(round_about, stream):
    one, two = round_about
    for number in range(1, 11):
        began = time.monotonic()
        status, body = await told(one.http.post(PATH, json=CHAT | {"stream": stream}))
        assert time.monotonic() - began < SOON
        assert (status, body["error"]["code"]) == (508, "loop")
        # The first node sees the request twice, and refuses it the second time.
        assert (await seen(one), await seen(two)) == (2 * number, number)


async def test_a_real_worker_behind_the_other_node_answers_despite_the_loop(round_about, worker):
    one, two = round_about
    await two.register(worker, project="q")
    for _ in range(10):
        async with one.http.post(PATH, json=CHAT) as response:
            assert response.status == 200, await response.text()
    assert len(worker.received) == 10
    vias = {request.headers[VIA] for request in worker.received}
    assert vias == {f"{one.context.peer}, {two.context.peer}"}


async def test_a_loop_between_nodes_of_one_mesh_is_refused_too(mesh):
    await mesh.one.register(_Url(mesh.two))
    await mesh.two.register(_Url(mesh.one))
    await mesh.knows(mesh.one, "tiny")
    began = time.monotonic()
    status, body = await told(mesh.one.http.post(PATH, json=CHAT))
    assert time.monotonic() - began < SOON
    assert (status, body["error"]["code"]) == (508, "loop")
    assert await seen(mesh.one) <= 4
    assert await seen(mesh.two) <= 2


async def test_a_forged_via_header_affects_its_own_request_alone(served, worker):
    peer = served.context.peer
    for via, status in ((peer, 508), (f"a, {peer}", 508), ("a, b, c, d, e", 508), ("no way", 400)):
        for path in (PATH, "/api/v0/chat/completion/proxy"):
            fields = CHAT | {"project": "p"}
            async with served.http.post(path, json=fields, headers={VIA: via}) as response:
                assert response.status == status, (path, await response.text())
    async with served.http.post(PATH, json=CHAT, headers={VIA: "a, b"}) as response:
        assert response.status == 200
    assert [request.headers[VIA] for request in worker.received] == [f"a, b, {peer}"]
