"""Answers to TGI's clients: all match TGI's specification, whichever protocol the worker speaks, here and a hop away."""

from contextlib import AsyncExitStack

import orjson
import pytest

from tests.node.faces.assembly import told
from tests.node.faces.tgi.schema import check
from tests.workers import (
    llama_stack_worker,
    localai_worker,
    openai_worker,
    remotellm_worker,
    tgi_worker,
)

BASE = "/tgi/p/tiny"
INPUTS = {"inputs": "Once upon"}
CHAT = {"model": "tgi", "messages": [{"role": "user", "content": "hi"}]}
LOOK = {"type": "function", "function": {"name": "look", "arguments": {"type": "object"}}}
CALLS = {"calls": (("look", '{"at":1}'), ("look", "{}"))}

WORKERS = {
    "openai": (openai_worker, ("http:", "http:")),
    "tgi": (tgi_worker, ("http:", "tgi+http:")),
    "llama_stack": (llama_stack_worker, ("http:", "llamastack+http:")),
    "localai": (localai_worker, ("grpc:", "grpc+localai:")),
    "remotellm": (remotellm_worker, ("grpc:", "grpc+remotellm:")),
}


@pytest.fixture(params=WORKERS)
async def spoken(request):
    """Yield a protocol, and a worker that speaks it."""
    module, scheme = WORKERS[request.param]
    async with AsyncExitStack() as stack:
        worker = await stack.enter_async_context(module.running())
        if request.param == "openai":
            worker.fail(finish="stop")
        yield request.param, worker, worker.url.replace(*scheme)


@pytest.fixture(params=["serving", "asked"])
async def http(request, mesh, spoken):
    _, worker, api = spoken
    return (await mesh.offers(request.param, worker, api=api)).http


async def events(call):
    async with call as response:
        assert (response.status, response.content_type) == (200, "text/event-stream")
        said = await response.text()
    found = [one for one in said.split("\n\n") if one and not one.startswith(":")]
    assert all(one.startswith("data:") for one in found)
    data = [one.removeprefix("data:").strip() for one in found]
    return [orjson.loads(one) for one in data if one != "[DONE]"]


async def answered(name, call):
    """Check and return an answer in one piece, or the refusal where the worker's protocol cannot express the request."""
    status, said = await told(call)
    check(name if status == 200 else "ErrorResponse", said)
    assert status in (200, 404, 422), said
    return said


class TestEveryWorker:
    async def test_a_text_matches_the_specification(self, http):
        for parameters in ({}, {"details": True, "top_n_tokens": 2}, {"details": False}):
            asked = INPUTS | {"parameters": parameters}
            await answered("GenerateResponse", http.post(f"{BASE}/generate", json=asked))
            status, said = await told(http.post(BASE, json=asked))
            check("GenerateResponse", said[0]) if status == 200 else check("ErrorResponse", said)

    async def test_a_streamed_text_matches_the_specification(self, http, spoken):
        if spoken[0] == "llama_stack":
            await answered("", http.post(f"{BASE}/generate_stream", json=INPUTS))
            return
        for path in ("", "/generate_stream"):
            asked = INPUTS | {"stream": True, "parameters": {"details": True, "top_n_tokens": 2}}
            for event in await events(http.post(BASE + path, json=asked)):
                check("StreamResponse", event)

    async def test_chats_match_the_specification(self, http):
        for more in ({}, {"logprobs": True, "top_logprobs": 2}):
            await answered(
                "ChatCompletion", http.post(f"{BASE}/v1/chat/completions", json=CHAT | more)
            )
            asked = CHAT | more | {"stream": True}
            chunks = await events(http.post(f"{BASE}/v1/chat/completions", json=asked))
            for chunk in chunks:
                check("ChatCompletionChunk", chunk)
            assert [c for chunk in chunks for c in chunk["choices"]][-1]["finish_reason"]

    async def test_completions_match_the_specification(self, http, spoken):
        asked = {"prompt": "Once"}
        await answered("CompletionFinal", http.post(f"{BASE}/v1/completions", json=asked))
        if spoken[0] != "llama_stack":
            for chunk in await events(
                http.post(f"{BASE}/v1/completions", json=asked | {"stream": True})
            ):
                check("Chunk", chunk)

    async def test_tokens_and_info_match_the_specification(self, http):
        await answered("TokenizeResponse", http.post(f"{BASE}/tokenize", json=INPUTS))
        await answered("Info", http.get(f"{BASE}/info"))
