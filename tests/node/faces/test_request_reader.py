"""Reader of request bodies: compressed or plain, never longer than the limit, and never awaited without end.

Responses of aiohttp that are streamed, and how they end in each version of HTTP.
"""

import asyncio
import gzip
import zlib

import orjson
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from node.faces.request_reader import StreamedResponse
from registry.mesh.memory import MemoryNet
from tests.node.faces.assembly import World, node, raw, settings_of, told

CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "a secret prompt"}]}
PATH = "/v1/chat/completions"


@pytest.mark.parametrize(
    ("encoding", "pack"),
    [
        ("gzip", gzip.compress),
        ("deflate", zlib.compress),
        ("deflate", lambda body: zlib.compress(body)[2:-4]),
        ("identity", bytes),
    ],
)
async def test_a_body_may_be_compressed(served, worker, encoding, pack):
    headers = {"Content-Type": "application/json", "Content-Encoding": encoding}
    data = pack(orjson.dumps(CHAT))
    async with served.http.post(PATH, data=data, headers=headers) as response:
        assert response.status == 200
    assert orjson.loads(worker.received[-1].body) == CHAT


async def test_an_unsupported_content_encoding_is_415(served):
    headers = {"Content-Type": "application/json", "Content-Encoding": "br"}
    assert (await told(served.http.post(PATH, data=b"{}", headers=headers)))[0] == 415


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
@pytest.mark.parametrize(
    "body", [b"not packed", gzip.compress(b"{}", mtime=0)[:-9], b"\x78\x9c\xff"]
)
async def test_bytes_that_do_not_match_their_content_encoding_are_400(
    served, encoding, body, caplog
):
    headers = {"Content-Type": "application/json", "Content-Encoding": encoding}
    assert (await told(served.http.post(PATH, data=body, headers=headers)))[0] == 400
    assert not [record for record in caplog.records if record.exc_info]


async def test_a_body_whose_chunks_are_nonsense_is_400(served):
    sent = (
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        b"Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n"
    )
    head, _, body = (await raw(served, sent)).partition(b"\r\n\r\n")
    assert b" 400 " in head
    assert orjson.loads(body)["code"] == 1002


class TestALargeBody:
    @pytest.fixture
    async def small(self):
        settings = settings_of(max_body_bytes=10_000, idle_timeout=0.3)
        async with node(World(MemoryNet()), settings) as running:
            yield running

    async def test_is_413_with_and_without_a_content_length(self, small):
        async def pieces():
            for _ in range(20):
                yield b"x" * 1_000

        headers = {"Content-Type": "application/json"}
        for body in (b"x" * 10_001, pieces()):
            status, payload = await told(small.http.post(PATH, data=body, headers=headers))
            assert (status, payload["error"]["code"]) == (413, "body_too_large")

    @pytest.mark.parametrize("encoding", ["gzip", "deflate"])
    async def test_is_413_when_it_is_large_only_once_decompressed(self, small, encoding):
        pack = gzip.compress if encoding == "gzip" else zlib.compress
        headers = {"Content-Type": "application/json", "Content-Encoding": encoding}
        call = small.http.post(PATH, data=pack(b" " * 5_000_000), headers=headers)
        assert (await told(call))[0] == 413

    async def test_that_does_not_arrive_is_408(self, small):
        sent = (
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
            b"Content-Type: application/json\r\nContent-Length: 100\r\n\r\n{"
        )
        head, _, body = (await raw(small, sent)).partition(b"\r\n\r\n")
        assert b" 408 " in head
        assert orjson.loads(body)["code"] == 1005


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
