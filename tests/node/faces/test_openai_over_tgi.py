"""OpenAI's own client at a node whose worker speaks TGI's protocol, at that node and one hop away."""

import re

import openai
import pytest

from tests.node.faces.assembly import Pair, openai_at, until
from tests.workers import tgi_worker
from tests.workers.openai_worker import WORDS

SAID = "".join(WORDS)
CHOICE = {"guided_choice": ["a", "b"]}


@pytest.fixture
async def tgi():
    async with tgi_worker.running() as worker:
        yield worker


@pytest.fixture(params=["serving", "asked"])
async def ai(request, mesh: Pair, tgi):
    api = tgi.url.replace("http:", "tgi+http:")
    async with openai_at(await mesh.offers(request.param, tgi, api=api)) as ai:
        yield ai


async def test_usage_that_was_not_asked_for_is_not_shown(ai):
    stream = await ai.completions.create(model="tiny", prompt="Once", stream=True)
    chunks = [chunk async for chunk in stream]
    assert "".join(chunk.choices[0].text for chunk in chunks) == SAID
    assert not [chunk for chunk in chunks if chunk.usage]


async def test_parameters_without_effect_are_named_in_a_header(ai):
    raw = await ai.completions.with_raw_response.create(
        model="tiny", prompt="a", presence_penalty=1
    )
    assert raw.headers["x-modelvine-dropped-params"] == "presence_penalty"


async def test_requests_that_the_protocol_cannot_express_are_refused(ai, tgi):
    with pytest.raises(openai.BadRequestError) as refused:
        await ai.completions.create(model="tiny", prompt="a", extra_body=CHOICE)
    assert (refused.value.code, refused.value.param) == ("unsupported_parameter", "guided_choice")
    assert tgi.received == []


@pytest.mark.parametrize("stream", [False, True])
async def test_tokens_are_counted_once_at_the_workers_node(ai, mesh, stream):
    answer = await ai.completions.create(model="tiny", prompt="a", stream=stream)
    if stream:
        assert [chunk async for chunk in answer]
    await until(lambda: mesh.one.context.router.in_flight.total() == 0)
    async with mesh.one.http.get("/metrics") as response:
        text = await response.text()
    tokens = len(WORDS) + stream  # a stream's end is a token
    assert re.search(rf"modelvine_tokens_total{{.*completion.*}} {tokens}\.0", text), text


async def test_a_worker_whose_protocol_has_the_parameter_is_asked_instead(ai, mesh, tgi, worker):
    await mesh.two.register(worker)
    for one, other in ((mesh.one, mesh.two), (mesh.two, mesh.one)):
        await until(lambda one=one, other=other: offered(one, other))
    for _ in range(8):
        answer = await ai.completions.create(model="tiny", prompt="a", extra_body=CHOICE)
        assert answer.choices
    assert (len(worker.received), tgi.received) == (8, [])
    assert mesh.one.context.router.in_flight.total() == 0


def offered(one, other):
    """Return whether a node knows that another one serves the model."""
    held = one.context.registry.catalog.held.get(other.context.peer)
    return held is not None and any(s.model == "tiny" for s in held.record.services)


@pytest.mark.parametrize("place", ["serving", "asked"])
async def test_the_workers_fingerprint_reaches_the_caller(mesh, place):
    async with tgi_worker.running() as tgi:
        node = await mesh.offers(place, tgi, api=tgi.url.replace("http:", "tgi+http:"))
        chat = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}
        async with node.http.post("/v1/chat/completions", json=chat) as response:
            assert (await response.json())["system_fingerprint"] == "2"
        fields = {"model": "tiny", "prompt": "a", "suffix": "b", "stream": True}
        async with node.http.post("/v1/completions", json=fields) as response:
            text = await response.text()
        assert text.count('"system_fingerprint":"2"') == text.count("data: {") > 3
