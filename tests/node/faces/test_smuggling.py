"""Request smuggling: no bytes of a caller become another request at a worker. Ambiguous requests are refused, others reframed.

The worker is a recorder behind one node; it is asked at that node, through another node, and as another node would.
"""

import orjson
import pytest

from router.peers.tls import certificate_of, client_context
from tests.hostile.recorder import recording
from tests.hostile.refused import JSON
from tests.hostile.smuggling import CASES, HIDDEN_BODY
from tests.hostile.wire import Listener

LINE = b"POST /v1/chat/completions HTTP/1.1"
HEADERS = frozenset(
    {b"host", b"accept-encoding", b"content-type", b"content-length", b"x-request-id", b"accept", b"traceparent", b"tracestate",
     b"x-modelvine-via"}
)  # fmt: skip
"""Headers that a worker may see; of the caller's own headers only the last ones."""

CANARY = "canary-of-the-caller"
FROM_THE_CALLER = (
    "Authorization: Bearer {}", "Cookie: session={}", "Proxy-Authorization: {}", "X-Api-Key: {}",
    "X-Forwarded-For: {}", "X-Forwarded-Host: {}", "Forwarded: for={}", "X-Real-IP: {}", "Via: 1.1 {}",
    "User-Agent: {}", "Referer: http://{}/", "X-Anything: {}", "Openai-Organization: {}",
    "Connection: X-Named, Traceparent", "X-Named: {}", "Keep-Alive: {}", "TE: {}", "Trailer: {}",
    "x-modelvine-session: {}", "x-modelvine-load: {}", "Accept-Encoding: {}", "Accept-Language: {}",
    "Content-Language: {}", "Content-Disposition: {}", "X_Underscore: {}", "From: {}",
)  # fmt: skip


@pytest.fixture
async def recorder():
    async with recording() as recorder:
        yield recorder


@pytest.fixture(params=["here", "a hop away", "as a peer"])
async def listener(request, mesh, recorder):
    """Return a way to the recorder, which is a worker of the first of two nodes."""
    await mesh.one.register(recorder)
    # The requests that asked what software it is, when it was registered.
    recorder.taken.clear()
    if request.param == "as a peer":
        context = client_context(mesh.two.identity, certificate_of(mesh.one.identity))
        return Listener("127.0.0.1", mesh.one.link, context, mesh.two.identity.peer)
    if request.param == "a hop away":
        await mesh.knows(mesh.two, "tiny")
    asked_node = mesh.one if request.param == "here" else mesh.two
    host, port = asked_node.context.listening.http.split(":")
    return Listener(host, int(port))


async def test_a_worker_sees_exactly_the_unambiguous_requests(listener, recorder):
    faults = {}
    for name, (sent, (fewest, most)) in CASES.items():
        recorder.taken.clear()
        heard = await listener.say(sent, within=10, more=0.2 if most else 0.03, patience=0.3)
        seen = len(recorder.taken)
        # Nothing is lost either: each request that reached the worker was answered, and each unambiguous one reached it.
        if not fewest <= seen <= most or seen != heard.statuses.count(200):
            faults[name] = (seen, heard.statuses)
        for request in recorder.taken:
            assert (request.line, request.headers.keys() - HEADERS) == (LINE, set()), name
            assert request.body in (JSON, HIDDEN_BODY), name
    assert faults == {}
    assert recorder.foreign == []


async def test_a_body_of_any_framing_reaches_the_worker_once_with_its_length(listener, recorder):
    long = orjson.dumps({"model": "tiny", "x": "y" * 300_000})
    for framing, body in (
        (b"Content-Length: %d" % len(long), long),
        (b"Transfer-Encoding: chunked", b"%x\r\n%b\r\n0\r\n\r\n" % (len(long), long)),
    ):
        head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        heard = await listener.say(head + framing + b"\r\n\r\n" + body)
        assert heard.statuses == [200]
    assert [request.body for request in recorder.taken] == [long, long]
    assert recorder.foreign == []


async def test_only_listed_headers_of_the_caller_reach_the_worker(listener, recorder):
    lines = "".join(f"{line.format(CANARY)}\r\n" for line in FROM_THE_CALLER)
    head = f"POST /v1/chat/completions?{CANARY} HTTP/1.1\r\nHost: localhost\r\n{lines}"
    sent = f"{head}Content-Type: application/json\r\nContent-Length: {len(JSON)}\r\n\r\n".encode()
    heard = await listener.say(sent + JSON)
    assert heard.statuses == [200]
    (request,) = recorder.taken
    assert request.headers.keys() <= HEADERS
    assert CANARY not in str(request)
