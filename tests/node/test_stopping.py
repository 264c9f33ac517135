"""A process that is told to stop: it finishes its requests and exits with status 0; told twice, it exits at once."""

import asyncio
import re
import time
from contextlib import suppress

import aiohttp
import orjson
import pytest
from multidict import CIMultiDict

from tests.swarm.client import Client, events_of
from tests.swarm.nodes import Node, Start, Swarm
from tests.swarm.waiting import show, until
from tests.workers.openai_worker import OpenAIWorker

CHAT = "/v1/chat/completions"
LONGEST_FAREWELL = 3.0
"""Seconds that an exit may take with nothing in flight, or after a second signal."""


@pytest.fixture
async def node(swarm: Swarm, worker: OpenAIWorker, client: Client) -> Node:
    node = swarm.start("alone")
    await client.register(node, "p", ["tiny"], worker.url)
    return node


async def ended(node: Node, *, within: float) -> int:
    return await asyncio.to_thread(node.actor.process.wait, within)


async def test_a_node_without_requests_exits_soon_with_status_0(
    swarm: Swarm, node: Node, client: Client
) -> None:
    began = time.monotonic()
    swarm.ask_to_stop(node)
    assert await ended(node, within=10) == 0
    seconds = time.monotonic() - began
    show("SIGTERM at rest", ended_after=seconds)
    assert seconds < LONGEST_FAREWELL
    assert "stopped" in node.log


async def test_streams_and_answers_in_flight_are_completed(
    swarm: Swarm, node: Node, worker: OpenAIWorker, client: Client
) -> None:
    worker.fail(delay_first=1.0, delay_between=0.2)
    body = {"model": "tiny", "messages": []}
    async with client.stream(node, "tiny") as stream:
        task = asyncio.ensure_future(client.post(node, CHAT, body))
        await until(lambda: len(worker.received) == 2, within=5, otherwise="nothing arrives")
        swarm.ask_to_stop(node)
        events = [event async for event in events_of(stream)]
        answer = await task
    assert events[-1] == "[DONE]"
    assert answer.status == 200
    assert await ended(node, within=10) == 0


async def test_a_draining_node_tells_clients_to_close_their_kept_connections(
    swarm: Swarm, node: Node, worker: OpenAIWorker, client: Client
) -> None:
    async def look() -> str:
        async with client.session.get(f"{node.http}/healthz") as response:
            await response.read()
            return response.headers.get("Connection", "kept")

    # Each of these connections is used once more: half a second after the signal no other is accepted.
    assert await asyncio.gather(*(look() for _ in range(3))) == ["kept"] * 3
    worker.fail(delay_first=1.5)
    asking = asyncio.ensure_future(client.chat(node, "tiny"))
    await until(lambda: len(worker.received) == 1, within=5, otherwise="nothing arrives")
    swarm.ask_to_stop(node)
    await until(lambda: "draining: 1 request" in node.log, within=2, otherwise="no drain")
    assert await look() == "close"
    answer = await client.chat(node, "tiny")
    assert (answer.status, answer.headers["Connection"]) == (503, "close")
    assert (await asking).status == 200
    assert await ended(node, within=10) == 0


@pytest.mark.parametrize("workers", [1, 2])
async def test_a_node_ends_although_its_callers_keep_coming_and_cuts_none_off(
    swarm: Swarm, worker: OpenAIWorker, client: Client, workers: int
) -> None:
    """A proxy sends new requests as long as its connections are accepted."""
    serving = swarm.start("serving")
    node = swarm.start(Start("asked", {"node": {"workers": workers}}), known=[serving])
    await client.register(serving, "p", ["tiny"], worker.url)
    await client.listed([node], "tiny")
    worker.fail(delay_between=0.2)
    last: list[str] = []

    async def come() -> None:
        with suppress(aiohttp.ClientConnectorError):
            while True:
                async with client.stream(node, "tiny") as stream:
                    last.append([event async for event in events_of(stream)][-1])

    async with asyncio.TaskGroup() as group:
        for number in range(6):
            group.create_task(come())
            await until(lambda n=number: len(worker.received) > n, within=5, otherwise="no request")
        swarm.ask_to_stop(node)
        assert await ended(node, within=10) == 0
    assert set(last) == {"[DONE]"}
    assert "unfinished" not in node.log


async def test_a_second_signal_ends_the_node_at_once_whatever_is_in_flight(
    swarm: Swarm, node: Node, worker: OpenAIWorker, client: Client
) -> None:
    worker.fail(hang=True)
    asking = asyncio.ensure_future(client.chat(node, "tiny"))
    await until(lambda: len(worker.received) == 1, within=5, otherwise="nothing arrives")
    swarm.ask_to_stop(node)
    await asyncio.sleep(1.5)
    assert node.running
    began = time.monotonic()
    swarm.ask_to_stop(node)
    assert await ended(node, within=10) == 0
    seconds = time.monotonic() - began
    show("second signal", ended_after=seconds)
    assert seconds < LONGEST_FAREWELL
    with pytest.raises(aiohttp.ClientError):
        await asking
    assert "stopping with 1 requests unfinished" in node.log


async def test_each_request_has_its_line_in_the_log_though_the_node_ends_right_after(
    swarm: Swarm, node: Node, worker: OpenAIWorker, client: Client
) -> None:
    answers = await asyncio.gather(*(client.chat(node, "tiny") for _ in range(200)))
    answers += await asyncio.gather(*(client.chat(node, "nobody-has-this") for _ in range(200)))
    swarm.ask_to_stop(node)
    assert await ended(node, within=10) == 0
    lines = [line for line in node.log.splitlines() if "modelvine.requests  request=" in line]
    ids = {CIMultiDict(answer.headers)["x-request-id"] for answer in answers}
    assert len(lines) == len(answers) == len(ids)
    assert all(any(f"request={id_} " in line for line in lines) for id_ in ids)


async def test_a_flood_of_failures_does_not_fill_the_log(
    swarm: Swarm, node: Node, worker: OpenAIWorker, client: Client
) -> None:
    worker.fail(garbage=True)
    for _ in range(5):
        await asyncio.gather(*(client.chat(node, "tiny") for _ in range(40)))
    bad = (b"GET\r\n\r\n", b"POST / HTTP/9.9\r\n\r\n", b"\x16\x03\x01garbage")
    address = node.http.removeprefix("http://").split(":")
    for n in range(300):
        _, writer = await asyncio.open_connection(address[0], int(address[1]))
        writer.write(bad[n % len(bad)])
        writer.close()
    swarm.ask_to_stop(node)
    assert await ended(node, within=10) == 0
    lines = [line for line in node.log.splitlines() if "request=" not in line]
    show(
        "200 failed requests and 300 that are none", lines_beside_those_of_requests=str(len(lines))
    )
    assert len(lines) < 30


async def test_a_stream_that_does_not_end_in_time_ends_in_an_error(
    swarm: Swarm, worker: OpenAIWorker, client: Client
) -> None:
    node = swarm.start(Start("impatient", {"node": {"drain_timeout": 0.2}}))
    await client.register(node, "p", ["tiny"], worker.url)
    worker.fail(delay_between=20)
    async with client.stream(node, "tiny") as stream:
        events = events_of(stream)
        first = await anext(events)
        swarm.ask_to_stop(node)
        remaining = [event async for event in events]
    assert "error" not in first
    assert orjson.loads(remaining[-1])["error"]["code"] == "answer_broken"
    assert await ended(node, within=10) == 0
    assert re.search(r" model=tiny .* status=502 ", node.log)
