"""OpenAI's own client with a worker that speaks another protocol, at its node and one hop away: the same for all protocols."""

import openai
import pytest

from tests.node.faces.assembly import Pair, openai_at
from tests.workers import localai_worker, tgi_worker
from tests.workers.openai_worker import WORDS

HELLO = [{"role": "user", "content": "hi"}]
SAID = "".join(WORDS)
WORKERS = {"tgi+http": tgi_worker, "grpc+localai": localai_worker}
REFUSES = {
    "tgi+http": {"status": 422, "refusal": b'{"error":"it is too long","error_type":"validation"}'},
    "grpc+localai": {"status": 400, "refusal": b"it is too long"},
}
BREAKS = {"tgi+http": {"error_after": 3}, "grpc+localai": {"fail_after": 3}}
"""Faults of each worker's own: it refuses a request, or breaks a stream off in the middle."""


@pytest.fixture(params=WORKERS)
async def worker(request):
    async with WORKERS[request.param].running() as started:
        yield started, f"{request.param}:{started.url.partition(':')[2]}"


@pytest.fixture(params=["serving", "asked"])
async def ai(request, mesh: Pair, worker):
    started, api = worker
    async with openai_at(await mesh.offers(request.param, started, api=api)) as ai:
        yield ai


async def test_a_chat(ai):
    answer = await ai.chat.completions.create(model="tiny", messages=HELLO, temperature=0)
    assert (answer.model, answer.choices[0].message.content) == ("tiny", SAID)
    assert answer.usage.total_tokens == 5 + len(WORDS)


async def test_a_chat_in_a_stream(ai):
    options = {"include_usage": True}
    stream = await ai.chat.completions.create(
        model="tiny", messages=HELLO, stream=True, stream_options=options
    )
    *chunks, last = [chunk async for chunk in stream]
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == SAID
    assert last.usage.completion_tokens == len(WORDS)


async def test_a_completion_ends_at_its_stop_string(ai):
    answer = await ai.completions.create(model="tiny", prompt="Once", stop="you")
    assert answer.choices[0].text == SAID[: SAID.index("you")]


async def test_the_workers_refusal_is_a_bad_request_with_its_text(ai, worker):
    started, api = worker
    started.fail(**REFUSES[api.partition(":")[0]])
    with pytest.raises(openai.BadRequestError, match="it is too long"):
        await ai.completions.create(model="tiny", prompt="a")


async def test_a_worker_that_is_full_is_a_rate_limit(ai, worker):
    worker[0].fail(status=429)
    with pytest.raises(openai.RateLimitError) as full:
        await ai.completions.create(model="tiny", prompt="a")
    assert full.value.response.headers["retry-after"]


async def test_a_stream_that_fails_in_the_middle_raises(ai, worker):
    started, api = worker
    started.fail(**BREAKS[api.partition(":")[0]])
    stream = await ai.completions.create(model="tiny", prompt="a", stream=True)
    with pytest.raises(openai.APIError):
        [chunk async for chunk in stream]
