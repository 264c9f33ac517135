"""What llama.cpp serves beside texts, asked of the node beside it and of one that is a hop away."""

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
    words = [sys.executable, "-c", RUN, "--threads", "1", "--alias", "tiny", "--embedding"]
    process = await asyncio.create_subprocess_exec(
        *words, cwd=ROOT, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
    )
    try:
        async with asyncio.timeout(READY_SECONDS):
            ready = (await process.stdout.readline()).decode()
        yield await mesh.offers(request.param, Llama(ready.split()[1]))
    finally:
        process.kill()
        await process.wait()


async def test_tokens_embeddings_and_what_it_lacks(asked):
    found = {}
    for name in ("content", "prompt", "input"):
        said = {"model": "tiny", name: TEXT}
        status, found[name] = await told(asked.http.post("/v1/tokenize", json=said))
        assert status == 200, found[name]
    assert found["content"] == found["prompt"] == found["input"]
    tokens = found["content"]["tokens"]
    # A model of random weights knows bytes alone, of which its blank has three.
    assert 1 < len(tokens) <= 3 * len(TEXT)
    assert all(isinstance(token, int) for token in tokens)

    async with openai_at(asked, timeout=30) as ai:
        vectors = await ai.embeddings.create(model="tiny", input=[TEXT, "a hat"])
    assert [one.index for one in vectors.data] == [0, 1]
    assert vectors.data[0].embedding != vectors.data[1].embedding
    assert vectors.model == "tiny"

    rank = {"model": "tiny", "query": "a", "documents": ["b"]}
    status, body = await told(asked.http.post("/v1/rerank", json=rank))
    assert (status, body["error"]["code"]) == (400, "unsupported_parameter")
    assert body["error"]["param"] == "model"
    # That it ranks nothing is held against nobody: it goes on with the rest.
    said = {"model": "tiny", "content": TEXT}
    status, again = await told(asked.http.post("/v1/tokenize", json=said))
    assert (status, again) == (200, found["content"])
