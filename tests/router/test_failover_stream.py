"""Laws of a stream that several workers write: it reads as one, at home and over a hop, unless its caller wants it of one."""

from dataclasses import dataclass

import orjson
import pytest

from registry.mesh.memory.network import MemoryNet
from router.requests import Kind, Request
from tests.node.faces.assembly import Running, World, node, settings_of, until
from tests.workers.openai_worker import FAILURE, WORDS, OpenAIWorker, running

PATH = "/v1/chat/completions"
ASKED = {"model": "tiny", "stream": True, "messages": [{"role": "user", "content": "hi"}]}
CONTINUE = {"x-modelvine-continue": "1"}
TEXT = "".join(WORDS[1:])


@dataclass
class Scene:
    """The node to ask, one whose worker will die, the other whose worker will go on, and those workers."""

    asked: Running
    first: Running
    second: Running
    mortal: OpenAIWorker
    heir: OpenAIWorker


@pytest.fixture(params=["local", "hop", "first here, then there"])
async def scene(request):
    world = World(MemoryNet())
    async with node(world) as one, node(world) as two, running() as mortal, running() as heir:
        await until(lambda: two.context.peer in one.context.registry.catalog.held)
        await until(lambda: one.context.peer in two.context.registry.catalog.held)
        mortal.fail(die_after=4, delay_between=0.1)
        first, second = {
            "local": (two, two),
            "hop": (one, one),
            "first here, then there": (two, one),
        }[request.param]
        yield Scene(two, first, second, mortal, heir)


def offered(running):
    """How many replicas of the model a node could ask."""
    asked = Request("r", Kind.CHAT, "tiny", b"{}", "application/json")
    return len(running.context.router.explain(asked).ordered)


async def read(scene, body=ASKED, headers=CONTINUE):
    """Ask, have another worker come while the first one answers, and return what was read and its events."""
    await scene.first.register(scene.mortal, cid="1")
    await until(lambda: offered(scene.asked) == 1)
    async with scene.asked.http.post(PATH, json=body, headers=headers) as response:
        assert response.status == 200
        # It answers nobody any more, and breaks off what it has begun.
        scene.mortal.fail(die_before_headers=True)
        await scene.second.register(scene.heir, cid="2")
        await until(lambda: offered(scene.asked) == 2)
        said = await response.read()
    lines = [line[6:] for line in said.split(b"\n") if line.startswith(b"data: {")]
    return said, [orjson.loads(line) for line in lines]


def text_of(events):
    choices = [choice for event in events for choice in event.get("choices", [])]
    return "".join(choice["delta"].get("content") or "" for choice in choices)


async def test_a_stream_whose_worker_dies_is_taken_up_by_another_and_reads_as_one(scene):
    said, events = await read(scene)
    assert text_of(events) == TEXT
    assert said.endswith(b"data: [DONE]\n\n")
    assert b"error" not in said
    [seam] = [event["modelvine"]["seam"] for event in events if "modelvine" in event]
    assert seam == {
        "from": scene.first.context.peer,
        "to": scene.second.context.peer,
        "characters": len("".join(WORDS[1:4])),
    }
    again = orjson.loads(scene.heir.received[0].body)
    assert again["messages"][-1] == {"role": "assistant", "content": "".join(WORDS[1:4])}
    assert again["continue_final_message"] is True
    assert sum("role" in c["delta"] for e in events for c in e["choices"]) == 1


async def test_what_comes_together_with_the_news_of_its_workers_death_is_not_lost(scene):
    """Over a hop both may stand in one piece."""
    scene.mortal.fail(die_after=4)
    await scene.first.register(scene.mortal, cid="1")
    await scene.second.register(scene.heir, cid="2")
    await until(lambda: offered(scene.asked) == 2)
    for _ in range(12):
        async with scene.asked.http.post(PATH, json=ASKED, headers=CONTINUE) as response:
            said = await response.read()
        lines = [line[6:] for line in said.split(b"\n") if line.startswith(b"data: {")]
        assert text_of(map(orjson.loads, lines)) == TEXT
    assert scene.mortal.received


