"""llama.cpp's endpoints besides text, asked of the worker's node and of one a hop away."""

import asyncio
import sys
from dataclasses import dataclass

import pytest

from tests.node.demo.test_worker import READY_SECONDS, ROOT, RUN
from tests.node.faces.assembly import openai_at, told

TEXT = "Hello there, how are you?"


@dataclass
class Llama:
    """A running llama.cpp."""

    url: str


@pytest.fixture(params=["serving", "asked"])
async def asked(request, mesh):
    command = [sys.executable, "-c", RUN, "--threads", "1", "--alias", "tiny", "--embedding"]
    process = await asyncio.create_subprocess_exec(
        *command, cwd=ROOT, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
    )
    try:
        async with asyncio.timeout(READY_SECONDS):
            ready = (await process.stdout.readline()).decode()
        yield await mesh.offers(request.param, Llama(ready.split()[1]))
    finally:
        process.kill()
        await process.wait()


async def test_tokens_and_embeddings_are_served_and_a_ranking_is_refused(asked):
    found = {}
    for name in ("content", "prompt", "input"):
        fields = {"model": "tiny", name: TEXT}
        status, found[name] = await told(asked.http.post("/v1/tokenize", json=fields))
        assert status == 200, found[name]
    assert found["content"] == found["prompt"] == found["input"]
    tokens = found["content"]["tokens"]
    # The model of random weights has only tokens of one byte, and its blank has three bytes.
    assert 1 < len(tokens) <= 3 * len(TEXT)
    assert all(isinstance(token, int) for token in tokens)

    async with openai_at(asked, timeout=30) as ai:
        vectors = await ai.embeddings.create(model="tiny", input=[TEXT, "a hat"])
    assert [vector.index for vector in vectors.data] == [0, 1]
    assert vectors.data[0].embedding != vectors.data[1].embedding
    assert vectors.model == "tiny"

    rank = {"model": "tiny", "query": "a", "documents": ["b"]}
    status, body = await told(asked.http.post("/v1/rerank", json=rank))
    assert (status, body["error"]["code"]) == (400, "unsupported_parameter")
    assert body["error"]["param"] == "model"
    # That it cannot rank does not count as a failure of the worker: other requests go on.
    fields = {"model": "tiny", "content": TEXT}
    status, again = await told(asked.http.post("/v1/tokenize", json=fields))
    assert (status, again) == (200, found["content"])
