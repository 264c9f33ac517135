"""Where does what a caller says end up? At the worker that answers, and nowhere else: no log, metric, file, view or peer.

Every kind of secret has a word of its own that is searched for everywhere: in what both nodes write at level `debug`, in all
their answers to `GET`, in every file that they keep, and in the bytes that one of them sends to the other.
"""

import asyncio
import gzip
from collections.abc import AsyncIterator, Mapping

import orjson
import pytest

from node.secrets.identity import load
from router.peers.tls import certificate_of, server_context, trust
from tests.hostile.recorder import Recorder
from tests.swarm.client import Client
from tests.swarm.nodes import Node, Start, Swarm
from tests.swarm.waiting import show, until
from tests.workers.openai_worker import OpenAIWorker, running

pytestmark = pytest.mark.swarm

SETTINGS = {
    "node": {"log_level": "debug", "open": "everybody"},
    "router": {"first_byte_timeout": 1.0},
}
MODEL = "watched"
PROMPT = "canary-prompt-5f1d"
ANSWER = "canary-answer-77aa"
KEY = "canary-key-9c2e"
COOKIE = "canary-cookie-41b0"
HEADER = "canary-header-c3d4"
SESSION = "canary-session-0e8f"
QUERY = "canary-query-aa12"
WALLET = "canary-wallet-bb34"
WORKER_KEY = "canary-worker-cc56"
WORKER_HEADER = "canary-worker-header-dd78"
SAID = (PROMPT, ANSWER, KEY, COOKIE, HEADER, SESSION, QUERY, WALLET)
"""What callers and workers say. The worker's own keys, in its URL and its headers, are kept only by the node beside it."""

HEADERS = {
    "Authorization": f"Bearer {KEY}",
    "X-Api-Key": KEY,
    "Cookie": f"session={COOKIE}",
    "X-Anything": HEADER,
    "X-Forwarded-For": HEADER,
    "User-Agent": HEADER,
    "Referer": f"http://{HEADER}/",
    "x-modelvine-session": SESSION,
}
TRAVELS = frozenset(
    {
        b"host", b"accept", b"accept-encoding", b"content-type", b"content-length", b"x-request-id", b"traceparent",
        b"tracestate", b"x-modelvine-hop", b"x-modelvine-project", b"x-modelvine-cid", b"x-modelvine-wait",
        b"x-modelvine-via",
    }
)  # fmt: skip
"""Headers that a node sends another with a request."""

MESSAGES = [{"role": "user", "content": PROMPT}]
CHAT = {"model": MODEL, "messages": MESSAGES}
LIMITED = {**CHAT, "max_tokens": 9}
ASKED = "/v1/chat/completions"
ANTHROPIC = "/v1/messages"
VIEWS = (
    "/healthz", "/readyz", "/metrics", "/v1/models", f"/v1/models/{MODEL}", f"/api/v1/route?model={MODEL}",
    "/", "/api/v1/status", "/api/v1/catalog", "/api/v1/nodes", "/api/v1/requests", f"/api/v1/history?model={MODEL}",
    "/api/v1/node-events", "/api/v1/usage", "/api/v1/audit", "/api/v1/receipts", "/api/v1/logs", "/api/v1/examination",
    "/api/v0/id", "/api/v0/peers", "/api/v0/swarm/peers", "/api/v1/topology", "/api/v1/connections",
    "/api/v0/swarm/addrs", "/api/v0/pubsub/peers", "/api/v0/bootstrap/list", "/api/v0/rendezvous/peers",
    "/api/v0/ai/projects/list", "/api/v0/ai/projects/models?project=canaries",
    f"/api/v0/ai/projects/peers?project=canaries&model={MODEL}",
)  # fmt: skip


@pytest.fixture(scope="module")
def nodes(swarm: Swarm) -> list[Node]:
    return swarm.start_all(Start("node1", SETTINGS), Start("node2", SETTINGS))


@pytest.fixture
async def worker(nodes: list[Node], client: Client) -> AsyncIterator[OpenAIWorker]:
    """A worker behind node 1, whose URL holds a key."""
    await client.met(nodes)
    async with running() as worker:
        keyed = {"authorization": f"Bearer {WORKER_HEADER}"}
        await client.register(
            nodes[0], "canaries", [MODEL], f"{worker.url}/v1?key={WORKER_KEY}", headers=keyed
        )
        await client.listed(nodes, MODEL)
        await client.agreed(nodes)
        yield worker
        await client.unregister(nodes[0], "canaries")


