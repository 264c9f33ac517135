"""What does a node do with bodies, bytes and callers that mean no good? A clear refusal; it lives, and logs no secret."""

import asyncio
import gzip
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress

import aiohttp
import orjson
import pytest

from node.secrets.identity import load
from registry.signing import Identity
from router.peers.tls import certificate_of, client_context, server_context, trust
from tests.swarm.client import Client
from tests.swarm.nodes import Node, Start, Swarm
from tests.swarm.waiting import show
from tests.workers.openai_worker import OpenAIWorker, running

pytestmark = pytest.mark.swarm

SETTINGS = {"node": {"log_level": "debug"}, "router": {"max_body_bytes": 100_000}}
MODEL = "watched"
PROMPT_CANARY = "canary-in-a-prompt-5f1d"
KEY_CANARY = "sk-canary-in-a-key-9c2e"
STRANGER = Identity(bytes(range(32)))

CHAT = "/v1/chat/completions"
REGISTER = "/api/v0/ai/project/register"
JSON = {"Content-Type": "application/json"}
PROMPTED = (
    b'{"model":"watched","messages":[{"role":"user","content":"%b"}]' % PROMPT_CANARY.encode()
)

BAD_BODIES: Mapping[str, tuple[int, bytes, Mapping[str, str]]] = {
    "empty": (400, b"", JSON),
    "no JSON": (400, b"model=watched", JSON),
    "broken off": (400, PROMPTED, JSON),
    "a list": (400, b'["watched"]', JSON),
    "null": (400, b"null", JSON),
    "no model": (400, b'{"messages":[]}', JSON),
    "a model that is a number": (400, b'{"model":7}', JSON),
    "a model of 10,000 letters": (400, b'{"model":"' + b"x" * 10_000 + b'"}', JSON),
    "stream that is no truth": (400, b'{"model":"watched","stream":"yes"}', JSON),
    "no UTF-8": (400, b'{"model":"\xff\xfe"}', JSON),
    "20,000 brackets deep": (400, b'{"model":"watched","x":' + b"[" * 20_000, JSON),
    "not packed as it says": (400, PROMPTED + b"}", {**JSON, "Content-Encoding": "gzip"}),
    "packed in an unknown way": (415, PROMPTED + b"}", {**JSON, "Content-Encoding": "zstd"}),
    "a type that nobody reads": (415, PROMPTED + b"}", {"Content-Type": "text/xml"}),
    "a form without an end": (
        400,
        b"--x\r\nbroken",
        {"Content-Type": "multipart/form-data; boundary=x"},
    ),
    "a form without a boundary": (400, b"--x--", {"Content-Type": "multipart/form-data"}),
    "too long": (413, PROMPTED + b" " * 100_001 + b"}", JSON),
    "too long once unpacked": (
        413,
        gzip.compress(b" " * 10_000_000),
        {**JSON, "Content-Encoding": "gzip"},
    ),
}

BAD_REGISTRATIONS: Mapping[str, tuple[int, int, object]] = {
    "a list": (400, 1002, []),
    "no project": (400, 1001, {"models": []}),
    "a project that is a number": (400, 1002, {"project": 7}),
    "models that are text": (400, 1002, {"project": "half", "models": "all"}),
    "a model without a name": (
        400,
        1001,
        {"project": "half", "models": [{"api": "http://127.0.0.1:9"}]},
    ),
    "a model without an api": (400, 1001, {"project": "half", "models": [{"model": "half"}]}),
    "an api on another machine": (
        400,
        1001,
        {"project": "half", "models": [{"model": "half", "api": "http://192.0.2.1:9"}]},
    ),
    "an api that is no URL": (
        400,
        1001,
        {"project": "half", "models": [{"model": "half", "api": "nowhere"}]},
    ),
    "an unknown type": (
        400,
        1001,
        {"project": "half", "models": [{"model": "half", "api": "http://127.0.0.1:9", "type": 99}]},
    ),
    "the second of two is bad": (
        400,
        1001,
        {
            "project": "half",
            "models": [{"model": "half", "api": "http://127.0.0.1:9"}, {"model": ""}],
        },
    ),
}