async def test_nobody_has_to_ask_for_it(scene):
    said, events = await read(scene, headers={})
    assert text_of(events) == TEXT
    assert said.endswith(b"data: [DONE]\n\n")


@pytest.mark.parametrize("header", [None, "1", "x"])
async def test_where_a_node_does_not_continue_streams_its_callers_may_want_it(header):
    settings = settings_of()
    router = settings.router.model_copy(update={"continue_streams": False})
    settings = settings.model_copy(update={"router": router})
    headers = {} if header is None else {"x-modelvine-continue": header}
    async with node(World(MemoryNet()), settings) as one, running() as mortal, running() as heir:
        mortal.fail(die_after=4, delay_between=0.1)
        _, events = await read(Scene(one, one, one, mortal, heir), headers=headers)
    assert ("error" in events[-1]) is (header != "1")


async def test_its_usage_is_the_sum_and_says_that_it_is_estimated(scene):
    _, events = await read(scene, ASKED | {"stream_options": {"include_usage": True}})
    [usage] = [event for event in events if "usage" in event]
    # Three words were lost with their worker; the heir says 5 and 6, whatever it did.
    assert usage["usage"] == {"prompt_tokens": 2, "completion_tokens": 9, "total_tokens": 11}
    assert usage["modelvine"] == {"estimated": True, "seams": 1}


async def test_each_node_counts_the_tokens_of_its_own_workers_parts(scene):
    await read(scene)
    nodes = {id(n): n for n in (scene.asked, scene.first, scene.second)}.values()
    for one in nodes:
        await until(lambda one=one: one.context.metrics.counts().in_flight == 0)
    rows = [row for one in nodes for row in one.context.metrics.counts().tokens]
    assert sum(row.tokens for row in rows if row.part == "completion") == 3 + 6
    assert sum(row.tokens for row in rows if row.estimated == "yes") == 3


@pytest.mark.parametrize(
    ("body", "headers"),
    [
        (ASKED, {"x-modelvine-continue": "0"}),
        (ASKED | {"n": 2}, {}),
        (ASKED | {"tools": [{"x": 1}]}, CONTINUE),
    ],
)
async def test_where_it_is_not_wanted_or_it_cannot_be_nothing_is_asked_twice(scene, body, headers):
    said, events = await read(scene, body, headers)
    assert events[-1]["error"]["code"] == "answer_broken"
    assert b"[DONE]" not in said
    assert scene.heir.received == []


async def test_where_nobody_else_serves_the_model_it_breaks_off_as_ever(scene):
    await scene.first.register(scene.mortal)
    await until(lambda: offered(scene.asked) == 1)
    async with scene.asked.http.post(PATH, json=ASKED, headers=CONTINUE) as response:
        scene.mortal.fail(die_before_headers=True)
        said = await response.read()
    assert b'"error"' in said
    assert b"[DONE]" not in said


async def test_a_caller_who_leaves_takes_the_second_request_along(scene):
    scene.heir.fail(delay_between=60)
    await scene.first.register(scene.mortal, cid="1")
    await until(lambda: offered(scene.asked) == 1)
    async with scene.asked.http.post(PATH, json=ASKED, headers=CONTINUE) as response:
        scene.mortal.fail(die_before_headers=True)
        await scene.second.register(scene.heir, cid="2")
        await until(lambda: scene.heir.received)
        response.close()
    await until(lambda: scene.heir.hung_up == 1)
    await until(lambda: scene.asked.context.router.in_flight.total() == 0)


async def test_a_stream_that_lives_is_the_workers_own_bytes(scene):
    scene.mortal.fail()
    await scene.first.register(scene.mortal)
    await until(lambda: offered(scene.asked) == 1)
    async with scene.asked.http.post(PATH, json=ASKED, headers=CONTINUE) as response:
        assert await response.read() == b"".join(scene.mortal.events("tiny"))


async def test_where_nobody_goes_on_a_workers_own_words_about_its_failure_are_passed_on(scene):
    await scene.first.register(scene.mortal)
    await until(lambda: offered(scene.asked) == 1)
    scene.mortal.fail(fails_after=3)
    async with scene.asked.http.post(PATH, json=ASKED) as response:
        said = await response.read()
    assert FAILURE in said
    assert b"there" in said
