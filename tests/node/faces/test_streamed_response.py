"""Responses of aiohttp that are streamed, and how they end in each version of HTTP."""

import asyncio

from aiohttp import web
from aiohttp.test_utils import TestServer

from node.faces.streamed_response import StreamedResponse


async def said(version: bytes, connection: bytes) -> bytes:
    """Return all bytes that a caller with a version of HTTP is sent, until the connection ends."""

    async def answer(request: web.Request) -> web.StreamResponse:
        response = StreamedResponse()
        await response.prepare(request)
        await response.write(b"one")
        await response.write_eof()
        return response

    app = web.Application()
    app.router.add_get("/", answer)
    async with TestServer(app) as server:
        reader, writer = await asyncio.open_connection(server.host, server.port)
        writer.write(b"GET / HTTP/%b\r\nHost: a\r\nConnection: %b\r\n\r\n" % (version, connection))
        sent = await asyncio.wait_for(reader.read(), 5)
        writer.close()
        return sent


async def test_an_answer_of_unknown_length_is_chunked() -> None:
    head, _, body = (await said(b"1.1", b"close")).partition(b"\r\n\r\n")
    assert b"chunked" in head
    assert body == b"3\r\none\r\n0\r\n\r\n"


async def test_in_http_1_0_it_ends_with_its_connection_despite_keep_alive() -> None:
    head, _, body = (await said(b"1.0", b"keep-alive")).partition(b"\r\n\r\n")
    assert b"chunked" not in head
    assert body == b"one"
