"""Numbers that JSON lacks, such as `-Infinity` in log probabilities: faces that translate take them for not reported."""

import pytest

from registry.mesh.memory import MemoryNet
from tests.node.faces.assembly import World, node
from tests.workers.raw import raw, take

TURN = {"role": "user", "content": "hi"}
FACES = {
    "/v1/messages": {"messages": [TURN], "max_tokens": 9},
    "/v1/responses": {"input": "hi"},
    "/tgi/p/tiny": {"inputs": "hi", "parameters": {"details": True}},
}
LOGPROBS = b'"logprobs":{"content":[{"token":"plum","logprob":-Infinity,"top_logprobs":[]}]}'
WHOLE = (
    b'{"model":"tiny","choices":[{"index":0,"message":{"content":"plum"},"text":"plum",'
    b'"finish_reason":"stop",%b}]}'
) % LOGPROBS
STREAM = (
    b'data: {"model":"tiny","choices":[{"index":0,"delta":{"content":"plum"},"text":"plum",%b}]}\n\n'
    b'data: {"model":"tiny","choices":[{"index":0,"delta":{},"text":"","finish_reason":"stop"}]}\n\n'
    b"data: [DONE]\n\n"
) % LOGPROBS
TYPES = {True: b"text/event-stream", False: b"application/json"}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", FACES)
async def test_a_text_arrives_though_its_log_probabilities_are_infinite(path, stream):
    async def serve(reader, writer):
        await take(reader)
        body = STREAM if stream else WHOLE
        head = b"HTTP/1.1 200 OK\r\nContent-Type: %b\r\nContent-Length: %d\r\n\r\n"
        writer.write(head % (TYPES[stream], len(body)) + body)
        writer.close()

    async with raw(serve) as url, node(World(MemoryNet())) as one:
        row = {"project": "p", "model": "tiny", "api": url}
        async with one.http.post("/api/v0/ai/model/register", json=row) as response:
            assert response.status == 200
        asked = {"model": "tiny", "stream": stream} | FACES[path]
        async with one.http.post(path, json=asked) as response:
            text = await response.text()
        assert response.status == 200, text
        assert "plum" in text
        assert "Infinity" not in text
        assert "not valid" not in text
