"""Laws of a stream that several workers write: it reads as one, locally and over a hop, unless its caller declines."""

import asyncio
from dataclasses import dataclass

import orjson
import pytest

from registry.mesh.memory import MemoryNet
from router.requests import Kind, Request
from tests.node.faces.assembly import Running, World, node, settings_of, until
from tests.workers.openai_worker import FAILURE, WORDS, OpenAIWorker, running

PATH = "/v1/chat/completions"
ASKED = {"model": "tiny", "stream": True, "messages": [{"role": "user", "content": "hi"}]}
CONTINUE = {"x-modelvine-continue": "1"}
TEXT = "".join(WORDS[1:])


@dataclass
class Scene:
    """The node to ask, the node of the worker that dies, the node of the worker that continues, and both workers."""

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
    """Return how many replicas of the model a node could ask."""
    request = Request("r", Kind.CHAT, "tiny", b"{}", "application/json")
    return len(running.context.router.explain(request).ordered)


async def read(scene, body=ASKED, headers=CONTINUE):
    """Ask, register the second worker while the first one answers, and return the bytes read and their events."""
    death = asyncio.Event()
    scene.mortal.fail(die_after=4, delay_between=0.1, death=death)
    await scene.first.register(scene.mortal, cid="1")
    await until(lambda: offered(scene.asked) == 1)
    async with scene.asked.http.post(PATH, json=body, headers=headers) as response:
        assert response.status == 200
        # The worker answers no more requests, and breaks off the answer it has begun.
        scene.mortal.fail(die_before_headers=True)
        await scene.second.register(scene.heir, cid="2")
        await until(lambda: offered(scene.asked) == 2)
        death.set()
        stream = await response.read()
    lines = [line[6:] for line in stream.split(b"\n") if line.startswith(b"data: {")]
    return stream, [orjson.loads(line) for line in lines]


def text_of(events):
    choices = [choice for event in events for choice in event.get("choices", [])]
    return "".join(choice["delta"].get("content") or "" for choice in choices)


async def test_a_stream_whose_worker_dies_is_continued_by_another_and_reads_as_one(scene):
    stream, events = await read(scene)
    assert text_of(events) == TEXT
    assert stream.endswith(b"data: [DONE]\n\n")
    assert b"error" not in stream
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


async def test_words_that_arrive_with_the_news_of_the_workers_death_are_not_lost(scene):
    """Over a hop, the last words and the news may arrive in one piece."""
    scene.mortal.fail(die_after=4)
    await scene.first.register(scene.mortal, cid="1")
    await scene.second.register(scene.heir, cid="2")
    await until(lambda: offered(scene.asked) == 2)
    for _ in range(12):
        async with scene.asked.http.post(PATH, json=ASKED, headers=CONTINUE) as response:
            stream = await response.read()
        lines = [line[6:] for line in stream.split(b"\n") if line.startswith(b"data: {")]
        assert text_of(map(orjson.loads, lines)) == TEXT
    assert scene.mortal.received


async def test_streams_are_continued_by_default(scene):
    stream, events = await read(scene, headers={})
    assert text_of(events) == TEXT
    assert stream.endswith(b"data: [DONE]\n\n")


@pytest.mark.parametrize("header", [None, "1", "x"])
async def test_a_caller_may_request_it_at_a_node_that_does_not_continue_streams_by_default(header):
    settings = settings_of()
    router = settings.router.model_copy(update={"continue_streams": False})
    settings = settings.model_copy(update={"router": router})
    headers = {} if header is None else {"x-modelvine-continue": header}
    async with node(World(MemoryNet()), settings) as one, running() as mortal, running() as heir:
        _, events = await read(Scene(one, one, one, mortal, heir), headers=headers)
    assert ("error" in events[-1]) is (header != "1")


async def test_the_usage_of_a_continued_stream_is_the_sum_and_marked_as_estimated(scene):
    _, events = await read(scene, ASKED | {"stream_options": {"include_usage": True}})
    [usage] = [event for event in events if "usage" in event]
    # The three words of the dead worker are estimated; the second worker reports 5 and 6 in any case.
    assert usage["usage"] == {"prompt_tokens": 2, "completion_tokens": 9, "total_tokens": 11}
    assert usage["modelvine"] == {"estimated": True, "seams": 1}


async def test_each_node_counts_the_tokens_of_its_own_workers_part(scene):
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
async def test_a_stream_that_may_not_or_cannot_be_continued_breaks_off(scene, body, headers):
    stream, events = await read(scene, body, headers)
    assert events[-1]["error"]["code"] == "answer_broken"
    assert b"[DONE]" not in stream
    assert scene.heir.received == []


async def test_a_stream_breaks_off_if_no_other_worker_serves_the_model(scene):
    await scene.first.register(scene.mortal)
    await until(lambda: offered(scene.asked) == 1)
    async with scene.asked.http.post(PATH, json=ASKED, headers=CONTINUE) as response:
        scene.mortal.fail(die_before_headers=True)
        stream = await response.read()
    assert b'"error"' in stream
    assert b"[DONE]" not in stream


async def test_a_caller_that_leaves_cancels_the_second_request(scene):
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


async def test_an_unbroken_stream_is_the_workers_own_bytes(scene):
    scene.mortal.fail()
    await scene.first.register(scene.mortal)
    await until(lambda: offered(scene.asked) == 1)
    async with scene.asked.http.post(PATH, json=ASKED, headers=CONTINUE) as response:
        assert await response.read() == b"".join(scene.mortal.events("tiny"))


async def test_a_workers_error_event_is_passed_on_if_no_other_worker_continues(scene):
    await scene.first.register(scene.mortal)
    await until(lambda: offered(scene.asked) == 1)
    scene.mortal.fail(fails_after=3)
    async with scene.asked.http.post(PATH, json=ASKED) as response:
        stream = await response.read()
    assert FAILURE in stream
    assert b"there" in stream
