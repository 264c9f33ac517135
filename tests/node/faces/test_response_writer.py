"""Keep-alive comments for a caller that waits, over every way to the worker, and callers that do not read."""

import asyncio
import socket
import time
from contextlib import suppress
from dataclasses import dataclass

import orjson
import pytest
from aiohttp import web

from node.faces.app import application
from node.faces.response_writer import COMMENT, ResponseWriter
from node.listeners import Listener
from registry.mesh.memory import MemoryNet
from registry.records import Reach
from router.dialects.openai_http.json_answer import LOOKED_AT_BYTES
from router.peers.tls import certificate_of
from tests.node.faces.assembly import World, node, settings_of, until
from tests.workers.raw import raw, take

PATH = "/v1/chat/completions"
CHAT = {"model": "tiny", "messages": []}
STREAM = CHAT | {"stream": True}
SPEECH = {"model": "tiny", "input": "hi"}


@dataclass
class At:
    """A worker at an address."""

    url: str


PAUSE = 0.1
PATIENT = settings_of(keep_alive=PAUSE, first_byte_timeout=5)


@pytest.fixture
async def alone():
    async with node(World(MemoryNet()), PATIENT) as running:
        yield running


@pytest.fixture(params=["local", "hop"])
async def asked(request, worker):
    """Yield a node to ask, whose worker is its own or another node's."""
    world = World(MemoryNet())
    async with node(world, PATIENT) as one, node(world, PATIENT) as two:
        await until(lambda: two.context.peer in one.context.registry.catalog.held)
        await until(lambda: one.context.peer in two.context.registry.catalog.held)
        await one.register(worker)
        await until(lambda: "tiny" in two.context.registry.catalog.offers)
        yield one if request.param == "local" else two


async def test_a_long_prefill_is_bridged_by_comments_and_then_every_byte_arrives(asked, worker):
    worker.fail(delay_first=0.45)
    began = time.monotonic()
    async with asked.http.post(PATH, json=STREAM) as response:
        assert (response.status, response.content_type) == (200, "text/event-stream")
        assert "x-request-id" in response.headers
        body = await response.read()
    comments = body.count(COMMENT)
    assert 3 <= comments <= (time.monotonic() - began) / PAUSE + 1
    assert body == COMMENT * comments + b"".join(worker.events("tiny"))


async def test_a_caller_that_leaves_after_a_comment_cancels_its_request(asked, worker):
    worker.fail(delay_first=60)
    async with asked.http.post(PATH, json=STREAM) as response:
        assert await response.content.readuntil(b"\n\n") == COMMENT
        response.close()
    await until(lambda: worker.hung_up == 1)
    await until(lambda: asked.context.router.in_flight.total() == 0)


async def test_a_wait_in_the_queue_is_bridged_by_comments(alone, worker):
    await alone.register(worker, capacity=1)
    worker.fail(delay_first=0.3)
    async with alone.http.post(PATH, json=STREAM), alone.http.post(PATH, json=STREAM) as second:
        body = await second.read()
    assert body.startswith(COMMENT)
    assert body.endswith(b"data: [DONE]\n\n")


async def test_a_pause_within_a_stream_is_filled_between_whole_events(asked, worker):
    worker.fail(delay_between=0.25)
    async with asked.http.post(PATH, json=STREAM) as response:
        body = await response.read()
    assert COMMENT in body
    assert body.replace(COMMENT, b"") == b"".join(worker.events("tiny"))


