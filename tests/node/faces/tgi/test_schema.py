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
        text = await response.text()
    found = [event for event in text.split("\n\n") if event and not event.startswith(":")]
    assert all(event.startswith("data:") for event in found)
    data = [event.removeprefix("data:").strip() for event in found]
    return [orjson.loads(event) for event in data if event != "[DONE]"]


async def answered(name, call):
    """Check and return an answer in one piece, or the refusal where the worker's protocol cannot express the request."""
    status, payload = await told(call)
    check(name if status == 200 else "ErrorResponse", payload)
    assert status in (200, 404, 422), payload
    return payload


class TestEveryWorker:
    async def test_a_text_matches_the_specification(self, http):
        for parameters in ({}, {"details": True, "top_n_tokens": 2}, {"details": False}):
            fields = INPUTS | {"parameters": parameters}
            await answered("GenerateResponse", http.post(f"{BASE}/generate", json=fields))
            status, payload = await told(http.post(BASE, json=fields))
            check("GenerateResponse", payload[0]) if status == 200 else check(
                "ErrorResponse", payload
            )

    async def test_a_streamed_text_matches_the_specification(self, http, spoken):
        if spoken[0] == "llama_stack":
            await answered("", http.post(f"{BASE}/generate_stream", json=INPUTS))
            return
        for path in ("", "/generate_stream"):
            fields = INPUTS | {"stream": True, "parameters": {"details": True, "top_n_tokens": 2}}
            for event in await events(http.post(BASE + path, json=fields)):
                check("StreamResponse", event)

    async def test_chats_match_the_specification(self, http):
        for more in ({}, {"logprobs": True, "top_logprobs": 2}):
            await answered(
                "ChatCompletion", http.post(f"{BASE}/v1/chat/completions", json=CHAT | more)
            )
            fields = CHAT | more | {"stream": True}
            chunks = await events(http.post(f"{BASE}/v1/chat/completions", json=fields))
            for chunk in chunks:
                check("ChatCompletionChunk", chunk)
            assert [c for chunk in chunks for c in chunk["choices"]][-1]["finish_reason"]

    async def test_completions_match_the_specification(self, http, spoken):
        fields = {"prompt": "Once"}
        await answered("CompletionFinal", http.post(f"{BASE}/v1/completions", json=fields))
        if spoken[0] != "llama_stack":
            for chunk in await events(
                http.post(f"{BASE}/v1/completions", json=fields | {"stream": True})
            ):
                check("Chunk", chunk)

    async def test_tokens_and_info_match_the_specification(self, http):
        await answered("TokenizeResponse", http.post(f"{BASE}/tokenize", json=INPUTS))
        await answered("Info", http.get(f"{BASE}/info"))
