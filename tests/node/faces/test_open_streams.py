"""Streams that workers keep open behind their `[DONE]`: callers of every face get their end at once."""

import asyncio

import pytest

from registry.mesh.memory import MemoryNet
from tests.node.faces.assembly import World, node, settings_of
from tests.workers.raw import raw, take

TURN = {"role": "user", "content": "hi"}
FACES = {
    "/v1/chat/completions": ({"messages": [TURN]}, b"data: [DONE]\n\n"),
    "/v1/messages": ({"messages": [TURN], "max_tokens": 9}, b'data: {"type":"message_stop"}\n\n'),
    "/v1/responses": ({"input": "hi"}, b"event: response.completed\n"),
}
STREAM = (
    b'data: {"model":"tiny","choices":[{"index":0,"delta":{"content":"a"}}]}\n\n'
    b'data: {"model":"tiny","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'
    b"data: [DONE]\n\n"
)


@pytest.mark.parametrize("path", FACES)
async def test_a_caller_gets_its_end_though_the_worker_keeps_the_stream_open(path: str) -> None:
    fields, end = FACES[path]
    release = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await take(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n" + STREAM)
        await release.wait()

    async with raw(serve) as url, node(World(MemoryNet()), settings_of(idle_timeout=60)) as one:
        row = {"project": "p", "model": "tiny", "api": url}
        async with one.http.post("/api/v0/ai/model/register", json=row) as response:
            assert response.status == 200
        async with (
            asyncio.timeout(10),
            one.http.post(path, json={"model": "tiny", "stream": True} | fields) as response,
        ):
            body = await response.read()
        assert end in body
        assert b"error" not in body.replace(b'"error":null', b"")
        release.set()
