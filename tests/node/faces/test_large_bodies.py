"""Large bodies, more than there is room for: one too many is refused at once, small ones pass, and room is freed again."""

import asyncio
import gzip
import socket

import orjson
import pytest

from node.config.web import WebSettings
from registry.mesh.memory import MemoryNet
from tests.hostile.refused import post
from tests.hostile.wire import Listener
from tests.node.faces.assembly import World, node, raw, settings_of, told, until

PATH = "/v1/chat/completions"
JSON = {"Content-Type": "application/json"}


def chat(size: int) -> bytes:
    """Return a chat of about `size` bytes."""
    messages = [{"role": "user", "content": "x" * size}]
    return orjson.dumps({"model": "tiny", "messages": messages})


LARGE, SMALL = chat(200_000), chat(60_000)


@pytest.fixture
async def small(worker):
    """Yield a node with room for one large body."""
    limits = WebSettings(max_bodies_bytes=300_000)
    async with node(World(MemoryNet()), settings_of(web=limits)) as running:
        await running.register(worker)
        yield running


def ask(running, body=LARGE, **headers):
    return running.http.post(PATH, data=body, headers=JSON | headers)


@pytest.fixture
async def full(small, worker):
    """Yield the same node while a large body takes that room."""
    worker.fail(hang=True)
    async with asyncio.TaskGroup() as group:
        held = group.create_task(told(ask(small)))
        await until(lambda: worker.received)
        worker.fail()
        yield small
        held.cancel()


async def test_one_body_too_many_is_refused_before_it_is_sent(full, worker):
    head = post(b"", length=b"200000")
    answer = await raw(full, head)
    assert b" 503 " in answer
    assert b"\r\nretry-after: " in answer.lower()
    assert b'"no_room_for_body"' in answer
    assert len(worker.received) == 1


async def test_one_body_too_many_of_unknown_length_is_refused_while_it_is_sent(full, worker):
    async def pieces():
        for start in range(0, len(LARGE), 10_000):
            yield LARGE[start : start + 10_000]

    status, payload = await told(ask(full, pieces()))
    assert (status, payload["error"]["code"]) == (503, "no_room_for_body")
    assert len(worker.received) == 1


async def test_a_body_that_is_large_only_when_decompressed_counts_too(full, worker):
    packed = {"Content-Encoding": "gzip"}
    status, payload = await told(ask(full, gzip.compress(LARGE), **packed))
    assert (status, payload["error"]["code"]) == (503, "no_room_for_body")
    assert len(worker.received) == 1


async def test_a_caller_that_reads_no_answers_and_leaves_frees_its_room(small, worker):
    text = b"x" * 31_000
    worker.fail(answer=b'{"choices":[{"message":{"role":"assistant","content":"%b"}}]}' % text)
    host, port = small.context.listening.http.split(":")
    for _ in range(3):
        assert (await told(ask(small)))[0] == 200
        wire = socket.socket()
        wire.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        wire.setblocking(False)
        await asyncio.get_running_loop().sock_connect(wire, (host, int(port)))
        _, writer = await asyncio.open_connection(sock=wire, limit=1024)
        writer.transport.pause_reading()
        writer.write(post(LARGE) * 400)
        # Until the answers fill the buffers between, and the node takes no further call.
        seen = -1
        while seen != len(worker.received):
            seen = len(worker.received)
            await asyncio.sleep(0.3)
        assert seen > 10
        writer.transport.abort()
        await until(lambda: not small.context.router.in_flight)
        await asyncio.sleep(0.1)
    assert (await told(ask(small)))[0] == 200


async def test_small_bodies_always_pass(full):
    answers = await asyncio.gather(*(told(ask(full, SMALL)) for _ in range(20)))
    assert {status for status, _ in answers} == {200}


async def test_an_answered_request_frees_its_room(small):
    for _ in range(5):
        assert (await told(ask(small)))[0] == 200


async def test_refused_requests_and_callers_that_leave_free_their_room(small, worker):
    for _ in range(3):
        assert (await told(ask(small, LARGE[:-1])))[0] == 400
    worker.fail(hang=True)
    for left in (1, 2, 3):
        async with asyncio.TaskGroup() as group:
            leaving = group.create_task(told(ask(small)))
            await until(lambda left=left: len(worker.received) == left)
            leaving.cancel()
        await until(lambda left=left: worker.hung_up == left)
    worker.fail()
    assert (await told(ask(small)))[0] == 200


async def test_announcing_large_bodies_without_sending_them_takes_no_room(small):
    host, port = small.context.listening.http.split(":")
    listener = Listener(host, int(port))
    announced = [await listener.connect() for _ in range(5)]
    for _, writer in announced:
        writer.write(post(b"", length=b"200000"))
    assert (await told(ask(small)))[0] == 200
    for _, writer in announced:
        writer.transport.abort()
