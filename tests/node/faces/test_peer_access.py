"""The listener for other nodes: only nodes that the registry knows get through, and only to this node's workers."""

import ssl
from contextlib import asynccontextmanager

import aiohttp
import pytest

from registry.intake.access_list import access_list_of
from registry.records import Standing
from registry.signing import Identity
from router.peers.tls import certificate_of, client_context
from tests.node.faces.assembly import told, until

CHAT = {"model": "tiny", "messages": []}
PATH = "/v1/chat/completions"


@asynccontextmanager
async def speaking_as(asker, answerer):
    """Yield a session over TLS from one node, with its key, to the link listener of another."""
    context = client_context(asker, certificate_of(answerer.identity))
    async with aiohttp.ClientSession(
        f"https://127.0.0.1:{answerer.link}", connector=aiohttp.TCPConnector(ssl=context)
    ) as session:
        yield session


async def test_a_known_node_is_served_by_our_own_workers(mesh, worker):
    await mesh.one.register(worker)
    headers = {"x-modelvine-hop": mesh.two.context.peer}
    async with (
        speaking_as(mesh.two.identity, mesh.one) as session,
        session.post(PATH, json=CHAT, headers=headers) as response,
    ):
        assert response.status == 200
        assert response.headers["x-modelvine-route"] == "local"


async def test_a_request_of_a_node_is_not_forwarded_to_a_second_hop(mesh, worker):
    await mesh.one.register(worker)
    await mesh.knows(mesh.two, "tiny")
    headers = {"x-modelvine-hop": mesh.one.context.peer}
    async with speaking_as(mesh.one.identity, mesh.two) as session:
        status, body = await told(session.post(PATH, json=CHAT, headers=headers))
    assert (status, body["error"]["code"]) == (404, "model_not_found")
    assert worker.received == []


@pytest.mark.parametrize("hop", [None, "", "somebody", "the answerer"])
async def test_the_hop_header_must_name_the_node_of_the_certificate(mesh, worker, hop):
    await mesh.one.register(worker)
    peer = mesh.one.context.peer if hop == "the answerer" else hop
    headers = {} if peer is None else {"x-modelvine-hop": peer}
    async with speaking_as(mesh.two.identity, mesh.one) as session:
        status, body = await told(session.post(PATH, json=CHAT, headers=headers))
    assert (status, body["code"]) == (403, 1010)
    assert worker.received == []


async def test_a_denied_node_is_refused_though_its_record_is_held(mesh, worker):
    await mesh.one.register(worker)
    one, two = mesh.one.context, mesh.two.context
    one.registry.replica.access = access_list_of(one.peer, allow=(), deny=(two.peer,))
    async with speaking_as(mesh.two.identity, mesh.one) as session:
        headers = {"x-modelvine-hop": two.peer}
        status, body = await told(session.post(PATH, json=CHAT, headers=headers))
    assert (status, body["code"]) == (403, 1010)
    assert worker.received == []


async def test_a_node_that_has_left_is_refused_on_an_open_connection(mesh, worker):
    await mesh.one.register(worker)
    headers = {"x-modelvine-hop": mesh.two.context.peer}
    async with speaking_as(mesh.two.identity, mesh.one) as session:
        assert (await told(session.post(PATH, json=CHAT, headers=headers)))[0] == 200
        await mesh.two.context.registry.set_standing(Standing.LEFT)
        presence = mesh.one.context.registry.presence
        await until(lambda: presence(mesh.two.context.peer).value == "left")
        status, body = await told(session.post(PATH, json=CHAT, headers=headers))
    assert (status, body["code"]) == (403, 1010)


async def test_a_denied_node_is_refused_on_an_open_connection(mesh, worker):
    await mesh.one.register(worker)
    one, two = mesh.one.context, mesh.two.context
    headers = {"x-modelvine-hop": two.peer}
    async with speaking_as(mesh.two.identity, mesh.one) as session:
        for _ in range(2):
            assert (await told(session.post(PATH, json=CHAT, headers=headers)))[0] == 200
        one.registry.replica.access = access_list_of(one.peer, allow=(), deny=(two.peer,))
        status, body = await told(session.post(PATH, json=CHAT, headers=headers))
    assert (status, body["code"]) == (403, 1010)


@pytest.mark.parametrize("said", ["tgi_http generate", "tgi_http generate 999", "x"])
async def test_an_invalid_verbatim_header_of_a_node_is_refused(mesh, worker, said):
    await mesh.one.register(worker)
    headers = {"x-modelvine-hop": mesh.two.context.peer, "x-modelvine-verbatim": said}
    async with speaking_as(mesh.two.identity, mesh.one) as session:
        status, body = await told(session.post(PATH, json=CHAT, headers=headers))
    assert (status, "x-modelvine-verbatim" in body["message"]) == (400, True)
    assert worker.received == []


async def test_the_verbatim_header_of_a_caller_is_ignored(mesh, worker):
    await mesh.one.register(worker)
    headers = {"x-modelvine-verbatim": "tgi_http generate 3"}
    status, _ = await told(mesh.one.http.post(PATH, json=CHAT, headers=headers))
    assert (status, worker.received[0].body) == (200, b'{"model": "tiny", "messages": []}')


async def test_an_unknown_node_does_not_get_past_the_handshake(mesh, worker):
    await mesh.one.register(worker)
    async with speaking_as(Identity(bytes(range(32))), mesh.one) as session:
        with pytest.raises((aiohttp.ClientConnectionError, ssl.SSLError)):
            await told(session.post(PATH, json=CHAT, headers={"x-modelvine-hop": "x"}))
    assert worker.received == []


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/api/v0/ai/model/register"),
        ("POST", "/api/v1/drain"),
        ("GET", "/v1/models"),
        ("GET", "/metrics"),
        ("GET", "/api/v1/nodes"),
    ],
)
async def test_nodes_may_send_requests_to_models_and_nothing_else(mesh, method, path):
    headers = {"x-modelvine-hop": mesh.two.context.peer}
    async with speaking_as(mesh.two.identity, mesh.one) as session:
        status, body = await told(session.request(method, path, headers=headers))
    assert (status, body["error"]["code"]) == (404, "unknown_path")
