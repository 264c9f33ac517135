"""OpenAI's client against the parrot of docs/extending.md, at the node that has it and one hop away.

`tests/test_dropped_in.py` runs it in a copy of the tree with the files of that page; this tree has no parrot.
"""

from importlib import import_module

import openai
import pytest

from registry.mesh.memory import MemoryNet
from tests.node.faces.assembly import World, node, until
from tests.workers.openai_worker import WORDS

HELLO = [{"role": "user", "content": "hi"}]
SAID = "".join(WORDS)


@pytest.fixture
async def parrot():
    async with import_module("tests.workers.parrot_worker").running() as worker:
        yield worker


@pytest.fixture(params=["serving", "asked"])
async def ai(request, parrot):
    world = World(MemoryNet())
    async with node(world) as one, node(world) as two:
        await until(lambda: two.context.peer in one.context.registry.catalog.held)
        await one.register(parrot, project="zoo", model="ada", dialect="parrot")
        await until(lambda: "ada" in two.context.registry.catalog.offers)
        asked_node = one if request.param == "serving" else two
        base = f"http://{asked_node.context.listening.http}/v1"
        async with openai.AsyncOpenAI(base_url=base, api_key="x", max_retries=0) as ai:
            yield ai


async def test_a_chat(ai, parrot):
    raw = await ai.chat.completions.with_raw_response.create(
        model="ada", messages=HELLO, max_tokens=20, temperature=0.5
    )
    answer = raw.parse()
    assert (answer.model, answer.choices[0].message.content) == ("ada", SAID)
    assert answer.usage.total_tokens == 5 + len(WORDS)
    assert raw.headers["x-modelvine-dropped-params"] == "temperature"
    assert parrot.asked == {
        "bird": "ada", "lines": [{"who": "user", "says": "hi"}], "most": 20, "flow": False,
    }  # fmt: skip


async def test_a_stream_that_ends_before_a_stop_string(ai):
    stream = await ai.chat.completions.create(
        model="ada", messages=HELLO, stream=True, stop="there"
    )
    text = "".join(
        [chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices]
    )
    assert text == SAID[: SAID.index("there")]


async def test_a_completion_that_the_parrot_does_not_support_is_refused(ai, parrot):
    with pytest.raises(openai.BadRequestError) as refused:
        await ai.completions.create(model="ada", prompt="a")
    assert refused.value.code == "unsupported_parameter"
    assert parrot.received == []


async def test_a_stream_that_fails_in_the_middle_raises(ai, parrot):
    parrot.fail(error_after=3)
    stream = await ai.chat.completions.create(model="ada", messages=HELLO, stream=True)
    with pytest.raises(openai.APIError):
        [chunk async for chunk in stream]
