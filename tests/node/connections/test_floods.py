"""Floods of one connection, or of a few: what they may pile up, and how long other callers wait meanwhile.

Callers send as fast as the socket takes it; some read their answers, some do not.
"""

import asyncio
import socket
import time
import tracemalloc
from contextlib import asynccontextmanager, suppress

import pytest
from aiohttp import web

from node.faces.app import application
from node.faces.errors import FaceError
from node.faces.request_reader import read_raw
from node.listeners import Listener
from registry.signing import Identity
from router.peers.tls import certificate_of, client_context, server_context, trust
from tests.swarm.waiting import SLACK

MIB = 1024 * 1024
SECONDS = 0.25
"""How long a flood lasts."""

MOST = 2 * MIB
"""Bytes that one connection may pile up, those of the measurement included."""

HOST = b"Host: a\r\n"
GET = b"GET / HTTP/1.1\r\n" + HOST + b"\r\n"
SLOW = b"POST /slow HTTP/1.1\r\n" + HOST + b"Content-Length: 2\r\n\r\n{}"
LONG_HEAD = b"GET / HTTP/1.1\r\n" + HOST + b"".join(b"x-%d: y\r\n" % n for n in range(100))
CHUNKED = b"POST /slow HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n"
OFFER = b"GET / HTTP/1.1\r\n" + HOST + b"Connection: Upgrade\r\nUpgrade: h2c\r\n\r\n"
BODY = b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: 204800\r\n\r\n" + b"x" * 204800
AWAITED = (
    b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: 1\r\nExpect: 100-continue\r\n\r\n" + b"x"
)


def floods():
    """Yield a name, what is sent at first, and what is sent again and again after it."""
    yield "small requests", b"", GET
    yield "small requests behind slow ones", SLOW * 400, GET
    yield "slow requests", b"", SLOW
    yield "long heads behind a slow request", SLOW, LONG_HEAD + b"\r\n"
    yield "bodies behind a slow request", SLOW, BODY
    yield "offers of another protocol", b"", OFFER
    yield "offers of another protocol behind slow requests", SLOW * 400, OFFER
    yield "a body in small chunks", CHUNKED, b"2\r\nxx\r\n"
    yield "a body in small chunks behind a slow request", SLOW + CHUNKED, b"2\r\nxx\r\n"
    yield "chunks with long extensions", CHUNKED, b"1;" + b"e" * 1000 + b"\r\nx\r\n"
    yield "bodies that wait to be asked for", b"", AWAITED
    yield "what is no request behind slow ones", SLOW * 400, b"x" * 1000


FLOODS = pytest.mark.parametrize(
    ("first", "then"), [pytest.param(*said, id=name) for name, *said in floods()]
)
READS = pytest.mark.parametrize("reads", [True, False], ids=["read", "unread"])


async def answer(request):
    """Answer at once, with some bytes, or after 20 ms."""
    if request.path == "/slow":
        await asyncio.sleep(0.02)
    with suppress(FaceError):
        await read_raw(request, limit=MIB, idle=5)
    return web.Response(body=b"x" * 500)


def made():
    routes = [web.route(method, "/{tail:.*}", answer) for method in ("GET", "POST")]
    return application(routes, lambda request: None)


@pytest.fixture
async def place():
    listener = socket.create_server(("127.0.0.1", 0))
    server = Listener(made())
    await server.listen_on(listener)
    yield listener.getsockname()
    await server.close(within=0)


@asynccontextmanager
async def flooded(address, first, then, *, reads, count=1):
    """Send from `count` connections until the block is left."""
    loop = asyncio.get_running_loop()
    again = memoryview(then * (MIB // len(then) + 1))

    async def send(caller):
        with suppress(OSError):
            await loop.sock_sendall(caller, first)
            while True:
                await loop.sock_sendall(caller, again)

    async def read(caller):
        buffer = bytearray(64 * 1024)
        with suppress(OSError):
            while await loop.sock_recv_into(caller, buffer):
                pass

    callers = [socket.create_connection(address) for _ in range(count)]
    for caller in callers:
        caller.setblocking(False)
    works = [send(caller) for caller in callers]
    if reads:
        works += map(read, callers)
    tasks = [asyncio.ensure_future(work) for work in works]
    yield
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    for caller in callers:
        caller.close()


@READS
@FLOODS
async def test_the_memory_that_one_connection_takes_is_bounded(place, first, then, reads):
    async with flooded(place, first, then, reads=reads):
        tracemalloc.start()
        try:
            await asyncio.sleep(SECONDS)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert peak < MOST


@READS
@FLOODS
async def test_an_honest_caller_waits_little_while_other_connections_flood(
    place, first, then, reads
):
    waits = []
    async with flooded(place, first, then, reads=reads, count=20):
        until = time.monotonic() + SECONDS
        while time.monotonic() < until:
            # CPU time of this process: other processes of the machine are no part of the flood.
            began = time.process_time()
            reader, writer = await asyncio.open_connection(*place)
            writer.write(GET)
            await reader.readuntil(b"\r\n\r\n")
            writer.transport.abort()
            waits.append(time.process_time() - began)
            await asyncio.sleep(0.02)
    assert max(waits) < 0.25 * SLACK


@READS
async def test_the_memory_that_one_connection_takes_over_tls_is_bounded(reads):
    own, other = Identity(bytes([1]) * 32), Identity(bytes([2]) * 32)
    tls = server_context(own)
    trust(tls, certificate_of(other))
    listener = socket.create_server(("127.0.0.1", 0))
    server = Listener(made(), tls=tls)
    await server.listen_on(listener)
    context = client_context(other, certificate_of(own))
    reader, writer = await asyncio.open_connection(*listener.getsockname(), ssl=context)
    again = GET * 1000

    async def send():
        writer.write(SLOW * 400)
        while True:
            writer.write(again)
            await writer.drain()

    async def read():
        while await reader.read(64 * 1024):
            pass

    if not reads:
        writer.transport.pause_reading()
    tracemalloc.start()
    tasks = [asyncio.ensure_future(work) for work in (send(), *([read()] if reads else []))]
    try:
        await asyncio.sleep(SECONDS)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    writer.transport.abort()
    await server.close(within=0)
    assert peak < MOST
