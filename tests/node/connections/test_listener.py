"""Shutdown of a listener, and its bounds."""

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
from router.peers.tls import certificate_of, client_context, server_context, trust
from tests.garbage import living, uncollected

ONE_PLACE = WebSettings(connections=1)
ASKED = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"


class App:
    """Application that answers when the test lets it."""

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
    await server.listen_on(listener)
    return server, listener.getsockname()[1]


async def rest(reader):
    """Return all bytes that still come, however the connection ends."""
    try:
        async with asyncio.timeout(5):
            return await reader.read()
    except (ConnectionError, ssl.SSLError):
        return b""


async def test_closing_ends_idle_connections_at_once_and_busy_ones_after_their_answer(app):
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


@pytest.mark.parametrize("preface", [False, True], ids=["plain", "PROXY headers allowed"])
async def test_a_connection_that_waits_to_be_accepted_is_answered_at_closing(app, preface):
    """It arrives while the event loop is busy with something else."""
    settings = WebSettings(proxy_protocol=preface, trusted_proxies=["192.0.2.1"] * preface)
    server, port = await serving(app, settings=settings)
    app.go.set()
    with socket.create_connection(("127.0.0.1", port)) as late:
        late.sendall(ASKED)
        await server.close(within=5)
        assert answer_on(late).startswith(b"HTTP/1.1 200")


async def test_a_request_that_waits_to_be_read_is_answered_at_closing(app):
    server, port = await serving(app)
    app.go.set()
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(ASKED)
        first = await asyncio.to_thread(connection.recv, 2**16)
        assert b"Connection: close" not in first
        connection.sendall(ASKED)
        await server.close(within=5)
        second = answer_on(connection)
    assert second.startswith(b"HTTP/1.1 200")
    assert b"Connection: close" in second


def answer_on(connection):
    """Return all that was sent on a connection that has ended; raise `ConnectionError` if it was reset."""
    connection.settimeout(5)
    return b"".join(iter(lambda: connection.recv(2**16), b""))


async def test_closing_does_not_wait_for_ever(app):
    server, port = await serving(app)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(ASKED)
    await app.begun.wait()
    async with asyncio.timeout(5):
        await server.close(within=0.01)
        assert await rest(reader) == b""
    writer.close()


async def test_an_idle_connection_makes_room_for_a_new_one(app):
    server, port = await serving(app, settings=ONE_PLACE)
    idle, writer = await asyncio.open_connection("127.0.0.1", port)
    _, two = await asyncio.open_connection("127.0.0.1", port)
    assert await rest(idle) == b""
    writer.close()
    two.close()
    await server.close(within=0)


async def test_a_new_connection_is_refused_with_503_when_all_are_busy(app):
    server, port = await serving(app, settings=ONE_PLACE)
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(ASKED)
    await app.begun.wait()
    refused, two = await asyncio.open_connection("127.0.0.1", port)
    response = await rest(refused)
    assert response.startswith(b"HTTP/1.1 503 ")
    assert b'"too_many_connections"' in response
    writer.close()
    two.close()
    await server.close(within=0)


async def test_answers_have_date_and_server_headers(app):
    app.go.set()
    server, port = await serving(app)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(ASKED)
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    assert "Server: modelvine\r\n" in head
    assert " GMT\r\n" in head.partition("Date: ")[2]
    writer.close()
    await server.close(within=0)


async def test_requests_are_served_over_mutual_tls_and_strangers_get_no_answer(app):
    app.go.set()
    own, other = Identity(bytes([1]) * 32), Identity(bytes([2]) * 32)
    tls = server_context(own)
    trust(tls, certificate_of(other))
    server, port = await serving(app, tls)
    context = client_context(other, certificate_of(own))
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    for _ in range(2):
        writer.write(ASKED)
        assert await reader.readuntil(b"done")
    writer.transport.abort()
    for stranger in (None, client_context(Identity(bytes([3]) * 32), certificate_of(own))):
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=stranger)
        writer.write(ASKED)
        assert b"HTTP" not in await rest(reader)
        writer.transport.abort()
    await server.close(within=0)
    assert not server._connections


async def test_a_connection_that_ended_is_freed_without_the_garbage_collector(app):
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
def test_the_kernel_buffers_little_that_a_caller_does_not_read():
    listener, caller = bind(HostPort("127.0.0.1", 0), "node.http")[0], socket.socket()
    with listener, caller:
        caller.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 * 1024)
        caller.connect(listener.getsockname())
        connection, _ = listener.accept()
        with connection:
            connection.setblocking(False)
            assert connection.send(bytes(4 * UNSENT_BYTES)) < 2 * UNSENT_BYTES