@pytest.fixture(scope="module")
def pair(swarm: Swarm) -> list[Node]:
    """Two nodes that write all they can into their logs, and take bodies up to 100 kB."""
    return swarm.start_all(Start("node1", SETTINGS), Start("node2", SETTINGS))


@pytest.fixture
async def nodes(pair: list[Node], client: Client) -> AsyncIterator[list[Node]]:
    """The two, once they have met; afterwards both live, and neither has logged anything unforeseen."""
    await client.met(pair)
    yield pair
    for node in pair:
        assert node.running
        assert (await client.get(node, "/healthz")) == {"status": "ok"}
        assert "Traceback" not in node.log
        assert " ERROR " not in node.log


@pytest.fixture
async def worker(nodes: list[Node], client: Client) -> AsyncIterator[OpenAIWorker]:
    """A worker behind node 1."""
    async with running() as worker:
        await client.register(nodes[0], "hostile", [MODEL], worker.url)
        await client.listed(nodes, MODEL)
        await client.agreed(nodes)
        yield worker
        await client.unregister(nodes[0], "hostile")


def _check(status: int, body: bytes) -> int:
    """Check that an error has our shape, and return its code."""
    payload = orjson.loads(body)
    assert status >= 400
    assert set(payload) == {"code", "message", "error"}
    assert set(payload["error"]) == {"message", "type", "param", "code"}
    assert payload["code"] >= 1000
    assert payload["message"] == payload["error"]["message"]
    return int(payload["code"])


@pytest.mark.parametrize("kind", BAD_BODIES)
async def test_a_bad_body_is_refused_with_our_error_shape_and_reaches_no_worker(
    nodes: list[Node], worker: OpenAIWorker, client: Client, kind: str
) -> None:
    status, body, headers = BAD_BODIES[kind]
    for node in nodes:
        headers = {**headers, "Authorization": f"Bearer {KEY_CANARY}"}
        async with client.session.post(node.http + CHAT, data=body, headers=headers) as response:
            content = await response.read()
            assert (response.status, response.content_type) == (status, "application/json"), content
            _check(response.status, content)
    assert not worker.received


async def test_a_long_body_in_chunks_is_refused_as_well(
    nodes: list[Node], worker: OpenAIWorker, client: Client
) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(30):
            yield b" " * 10_000

    async with client.session.post(nodes[0].http + CHAT, data=pieces(), headers=JSON) as response:
        assert response.status == 413
        _check(response.status, await response.read())
    assert not worker.received


@pytest.mark.parametrize("kind", BAD_REGISTRATIONS)
async def test_a_bad_registration_leaves_nothing_behind(
    nodes: list[Node], client: Client, kind: str
) -> None:
    status, code, body = BAD_REGISTRATIONS[kind]
    before = await client.digest(nodes[0])
    answer = await client.post(nodes[0], REGISTER, body)
    assert answer.status == status, answer.body
    assert _check(answer.status, answer.body) == code
    assert await client.digest(nodes[0]) == before
    assert "half" not in await client.models(nodes[0])


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", CHAT, 405),
        ("DELETE", "/v1/models", 405),
        ("PUT", REGISTER, 405),
        ("POST", "/healthz", 405),
        ("TRACE", CHAT, 405),
        ("GET", "/nothing-here", 404),
        ("POST", "/v1/chat/completion", 404),
        ("GET", "/v1/models/nobody-has-this", 404),
        ("GET", "/v1/../../etc/passwd", 404),
        ("GET", "/" + "a" * 4_000, 404),
        ("POST", "/api/v9/ai/project/register", 404),
    ],
)
async def test_wrong_methods_and_unknown_paths_are_told_apart(
    nodes: list[Node], client: Client, method: str, path: str, status: int
) -> None:
    async with client.session.request(method, nodes[0].http + path) as response:
        assert response.status == status
        _check(response.status, await response.read())
        assert ("Allow" in response.headers) is (status == 405)


@pytest.mark.parametrize(
    "origin", [{"Origin": "https://evil.example"}, {"Host": "evil.example"}], ids=["page", "name"]
)
async def test_a_page_of_another_origin_changes_nothing(
    nodes: list[Node], client: Client, origin: Mapping[str, str]
) -> None:
    body = {"project": "half", "models": [{"model": "half", "api": "http://127.0.0.1:9"}]}
    answer = await client.post(nodes[0], REGISTER, body, headers=origin)
    assert (answer.status, _check(answer.status, answer.body)) == (403, 1010)
    assert "half" not in await client.models(nodes[0])


