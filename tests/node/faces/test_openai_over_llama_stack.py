"""OpenAI's own client at a node whose worker speaks Llama Stack's protocol, at that node and one hop away."""

import openai
import pytest

from tests.node.faces.assembly import Pair, openai_at
from tests.workers import llama_stack_worker
from tests.workers.openai_worker import WORDS

HELLO = [{"role": "user", "content": "hi"}]
SAID = "".join(WORDS)


@pytest.fixture
async def stack():
    async with llama_stack_worker.running() as worker:
        yield worker


@pytest.fixture(params=["serving", "asked"])
async def ai(request, mesh: Pair, stack):
    api = stack.url.replace("http:", "llamastack+http:")
    registered = {"api": api, "worker_model": "own/name"}
    async with openai_at(await mesh.offers(request.param, stack, **registered)) as ai:
        yield ai


async def test_a_chat(ai, stack):
    answer = await ai.chat.completions.create(model="tiny", messages=HELLO, temperature=0)
    assert (answer.model, answer.choices[0].message.content) == ("tiny", SAID)
    assert answer.usage.total_tokens == 5 + len(WORDS)
    assert stack.asked["model"] == "own/name"


@pytest.mark.parametrize("faults", [{}, {"plain": True}, {"seed_only": True}], ids=str)
async def test_a_chat_in_a_stream(ai, stack, faults):
    stack.fail(**faults)
    options = {"include_usage": True}
    stream = await ai.chat.completions.create(
        model="tiny", messages=HELLO, stream=True, stream_options=options
    )
    *chunks, last = [chunk async for chunk in stream]
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == SAID
    assert last.usage.completion_tokens == len(WORDS)


async def test_parameters_without_effect_are_named_in_a_header(ai):
    raw = await ai.chat.completions.with_raw_response.create(model="tiny", messages=HELLO, seed=1)
    assert raw.headers["x-modelvine-dropped-params"] == "seed"


async def test_requests_that_the_protocol_cannot_express_are_refused(ai, stack):
    for call in (
        ai.completions.create(model="tiny", prompt="a"),
        ai.chat.completions.create(
            model="tiny", messages=HELLO, response_format={"type": "json_object"}
        ),
    ):
        with pytest.raises(openai.BadRequestError) as refused:
            await call
        assert refused.value.code == "unsupported_parameter"
    assert stack.received == []


async def test_the_workers_refusal_is_a_bad_request_with_its_text(ai, stack):
    stack.fail(status=422, refusal=b'{"message":"the chat is too long"}')
    with pytest.raises(openai.BadRequestError, match="the chat is too long"):
        await ai.chat.completions.create(model="tiny", messages=HELLO)


async def test_a_worker_that_is_full_is_a_rate_limit(ai, stack):
    stack.fail(status=429)
    with pytest.raises(openai.RateLimitError):
        await ai.chat.completions.create(model="tiny", messages=HELLO)


async def test_a_stream_that_fails_in_the_middle_raises(ai, stack):
    stack.fail(error_after=3)
    stream = await ai.chat.completions.create(model="tiny", messages=HELLO, stream=True)
    with pytest.raises(openai.APIError):
        [chunk async for chunk in stream]
