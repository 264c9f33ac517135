"""Large bodies, more than there is room for: who comes too late is told at once, small ones pass, and room comes back."""

import asyncio
import gzip

import orjson
import pytest

from node.config.web import WebSettings
from registry.mesh.memory.network import MemoryNet
from tests.hostile.refused import post
from tests.hostile.wire import Listener
from tests.node.faces.assembly import World, node, raw, settings_of, told, until

PATH = "/v1/chat/completions"
JSON = {"Content-Type": "application/json"}


def chat(size: int) -> bytes:
    """A chat of about so many bytes."""
    messages = [{"role": "user", "content": "x" * size}]
    return orjson.dumps({"model": "tiny", "messages": messages})


LARGE, SMALL = chat(200_000), chat(60_000)


@pytest.fixture
async def small(worker):
    """A node that holds one large body, whose worker does not answer."""
    limits = WebSettings(max_bodies_bytes=300_000)
    async with node(World(MemoryNet()), settings_of(web=limits)) as running:
        await running.register(worker)
        yield running


def ask(running, body=LARGE, **headers):
    return running.http.post(PATH, data=body, headers=JSON | headers)


@pytest.fixture
async def full(small, worker):
    """The same while it answers one."""
    worker.fail(hang=True)
    async with asyncio.TaskGroup() as group:
        held = group.create_task(told(ask(small)))
        await until(lambda: worker.received)
        worker.fail()
        yield small
        held.cancel()


async def test_one_more_is_refused_before_it_is_sent(full, worker):
    head = post(b"", length=b"200000")
    answer = await raw(full, head)
    assert b" 503 " in answer
    assert b"\r\nretry-after: " in answer.lower()
    assert b'"no_room_for_body"' in answer
    assert len(worker.received) == 1


async def test_one_more_that_does_not_say_how_long_it_is_is_refused_on_its_way(full, worker):
    async def pieces():
        for at in range(0, len(LARGE), 10_000):
            yield LARGE[at : at + 10_000]

    status, said = await told(ask(full, pieces()))
    assert (status, said["error"]["code"]) == (503, "no_room_for_body")
    assert len(worker.received) == 1


async def test_what_is_large_only_when_it_is_unpacked_counts_too(full, worker):
    packed = {"Content-Encoding": "gzip"}
    status, said = await told(ask(full, gzip.compress(LARGE), **packed))
    assert (status, said["error"]["code"]) == (503, "no_room_for_body")
    assert len(worker.received) == 1


async def test_small_ones_always_pass(full):
    answers = await asyncio.gather(*(told(ask(full, SMALL)) for _ in range(20)))
    assert {status for status, _ in answers} == {200}


async def test_who_is_answered_makes_room(small):
    for _ in range(5):
        assert (await told(ask(small)))[0] == 200


async def test_who_is_refused_and_who_leaves_make_room(small, worker):
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


async def test_who_announces_a_large_body_and_sends_none_keeps_nobody_out(small):
    host, port = small.context.listening.http.split(":")
    listener = Listener(host, int(port))
    announced = [await listener.connect() for _ in range(5)]
    for _, writer in announced:
        writer.write(post(b"", length=b"200000"))
    assert (await told(ask(small)))[0] == 200
    for _, writer in announced:
        writer.transport.abort()