@pytest.mark.parametrize(
    "garbage",
    [b"\x00" * 1000, b"GET\r\n\r\n", b"\x16\x03\x01\x02\x00garbage", b"POST / HTTP/9.9\r\n\r\n"],
    ids=["zeros", "half a line", "half a handshake", "a version to come"],
)
async def test_garbage_on_any_port_costs_its_sender_the_connection(
    nodes: list[Node], client: Client, garbage: bytes
) -> None:
    for port in (nodes[0].http[7:], await _link(client, nodes[0]), _mesh(nodes[0])):
        host, _, number = port.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(number))
        writer.write(garbage)
        # The node may have cut the connection by now.
        with suppress(OSError):
            writer.write_eof()
        async with asyncio.timeout(15):
            try:
                answer = await reader.read()
            except ConnectionError:
                answer = b""
        writer.transport.abort()
        assert b" 200 " not in answer
        assert b"Traceback" not in answer
    assert (await client.get(nodes[0], "/healthz")) == {"status": "ok"}


async def test_another_node_is_answered_and_a_stranger_is_not(
    nodes: list[Node], worker: OpenAIWorker, client: Client
) -> None:
    link, node1, node2 = await _link(client, nodes[0]), _identity(nodes[0]), _identity(nodes[1])
    known_context = client_context(node2, certificate_of(node1))
    assert await _over_link(link, known_context, hop=node2.peer) == 200
    assert await _over_link(link, known_context, hop=node1.peer) == 403
    assert await _over_link(link, known_context, hop=STRANGER.peer) == 403
    assert await _over_link(link, known_context, hop="") == 403
    served = len(worker.received)
    with pytest.raises(aiohttp.ClientError):
        await _over_link(link, client_context(STRANGER, certificate_of(node1)), hop=STRANGER.peer)
    bare = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    bare.check_hostname = False
    bare.verify_mode = ssl.CERT_NONE
    with pytest.raises(aiohttp.ClientError):
        await _over_link(link, bare, hop=node2.peer)
    assert len(worker.received) == served == 1


async def test_an_impostor_at_a_nodes_address_receives_not_one_byte_of_a_request(
    nodes: list[Node], client: Client, swarm: Swarm
) -> None:
    victim = await asyncio.to_thread(swarm.start, Start("victim", SETTINGS), known=nodes[:1])
    await client.register(victim, "impostor", ["prey"], "http://127.0.0.1:9/v1")
    await client.listed(nodes, "prey")
    host, _, port = (await _link(client, victim)).rpartition(":")
    await asyncio.to_thread(swarm.kill, victim.actor)
    context = server_context(STRANGER)
    for node in nodes:
        trust(context, certificate_of(_identity(node)))
    received: list[bytes] = []

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        received.append(await reader.read(1))
        writer.close()

    server = await asyncio.start_server(take, host, int(port), ssl=context)
    async with server:
        body = {"model": "prey", "messages": [{"role": "user", "content": PROMPT_CANARY}]}
        answer = await client.post(nodes[0], CHAT, body)
    assert (answer.status, _check(answer.status, answer.body)) == (503, 1017)
    assert not [byte for byte in received if byte]
    show("impostor refused", answered_after=answer.seconds)


def _identity(node: Node) -> Identity:
    return load(node.folder)


def _mesh(node: Node) -> str:
    _, _, host, _, port, *_ = node.p2p.split("/")
    return f"{host}:{port}"


async def _link(client: Client, node: Node) -> str:
    return str((await client.get(node, "/api/v1/status"))["link"])


async def _over_link(link: str, context: ssl.SSLContext, *, hop: str) -> int:
    """Ask for a chat as another node would, and return the status."""
    headers = {"x-modelvine-hop": hop} if hop else {}
    body = {"model": MODEL, "messages": []}
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=10)) as session:
        url = f"https://{link}{CHAT}"
        async with session.post(url, json=body, headers=headers, ssl=context) as response:
            await response.read()
            return response.status
