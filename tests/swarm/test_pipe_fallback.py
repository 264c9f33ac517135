"""What if a node's own address does not answer? Requests reach it over a libp2p pipe, all the same."""

import asyncio
import base64
import os
import statistics
import time
from collections.abc import AsyncIterator
from itertools import pairwise

import orjson
import pytest
from multidict import CIMultiDict

from tests.swarm.client import Client, events_of
from tests.swarm.nodes import Node, Start, Swarm
from tests.swarm.waiting import show, until
from tests.workers.openai_worker import WORDS, OpenAIWorker, running

pytestmark = pytest.mark.swarm

MODEL = "piped"
MIB = 1024 * 1024


@pytest.fixture(scope="module")
def hidden(swarm: Swarm, three: list[Node]) -> Node:
    """A node that can be reached over a libp2p pipe alone, and dials the others itself."""
    return swarm.start(Start("hidden", module="tests.swarm.hidden_node"), known=three[:1])


@pytest.fixture
async def worker(three: list[Node], hidden: Node, client: Client) -> AsyncIterator[OpenAIWorker]:
    """A worker behind the hidden node."""
    await client.met([*three, hidden])
    async with running() as worker:
        await client.register(hidden, MODEL, [MODEL], worker.url)
        await client.listed(three, MODEL)
        # It may be listed still from the test before, and about to be unregistered.
        await client.agreed([*three, hidden])
        yield worker
        await client.unregister(hidden, MODEL)


async def test_a_plain_request_reaches_a_node_whose_address_does_not_answer(
    three: list[Node], hidden: Node, worker: OpenAIWorker, client: Client
) -> None:
    (view,) = (
        n
        for n in (await client.get(three[2], "/api/v1/nodes"))["nodes"]
        if n["node"] == hidden.peer
    )
    assert view["links"] == ["127.0.0.1:9"]
    first = await client.chat(three[2], MODEL)
    assert (first.status, first.node) == (200, hidden.peer)
    later = [await client.chat(three[2], MODEL) for _ in range(20)]
    assert {answer.status for answer in later} == {200}
    seconds = sorted(answer.seconds for answer in later)
    show("over a pipe", first=first.seconds, later_p50=seconds[10], later_max=seconds[-1])


async def test_fifty_requests_at_once_reach_such_a_node_over_pipes(
    three: list[Node], worker: OpenAIWorker, client: Client
) -> None:
    began = time.monotonic()
    answers = await asyncio.gather(*(client.chat(three[2], MODEL) for _ in range(50)))
    assert {answer.status for answer in answers} == {200}
    show("50 at once over pipes", all_answered=time.monotonic() - began)


async def test_id_and_trace_of_a_request_are_the_same_over_a_pipe(
    three: list[Node], hidden: Node, worker: OpenAIWorker, client: Client
) -> None:
    parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    headers = {"traceparent": parent, "tracestate": "a=b", "x-request-id": "over-a-pipe-1"}
    body = {"model": MODEL, "messages": []}
    answer = await client.post(three[2], "/v1/chat/completions", body, headers=headers)
    assert (answer.status, answer.node) == (200, hidden.peer)
    received = worker.received[-1].headers
    assert (received["traceparent"], received["tracestate"]) == (parent, "a=b")
    answered = CIMultiDict(answer.headers)["x-request-id"]
    assert received["x-request-id"] == answered == "over-a-pipe-1"
    for node in (three[2], hidden):
        await until(lambda node=node: "request=over-a-pipe-1 " in node.log, within=2, otherwise="no line")  # fmt: skip


async def test_a_streams_events_come_one_by_one_over_a_pipe(
    three: list[Node], worker: OpenAIWorker, client: Client
) -> None:
    worker.fail(delay_between=0.1)
    arrivals: list[float] = []
    events: list[str] = []
    async with client.stream(three[2], MODEL) as response:
        assert response.status == 200
        async for event in events_of(response):
            arrivals.append(time.monotonic())
            events.append(event)
    assert events[-1] == "[DONE]"
    assert len(events) == len(WORDS) + 1
    gaps = [later - earlier for earlier, later in pairwise(arrivals)]
    # The worker waits 0.1 s before each; events that came in lumps would have gaps of nothing, and not only by chance.
    assert statistics.median(gaps) > 0.02
    show("stream over a pipe", shortest_gap=min(gaps), longest_gap=max(gaps))


async def test_an_image_of_a_mebibyte_crosses_a_pipe_both_ways(
    three: list[Node], worker: OpenAIWorker, client: Client
) -> None:
    worker.fail(pad_bytes=MIB)
    image = base64.b64encode(os.urandom(MIB)).decode()
    body = {"model": MODEL, "prompt": "a beret", "image": f"data:image/png;base64,{image}"}
    answer = await client.post(three[2], "/v1/images/edits", body)
    assert answer.status == 200
    assert len(orjson.loads(answer.body)["pad"]) == MIB
    assert orjson.loads(worker.received[-1].body)["image"] == body["image"]
    show("1 MiB each way over a pipe", took=answer.seconds)
