"""Failures over a hop: they arrive as the worker's node reports them, with status, codes, message, parameter, Retry-After."""

from contextlib import AsyncExitStack

import orjson
import pytest

from node.faces.errors import TABLE
from registry.mesh.memory import MemoryNet
from tests.node.faces.assembly import Pair, World, node, settings_of, until
from tests.node.faces.test_hostile_peer import hostile
from tests.workers import openai_worker, tgi_worker
from tests.workers.raw import endless

CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}
PATH = "/v1/chat/completions"
STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"


@pytest.fixture
async def pair():
    """Yield two nodes; the first waits half a second for its workers, the second longer."""
    world = World(MemoryNet())
    hasty = settings_of(first_byte_timeout=0.5, queue_timeout=0.3, attempts=1)
    async with AsyncExitStack() as closing:
        one = await closing.enter_async_context(node(world, hasty))
        two = await closing.enter_async_context(node(world, settings_of(queue_timeout=0.3)))
        await until(lambda: two.context.peer in one.context.registry.catalog.held)
        yield Pair(one, two)


async def refused(running, body, path=PATH):
    async with running.http.post(path, json=body) as response:
        return response.status, response.headers.get("retry-after"), await response.json()


LONG = b"x" * 40_000
FAILURES = {
    "silent": ({"hang": True}, 504, 1005),
    "failed": ({"status": 500}, 502, 1007),
    "nonsense": ({"garbage": True}, 502, 1007),
    "code": ({"code": 7}, 502, 1007),
    "locked": ({"status": 401}, 502, 1007),
    "loading": ({"status": 503, "refusal": b'{"error":"loading","estimated_time":9}'}, 503, 1017),
    "full": ({"status": 429, "retry_after": "7"}, 429, 1017),
    "refused": ({"status": 400, "refusal": b'{"error":{"message":"no","type":"t","code":400,"n":[1]}}'}, 400, 1007),
    "unprocessable": ({"status": 422, "refusal": b'{"message":"a \\u0001 b"}'}, 422, 1007),
    "too large": ({"status": 413, "refusal": b'{"error":{"message":"%b"}}' % LONG}, 413, 1007),
}  # fmt: skip


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("way", FAILURES)
async def test_a_failure_is_the_same_over_a_hop(pair, way, stream):
    faults, status, code = FAILURES[way]
    answers = []
    async with openai_worker.running() as first, openai_worker.running() as second:
        # One worker for each node, since a worker that has failed is not asked again at once.
        for worker, name, asked_node in ((first, "a", pair.one), (second, "b", pair.two)):
            await pair.one.register(worker, model=name)
            await pair.knows(pair.two, name)
            worker.fail(**faults)
            answers.append(await refused(asked_node, CHAT | {"model": name, "stream": stream}))
    here, there = answers
    assert (here[0], here[2]["code"]) == (status, code)
    assert there == here


async def test_an_unreachable_worker_is_reported_the_same_over_a_hop(pair, worker):
    await pair.one.register(worker, api="http://127.0.0.1:1")
    await pair.knows(pair.two, "tiny")
    here, there = [await refused(running, CHAT) for running in (pair.one, pair.two)]
    assert (here[0], here[2]["error"]["code"]) == (503, "worker_unreachable")
    assert there == here


async def test_an_unsupported_parameter_is_named_the_same_over_a_hop(pair):
    async with tgi_worker.running() as worker:
        await pair.one.register(worker, dialect="tgi")
        await pair.knows(pair.two, "tiny")
        fields = CHAT | {"guided_choice": ["a", "b"]}
        here, there = [await refused(running, fields) for running in (pair.one, pair.two)]
    assert (here[0], here[2]["error"]["param"]) == (400, "guided_choice")
    assert there == here


