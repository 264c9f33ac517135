"""The end of a listener, and its bounds."""

import asyncio
import socket
import ssl

import pytest
from aiohttp import web

from node.config.addresses import HostPort
from node.config.web import WebSettings
from node.connections import CallerConnection
from node.faces.app import application
from node.listeners import UNSENT_BYTES, Listener, bind
from registry.signing import Identity
from router.peers.certificate import certificate_of, client_context, server_context, trust
from tests.garbage import living, uncollected

ONE_PLACE = WebSettings(connections=1)
ASKED = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"


class App:
    """Answers when it is told to."""

    def __init__(self):
        self.go, self.begun = asyncio.Event(), asyncio.Event()

    async def answer(self, request):
        self.begun.set()
        await self.go.wait()
        return web.Response(body=b"done")


@pytest.fixture
async def app():
    return App()


async def serving(app, tls=None, settings=None):
    listener = socket.create_server(("127.0.0.1", 0))
    made = application([web.get("/", app.answer)], lambda request: None)
    server = Listener(made, settings, tls=tls)
    await server.on(listener)
    return server, listener.getsockname()[1]


async def rest(reader):
    """Whatever still comes, however it ends."""
    try:
        async with asyncio.timeout(5):
            return await reader.read()
    except (ConnectionError, ssl.SSLError):
        return b""


async def test_closing_ends_idle_connections_at_once_and_busy_ones_with_their_answer(app):
    server, port = await serving(app)
    idle, nobody = await asyncio.open_connection("127.0.0.1", port)
    busy, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(ASKED)
    await app.begun.wait()
    async with asyncio.timeout(5), asyncio.TaskGroup() as group:
        closing = group.create_task(server.close(within=60))
        assert await idle.read() == b""
        assert not closing.done()
        app.go.set()
        answer = await busy.read()
    assert b"Connection: close" in answer
    assert answer.endswith(b"done")
    with pytest.raises(OSError, match="Connect"):
        await asyncio.open_connection("127.0.0.1", port)
    nobody.close()
    writer.close()


async def test_closing_does_not_wait_for_ever(app):
    server, port = await serving(app)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(ASKED)
    await app.begun.wait()
    async with asyncio.timeout(5):
        await server.close(within=0.01)
        assert await rest(reader) == b""
    writer.close()


async def test_who_is_idle_makes_room(app):
    server, port = await serving(app, settings=ONE_PLACE)
    idle, one = await asyncio.open_connection("127.0.0.1", port)
    _, two = await asyncio.open_connection("127.0.0.1", port)
    assert await rest(idle) == b""
    one.close()
    two.close()
    await server.close(within=0)


async def test_who_comes_when_all_are_busy_is_told_so(app):
    server, port = await serving(app, settings=ONE_PLACE)
    _, one = await asyncio.open_connection("127.0.0.1", port)
    one.write(ASKED)
    await app.begun.wait()
    refused, two = await asyncio.open_connection("127.0.0.1", port)
    said = await rest(refused)
    assert said.startswith(b"HTTP/1.1 503 ")
    assert b'"too_many_connections"' in said
    one.close()
    two.close()
    await server.close(within=0)


async def test_answers_are_dated_and_named(app):
    app.go.set()
    server, port = await serving(app)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(ASKED)
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    assert "Server: modelvine\r\n" in head
    assert " GMT\r\n" in head.partition("Date: ")[2]
    writer.close()
    await server.close(within=0)


async def test_over_tls_the_same_is_served_and_what_speaks_none_is_told_nothing(app):
    app.go.set()
    ours, theirs = Identity(bytes([1]) * 32), Identity(bytes([2]) * 32)
    tls = server_context(ours)
    trust(tls, certificate_of(theirs))
    server, port = await serving(app, tls)
    context = client_context(theirs, certificate_of(ours))
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    for _ in range(2):
        writer.write(ASKED)
        assert await reader.readuntil(b"done")
    writer.transport.abort()
    for stranger in (None, client_context(Identity(bytes([3]) * 32), certificate_of(ours))):
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=stranger)
        writer.write(ASKED)
        assert b"HTTP" not in await rest(reader)
        writer.transport.abort()
    await server.close(within=0)
    assert not server._connections


async def test_a_connection_that_ended_is_gone_before_the_garbage_collector_comes(app):
    app.go.set()
    server, port = await serving(app)
    with uncollected():
        for _ in range(5):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(ASKED.replace(b"Host", b"Connection: close\r\nHost"))
            assert (await rest(reader)).endswith(b"done")
            writer.close()
            await writer.wait_closed()
        await asyncio.sleep(0)
        left = living(CallerConnection), living(web.Request)
    await server.close(within=0)
    assert left == (0, 0)


@pytest.mark.skipif(not hasattr(socket, "TCP_NOTSENT_LOWAT"), reason="the system knows no bound")
def test_the_kernel_takes_little_of_what_its_caller_does_not_read():
    listener, caller = bind(HostPort("127.0.0.1", 0), "node.http")[0], socket.socket()
    with listener, caller:
        caller.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 * 1024)
        caller.connect(listener.getsockname())
        connection, _ = listener.accept()
        with connection:
            connection.setblocking(False)
            assert connection.send(bytes(4 * UNSENT_BYTES)) < 2 * UNSENT_BYTES
