"""500 slow connections: honest callers are answered meanwhile, and the slow connections are cut off."""

import asyncio
import re
import time
from contextlib import AsyncExitStack, suppress

import pytest

from node.config.web import WebSettings
from registry.mesh.memory import MemoryNet
from tests.hostile.refused import JSON, post
from tests.hostile.wire import Listener
from tests.node.faces.assembly import World, node, settings_of
from tests.node.observe.test_metrics import SIZES

SLOW = 500
PLACES = 200
SLOWLY = {
    "nothing": b"",
    "half a line": b"POST /v1/chat",
    "half a head": b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nX: ",
    "empty lines": b"\r\n\r\n",
    "one request, then nothing": b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n",
}


@pytest.fixture
async def small(worker):
    """Yield a node with few places, which waits a second for a head and two for a body."""
    limits = WebSettings(connections=PLACES, head_timeout=1.0, idle_timeout=1.0)
    async with node(World(MemoryNet()), settings_of(web=limits, idle_timeout=2.0)) as running:
        await running.register(worker)
        yield running


def listener_of(running) -> Listener:
    host, port = running.context.listening.http.split(":")
    return Listener(host, int(port))


async def hang_up(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with suppress(ConnectionError):
        await writer.wait_closed()


async def honest(listener: Listener, *, times: int = 40) -> None:
    for _ in range(times):
        assert (await listener.say(post(JSON))).statuses == [200]


@pytest.mark.parametrize("kind", SLOWLY)
async def test_slow_heads_and_idle_connections_block_no_caller_and_are_ended(small, kind):
    listener = listener_of(small)
    began = time.monotonic()
    async with AsyncExitStack() as closing:
        slow = []
        for _ in range(SLOW):
            reader, writer = await listener.connect()
            closing.push_async_callback(hang_up, writer)
            writer.write(SLOWLY[kind])
            slow.append(reader)
        await honest(listener)
        async with asyncio.timeout(10):
            for reader in slow:
                try:
                    while await reader.read(4096):
                        pass
                except ConnectionError:
                    continue
    assert time.monotonic() - began < 10
    text = small.context.metrics.text(SIZES).decode()
    assert re.search(r'modelvine_connection_events_total{event="evicted_by_all"} [1-9]', text)


async def test_the_minimum_rate_of_a_body_is_a_setting(worker):
    # 10 kB every 0.4 s are quick enough by default.
    body = JSON.ljust(40_000)
    drops = [
        post(b"", length=b"40000"),
        *(body[start : start + 10_000] for start in range(0, 40_000, 10_000)),
    ]
    for rate, status in ((8 * 1024, 200), (1_000_000, 408)):
        settings = settings_of(web=WebSettings(min_body_rate=rate), idle_timeout=1.0)
        async with node(World(MemoryNet()), settings) as running:
            await running.register(worker)
            heard = await listener_of(running).say(*drops, pause=0.4)
            assert heard.statuses == [status]


async def test_a_body_that_comes_a_byte_at_a_time_is_refused_in_time(small):
    listener = listener_of(small)
    head = post(b"", length=b"100000")
    # Never silent for long, but two seconds are over before the last byte.
    drops = [head, *(b"{" for _ in range(24))]
    async with asyncio.TaskGroup() as group:
        slow = [group.create_task(listener.say(*drops, pause=0.1, within=20)) for _ in range(100)]
        await honest(listener)
    assert [task.result().statuses for task in slow] == [[408]] * 100