async def test_a_comment_is_never_sent_in_the_middle_of_an_event(alone):
    half = b'data: {"model":"tiny","x":"' + b"x" * 1_100_000

    async def serve(reader, writer):
        await take(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n")
        writer.write(b'data: {"model":"tiny"}\n\n' + half)
        await asyncio.sleep(0.5)
        writer.write(b'"}\n\n')

    async with raw(serve) as url:
        await alone.register(At(url))
        async with alone.http.post(PATH, json=STREAM) as response:
            body = await response.read()
    assert body.startswith(b'data: {"model":"tiny"}\n\n' + half + b'"}\n\n')


async def test_a_failure_after_the_first_comment_is_an_event_without_done(alone):
    async def serve(reader, writer):
        await take(reader)
        await asyncio.sleep(0.25)

    async with raw(serve) as url:
        await alone.register(At(url))
        async with alone.http.post(PATH, json=STREAM) as response:
            assert response.status == 200
            body = await response.read()
    event = body.replace(COMMENT, b"")
    assert COMMENT in body
    assert orjson.loads(event.removeprefix(b"data: "))["error"]["code"] == "worker_died"


async def test_a_wait_in_vain_for_a_slot_ends_in_an_event_with_retry_after(worker):
    settings = settings_of(keep_alive=0.1, queue_timeout=0.3)
    worker.fail(delay_first=2)
    async with node(World(MemoryNet()), settings) as running:
        await running.register(worker, capacity=1)
        async with running.http.post(PATH, json=CHAT | {"model": "tiny", "stream": True}) as first:
            async with running.http.post(PATH, json=STREAM) as second:
                body = (await second.read()).replace(COMMENT, b"")
            first.close()
    error = orjson.loads(body.removeprefix(b"data: "))["error"]
    assert error["code"] == "no_capacity"
    assert error["retry_after"] >= 1


@pytest.mark.parametrize(
    ("answer", "said_at_last"),
    [
        (b'{"choices":[{"message":{"content":"hi"},"finish_reason":"stop"}]}', b"[DONE]"),
        # A longer one is not held back to be rewritten.
        (b'{"choices":[],"more":"%b"}' % (b"m" * LOOKED_AT_BYTES), b"did not stream"),
    ],
    ids=["short", "long"],
)
async def test_a_late_answer_in_one_piece_becomes_a_stream_or_an_error_event(
    alone, answer, said_at_last
):
    async def serve(reader, writer):
        await take(reader)
        await asyncio.sleep(0.25)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n" + answer)

    async with raw(serve) as url:
        await alone.register(At(url))
        async with alone.http.post(PATH, json=STREAM) as response:
            body = await response.read()
    assert body.startswith(COMMENT)
    assert said_at_last in body
    assert (b"[DONE]" in body) == (b"hi" in body)


async def test_a_long_wait_for_a_whole_answer_is_silent_and_keeps_its_status(alone, worker):
    worker.fail(delay_headers=0.3, status=500)
    await alone.register(worker)
    for body in (CHAT, {"model": "tiny", "input": "x"}):
        path = PATH if "messages" in body else "/v1/embeddings"
        async with alone.http.post(path, json=body) as response:
            assert response.status == 502
            assert COMMENT not in await response.read()


async def test_an_answer_of_a_second_worker_after_comments_is_one_answer(alone, worker):
    async def serve(reader, writer):
        await take(reader)
        await asyncio.sleep(0.25)

    async with raw(serve) as url:
        for cid, worker_url in (("1", url), ("2", worker.url)):
            await alone.register(At(worker_url), cid=cid)
        for _ in range(4):
            async with alone.http.post(PATH, json=STREAM) as response:
                body = await response.read()
            assert body.replace(COMMENT, b"") == b"".join(worker.events("tiny"))


async def test_a_keep_alive_of_zero_sends_no_comments(worker):
    worker.fail(delay_first=0.3)
    async with node(World(MemoryNet()), settings_of(keep_alive=0)) as running:
        await running.register(worker)
        async with running.http.post(PATH, json=STREAM) as response:
            assert await response.read() == b"".join(worker.events("tiny"))


@pytest.mark.parametrize("way", ["local", "hop", "pipe"])
@pytest.mark.parametrize("kind", [b"text/event-stream", b"audio/wav"])
async def test_a_caller_that_does_not_read_slows_the_worker_down_and_is_cut_off(kind, way):
    event = b'data: {"model":"tiny"}\n\n' * 3_000
    written, freed = [0], asyncio.Event()

    async def serve(reader, writer):
        head = await reader.readuntil(b"\r\n\r\n")
        if head.startswith(b"POST"):
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: %b\r\n\r\n" % kind)
            with suppress(ConnectionError):
                while written[0] < 200_000_000:
                    writer.write(event)
                    await writer.drain()
                    written[0] += len(event)
            freed.set()

    world, settings = World(MemoryNet()), settings_of(stall_timeout=0.5)
    async with raw(serve) as url, node(world, settings) as one, node(world, settings) as two:
        await until(lambda: two.context.peer in one.context.registry.catalog.held)
        await until(lambda: one.context.peer in two.context.registry.catalog.held)
        if way == "pipe":
            # Nothing answers at the address that the node announces.
            reach = Reach(links=("127.0.0.1:1",), certificate=certificate_of(one.identity))
            await one.context.registry.change_addresses(reach)
        await one.register(At(url))
        await until(lambda: "tiny" in two.context.registry.catalog.offers)
        asked_node = one if way == "local" else two
        host, port = asked_node.context.listening.http.split(":")
        reader, writer = await asyncio.open_connection(host, int(port), limit=1024)
        path, fields = (PATH, STREAM) if b"event" in kind else ("/v1/audio/speech", SPEECH)
        body = orjson.dumps(fields)
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        try:
            await reader.readexactly(1000)
            await asyncio.wait_for(freed.wait(), 10)
        finally:
            writer.transport.abort()
        await until(lambda: asked_node.context.router.in_flight.total() == 0)
        await until(lambda: one.context.router.in_flight.total() == 0)
        rows = asked_node.context.metrics.counts().requests
        assert [row.ended for row in rows] == ["499"]
    # The worker could write what fits the buffers of the sockets, and some hundred KiB of ours.
    assert written[0] < 50_000_000


async def long(request):
    """Answer with more bytes at once than sockets hold."""
    out = ResponseWriter(request, patience=0.3)
    await out.begin(200, {"content-type": "text/plain"}, length=12_000_000)
    await out.end(b"x" * 12_000_000)
    return out.response


async def test_a_caller_that_reads_a_long_answer_slowly_is_not_cut_off():
    listener = socket.create_server(("127.0.0.1", 0))
    server = Listener(application([web.get("/", long)], lambda request: None))
    await server.listen_on(listener)
    reader, writer = await asyncio.open_connection(*listener.getsockname(), limit=64 * 1024)
    writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
    await reader.readuntil(b"\r\n\r\n")
    left = 12_000_000
    while left:
        piece = await reader.read(200_000)
        assert piece
        left -= len(piece)
        await asyncio.sleep(0.01)
    writer.close()
    await server.close(within=1)
