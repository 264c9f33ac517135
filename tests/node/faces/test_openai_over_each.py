"""OpenAI's own client with a worker that speaks another protocol, at its node and one hop away: the same for all protocols."""

import pytest

from tests.node.faces.assembly import Pair, openai_at
from tests.workers import localai_worker, tgi_worker
from tests.workers.openai_worker import WORDS

HELLO = [{"role": "user", "content": "hi"}]
SAID = "".join(WORDS)
WORKERS = {"tgi+http": tgi_worker, "grpc+localai": localai_worker}


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