async def _ask_all(client: Client, node: Node, worker: OpenAIWorker) -> None:
    """Send every kind of request that succeeds, and many that fail."""
    for stream in (False, True):
        answer = await client.post(node, f"{ASKED}?key={QUERY}", {**CHAT, "stream": stream}, headers=HEADERS)  # fmt: skip
        assert answer.status == 200
    for path, fields in (
        (ANTHROPIC, LIMITED),
        (ANTHROPIC, {**LIMITED, "stream": True, PROMPT: 1}),
        (f"{ANTHROPIC}/count_tokens", CHAT),
    ):
        assert (await client.post(node, path, fields, headers=HEADERS)).status == 200
    paid = {"project": "canaries", "wallet": WALLET, "signature": WALLET, "hash": WALLET, **CHAT}
    assert (await client.post(node, "/api/v0/chat/completion/proxy", paid, headers=HEADERS)).status == 200  # fmt: skip
    assert await _sent(client, node, "/v1/images/edits", _form(), "multipart/form-data; boundary=B") == 200  # fmt: skip
    for faults in (
        {"status": 500, "refusal": ANSWER.encode()},
        {"status": 400, "refusal": ANSWER.encode()},
        {"status": 404, "refusal": ANSWER.encode()},
        {"status": 429, "refusal": ANSWER.encode()},
        {"garbage": True},
        {"die_before_headers": True},
        {"delay_headers": 3.0},
    ):
        worker.fail(**faults)
        assert (await client.post(node, ASKED, CHAT, headers=HEADERS)).status >= 400
    worker.fail(die_after=2)
    await client.post(node, ASKED, {**CHAT, "stream": True}, headers=HEADERS)
    worker.fail()
    valid = orjson.dumps(CHAT)
    for path, body, kind, status in (
        (ASKED, valid[:-1], "application/json", 400),
        (ASKED, valid + valid, "application/json", 400),
        (ASKED, b'{"model":"a",' + valid[1:], "application/json", 400),
        (ASKED, valid, f"text/{PROMPT}", 415),
        (ASKED, gzip.compress(valid)[:-4], "application/json; gzip", 415),
        (ASKED, orjson.dumps({**CHAT, "model": "nobody-has-this"}), "application/json", 404),
        (f"{ASKED}/{PROMPT}", valid, "application/json", 404),
        (
            ANTHROPIC,
            orjson.dumps({**LIMITED, "system": [{"type": PROMPT}]}),
            "application/json",
            400,
        ),
        ("/v1/images/edits", _form()[:-4], "multipart/form-data; boundary=B", 400),
        ("/api/v0/ai/project/register", valid, "application/json", 403),
    ):
        assert await _sent(client, node, path, body, kind) == status


async def _sent(client: Client, node: Node, path: str, body: bytes, kind: str) -> int:
    headers = {**HEADERS, "Content-Type": kind}
    async with client.session.post(node.http + path, data=body, headers=headers) as response:
        await response.read()
        return response.status


def _form() -> bytes:
    fields = {'name="model"': MODEL, 'name="prompt"': PROMPT, 'name="image"; filename="a.png"': PROMPT}  # fmt: skip
    parts = (
        f"--B\r\nContent-Disposition: form-data; {n}\r\n\r\n{v}\r\n" for n, v in fields.items()
    )
    return "".join(parts).encode() + b"--B--\r\n"


async def _told(client: Client, node: Node) -> Mapping[str, bytes]:
    """Return all that a node writes, keeps and shows, by where it was found; the requests claim to come from elsewhere."""
    texts = {"log": node.log.encode()}
    for path in node.folder.rglob("*"):
        if path.is_file():
            texts[str(path.relative_to(node.folder))] = path.read_bytes()
    token = (node.folder / "control.token").read_text().strip()
    headers = {"X-Forwarded-For": "192.0.2.1", "Authorization": f"Bearer {token}"}
    for view in VIEWS:
        async with client.session.get(node.http + view, headers=headers) as response:
            assert response.status == 200, (view, await response.text())
            texts[view] = await response.read()
    return texts


async def test_prompts_answers_and_keys_are_in_no_log_no_metric_no_file_and_no_view(
    nodes: list[Node], worker: OpenAIWorker, client: Client
) -> None:
    for node in nodes:
        await _ask_all(client, node, worker)
        await until(lambda node=node: "status=404" in node.log, within=5, otherwise="nothing is logged")  # fmt: skip
    assert any(PROMPT.encode() in received.body for received in worker.received)
    assert {received.headers["authorization"] for received in worker.received} == {
        f"Bearer {WORKER_HEADER}"
    }
    at_worker = str([(received.headers, received.body) for received in worker.received])
    assert [
        secret for secret in (KEY, COOKIE, HEADER, SESSION, QUERY, WALLET) if secret in at_worker
    ] == []
    count = 0
    for node in nodes:
        texts = await _told(client, node)
        count += len(texts)
        secrets = [secret.encode() for secret in SAID]
        secrets += [(node.folder / "control.token").read_bytes().strip()]
        leaking = {
            name for name, text in texts.items() if any(secret in text for secret in secrets)
        }
        assert leaking - {"control.token"} == set()
        for key in (WORKER_KEY, WORKER_HEADER):
            holders = {name for name, text in texts.items() if key.encode() in text}
            # The node beside the worker needs the keys after a restart, too. It also shows that the search finds what is there.
            assert {n.partition("-")[0] for n in holders} == (
                {"modelvine.db"} if node is nodes[0] else set()
            )
    show("canaries", words=str(len(SAID) + 2), places=str(count))


async def test_another_node_receives_the_body_and_nothing_about_the_caller(
    nodes: list[Node], client: Client, swarm: Swarm
) -> None:
    asker = nodes[1]
    peer = await asyncio.to_thread(swarm.start, Start("peer", SETTINGS), known=[asker])
    await client.register(peer, "far", ["far"], "http://127.0.0.1:9/v1")
    await client.listed([asker], "far")
    host, _, port = str((await client.get(peer, "/api/v1/status"))["link"]).rpartition(":")
    await asyncio.to_thread(swarm.kill, peer.actor)
    # A server with the node's key stands in for the node, so that what is sent to it can be read to the byte.
    context, recorder = server_context(load(peer.folder)), Recorder()
    trust(context, certificate_of(load(asker.folder)))
    server = await asyncio.start_server(recorder.serve, host, int(port), ssl=context)
    async with server:
        body = {"model": "far", "messages": MESSAGES}
        answer = await client.post(asker, f"{ASKED}?key={QUERY}", body, headers=HEADERS)
        recorder.close()
    assert answer.status == 200
    (request,) = recorder.taken
    assert recorder.foreign == []
    assert request.line == b"POST /v1/chat/completions HTTP/1.1"
    assert request.headers.keys() <= TRAVELS
    assert orjson.loads(request.body) == body
    assert [
        private
        for private in SAID
        if private.encode() in str((request.line, request.headers)).encode()
    ] == []