async def test_a_failure_in_anthropics_protocol_is_the_same_over_a_hop(pair, worker):
    await pair.one.register(worker)
    await pair.knows(pair.two, "tiny")
    worker.fail(hang=True)
    fields = CHAT | {"max_tokens": 3}
    here, there = [
        await refused(running, fields, "/v1/messages") for running in (pair.one, pair.two)
    ]
    del here[2]["request_id"], there[2]["request_id"]
    assert here[0] == there[0]
    assert here[2] == there[2]


def answer(status: int, content: object, more: bytes = b"") -> bytes:
    body = content if isinstance(content, bytes) else orjson.dumps(content)
    head = b"HTTP/1.1 %d X\r\nContent-Type: application/json\r\n%bContent-Length: %d\r\n\r\n"
    return head % (status, more, len(body)) + body


def failure(**error) -> dict:
    return {"code": 1005, "message": "m", "error": {"message": "m", "type": "t", **error}}


NESTED = b'{"code":1007,"message":"m","error":{"message":"m","x":%b1%b}}' % (b"[" * 500, b"]" * 500)


@pytest.mark.parametrize(
    ("said", "status", "message"),
    [
        (answer(504, failure(code="worker_timeout")), 504, "m"),
        (answer(504, b"<html>"), 502, "the other node answered with status 504"),
        (answer(504, {"error": "m"}), 502, "the other node answered with status 504"),
        (answer(504, failure(x="y" * 500_000)), 502, "the other node answered with status 504"),
        (answer(503, b"[" * 100_000), 503, "the other node answered with status 503"),
        (answer(400, NESTED), 400, "the worker refused the request with status 400"),
        (answer(502, NESTED), 502, "the other node answered with status 502"),
        (answer(403, failure(code="not_allowed")), 503, "the other node does not admit this one now"),
        (answer(599, failure(code="x")), 502, "the worker answered with status 599"),
        (STREAM + b': \n\ndata: {"error":{"message":"m","code":"worker_timeout"}}\n\n', 504, "m"),
        (STREAM + b': \n\ndata: {"error":{"message":"m","code":"not_allowed"}}\n\n', 502, "m"),
    ],
    ids=["good", "HTML", "a text", "long", "deep", "nested refusal", "nested", "denied", "odd", "stream", "stream, denied"],
)  # fmt: skip
async def test_only_failures_of_workers_are_taken_over_from_a_peer(
    mesh, worker, said, status, message
):
    async with hostile(mesh, worker, endless(said)) as running:
        got, _, body = await refused(running, CHAT | {"stream": said.startswith(STREAM)})
    assert (got, body["message"], body["error"]["message"]) == (status, message, message)
    assert body["code"] in {row.code for row in TABLE.values()}


@pytest.mark.parametrize("after", [b"99999999999", b"nan", b"-1", b"inf", b"soon", b"1.2"])
async def test_the_retry_after_of_a_peer_is_at_most_an_hour(mesh, worker, after):
    response = answer(429, failure(code="no_capacity"), b"Retry-After: %b\r\n" % after)
    async with hostile(mesh, worker, endless(response)) as running:
        got, seconds, _ = await refused(running, CHAT)
    assert got == 429
    assert 1 <= int(seconds) <= 3600


@pytest.mark.parametrize(
    "error",
    [
        {"type": {"a": 1}, "code": ["x"], "param": {}},
        {"type": 5, "code": None, "param": 1.5},
        {"type": "t", "code": "x" * 10_000},
    ],
)
@pytest.mark.parametrize("path", [PATH, "/v1/messages", "/v1/responses", "/tgi/p/tiny/generate"])
async def test_odd_error_objects_of_a_peer_harm_no_face(mesh, worker, error, path):
    fields = CHAT | {"max_tokens": 3, "input": "hi", "inputs": "hi"}
    if path.endswith("responses"):
        del fields["messages"], fields["max_tokens"]
    async with hostile(mesh, worker, endless(answer(502, failure(**error)))) as running:
        got, _, body = await refused(running, fields, path)
    assert got in (424, 500, 502)
    assert body["error"]
