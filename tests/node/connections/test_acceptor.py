"""Connections that begin with a proxy's preamble instead of a request, over real sockets, before TLS as well."""

import asyncio
import socket
import ssl
from contextlib import asynccontextmanager, suppress

import pytest
from aiohttp import web

from node.config.web import WebSettings
from node.connection_limits import ConnectionCounts
from node.faces.app import application
from node.listeners import Listener
from node.tls import Certificate
from tests import certificates
from tests.node.faces.assembly import until

ASKED = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
TOLD = b"PROXY TCP4 192.0.2.7 10.0.0.1 5 80\r\n"
PROXY = "127.0.0.2"
"""Address from which the proxy of these tests connects; other callers connect from 127.0.0.1."""


async def tell(request):
    return web.json_response([request.protocol.address, request.protocol.owner])


@asynccontextmanager
async def served(folder=None, **options):
    settings = {"trusted_proxies": (PROXY,), "proxy_protocol": True, "head_timeout": 0.5, **options}
    listener, counts = socket.create_server(("127.0.0.1", 0)), ConnectionCounts()
    files = certificates.write(folder) if folder else None
    app = application([web.get("/", tell)], lambda request: None)
    certificate = Certificate(*files) if files else None
    server = Listener(app, WebSettings(**settings), counts, certificate=certificate)
    await server.listen_on(listener)
    try:
        yield listener.getsockname()[1], counts, files
    finally:
        await server.close(within=0.1)


async def opened(port, caller=PROXY):
    return await asyncio.open_connection("127.0.0.1", port, local_addr=(caller, 0))


async def answer(port, *sent, caller=PROXY):
    """Return the status line and body of one response, or `[CUT]` and the bytes that came before the connection ended."""
    reader, writer = await opened(port, caller)
    try:
        for piece in sent:
            writer.write(piece)
            await asyncio.sleep(0.02)
        async with asyncio.timeout(5):
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r")[0])
            return head.split(b"\r\n")[0], await reader.readexactly(length)
    except (asyncio.IncompleteReadError, ConnectionError) as error:
        return b"[CUT]", getattr(error, "partial", b"")
    finally:
        writer.transport.abort()


@pytest.mark.parametrize("cut", [0, 1, 20, len(TOLD)])
async def test_a_trusted_proxy_states_the_callers_address(cut):
    sent = TOLD + ASKED
    async with served() as (port, _, _):
        status, body = await answer(port, *filter(None, (sent[:cut], sent[cut:])))
    assert (status, body) == (b"HTTP/1.1 200 OK", b'["192.0.2.7", null]')


async def test_a_connection_of_the_proxy_itself_has_no_local_owner():
    async with served() as (port, _, _):
        _, body = await answer(port, b"PROXY UNKNOWN\r\n" + ASKED)
    assert body == b'["127.0.0.2", null]'


@pytest.mark.parametrize("sent", [ASKED, b"PROXY nonsense\r\n" + ASKED, b"PROXY ", b""])
async def test_a_connection_of_a_trusted_proxy_without_a_preamble_is_closed(sent):
    async with served() as (port, counts, _):
        assert await answer(port, sent) == (b"[CUT]", b"")
        assert counts.open == 0


async def test_an_untrusted_address_is_served_as_usual_and_its_preamble_is_refused():
    async with served() as (port, _, _):
        status, body = await answer(port, ASKED, caller="127.0.0.1")
        assert (status, body[:13]) == (b"HTTP/1.1 200 OK", b'["127.0.0.1",')
        status, _ = await answer(port, TOLD + ASKED, caller="127.0.0.1")
        assert status == b"HTTP/1.1 400 Bad Request"


async def test_a_preamble_is_refused_where_none_is_configured():
    async with served(proxy_protocol=False) as (port, _, _):
        assert (await answer(port, TOLD + ASKED))[0] == b"HTTP/1.1 400 Bad Request"
        assert (await answer(port, ASKED))[1][:13] == b'["127.0.0.2",'


async def test_the_preamble_comes_before_the_tls_handshake(tmp_path):
    async with served(tmp_path) as (port, _, files):
        trusting = ssl.create_default_context(cafile=files[0])
        reader, writer = await opened(port)
        writer.write(TOLD)
        await writer.start_tls(trusting, server_hostname="127.0.0.1")
        writer.write(ASKED)
        assert await reader.readline() == b"HTTP/1.1 200 OK\r\n"
        assert b"192.0.2.7" in await reader.readuntil(b"null]")
        writer.transport.abort()
        with pytest.raises((OSError, ssl.SSLError)):
            await asyncio.open_connection(
                "127.0.0.1", port, local_addr=(PROXY, 0), ssl=trusting, ssl_handshake_timeout=5
            )


async def test_a_proxy_is_exempt_from_the_limit_per_address_and_its_callers_are_not():
    async with served(connections_per_address=2) as (port, counts, _):
        silent = [await opened(port) for _ in range(4)]
        await until(lambda: counts.open == 4)
        assert counts.events == {}
        callers = [await opened(port) for _ in range(3)]
        for reader, writer in callers:
            writer.write(TOLD + ASKED)
            assert await reader.readline() == b"HTTP/1.1 200 OK\r\n"
        # All three belong to one caller.
        assert counts.events == {"evicted_by_own": 1}
        for _, writer in [*silent, *callers]:
            writer.transport.abort()
        await until(lambda: counts.open == 0)


async def test_connections_with_an_unfinished_preamble_end_with_their_listener():
    async with served(head_timeout=60) as (port, counts, _):
        reader, writer = await opened(port)
        writer.write(TOLD[:10])
        await until(lambda: counts.open == 1)
    with suppress(ConnectionResetError):
        async with asyncio.timeout(5):
            assert await reader.read() == b""
    writer.transport.abort()
