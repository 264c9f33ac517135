"""Does the worker stop when its caller hangs up? Before the first byte and after it, over every kind of route."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from uuid import uuid4

import aiohttp
import pytest

from tests.swarm.client import Client, events_of
from tests.swarm.nodes import Node, Start, Swarm
from tests.swarm.waiting import show, until
from tests.workers.openai_worker import OpenAIWorker, running

pytestmark = pytest.mark.swarm

WITHIN = 0.5
"""Seconds until the worker should have noticed; by itself it would work on ten times as long."""


@dataclass(frozen=True, slots=True)
class Way:
    """How a request travels: which node is asked for which model, and the worker at the other end."""

    name: str
    asked: Node
    model: str
    worker: OpenAIWorker


@pytest.fixture(scope="module")
def hidden(swarm: Swarm, three: list[Node]) -> Node:
    """A node that can be reached over a libp2p pipe alone."""
    return swarm.start(Start("hidden", module="tests.swarm.hidden_node"), known=three[:1])


@pytest.fixture(params=["local", "two hops", "two hops, the second over a pipe"])
async def way(
    request: pytest.FixtureRequest, three: list[Node], hidden: Node, client: Client
) -> AsyncIterator[Way]:
    """A route to a worker that has just answered."""
    serving, asked = {
        "local": (three[0], three[0]),
        "two hops": (three[0], three[2]),
        "two hops, the second over a pipe": (hidden, three[2]),
    }[request.param]
    await client.met([*three, hidden])
    model = f"cancelled-{uuid4().hex[:8]}"
    async with running() as worker:
        await client.register(serving, "cancelled", [model], worker.url)
        await client.listed([asked], model)
        # The first request over a new route opens connections, which is not what is timed here.
        assert (await client.chat(asked, model)).status == 200
        yield Way(request.param, asked, model, worker)
        await client.unregister(serving, "cancelled")


@asynccontextmanager
async def _connection(node: Node) -> AsyncIterator[asyncio.StreamWriter]:
    host, _, port = node.http[7:].rpartition(":")
    _, writer = await asyncio.open_connection(host, int(port))
    try:
        yield writer
    finally:
        writer.transport.abort()


async def _notices(worker: OpenAIWorker, since: float) -> float:
    return await until(
        lambda: worker.hung_up == 1,
        within=WITHIN,
        since=since,
        otherwise="the worker works on for nobody",
    )


async def test_a_worker_notices_that_its_caller_hung_up_in_mid_stream(
    way: Way, client: Client
) -> None:
    worker = way.worker
    worker.fail(delay_between=5)
    async with client.stream(way.asked, way.model) as response:
        assert response.status == 200
        async for _ in events_of(response):
            break
        left_at = time.monotonic()
        response.close()
    show(f"hung up in mid-stream, {way.name}", noticed_after=await _notices(worker, left_at))


@pytest.mark.parametrize("fault", [{"hang": True}, {"delay_first": 30}], ids=["headers", "byte"])
async def test_a_worker_notices_that_its_caller_hung_up_before_anything_came(
    way: Way, client: Client, fault: dict[str, object]
) -> None:
    worker = way.worker
    worker.fail(**fault)
    before = len(worker.received)
    body = b'{"model":"%b","messages":[]}' % way.model.encode()
    raw = f"POST /v1/chat/completions HTTP/1.1\r\nHost: {way.asked.http[7:]}\r\n"
    raw += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    async with _connection(way.asked) as writer:
        writer.write(raw.encode() + body)
        await until(
            lambda: len(worker.received) > before, within=3, otherwise="nothing reached the worker"
        )
        assert worker.hung_up == 0
        left_at = time.monotonic()
    show(
        f"hung up before the first byte, {way.name}", noticed_after=await _notices(worker, left_at)
    )


async def test_a_plain_request_that_is_given_up_is_given_up_at_the_worker(
    way: Way, client: Client
) -> None:
    worker = way.worker
    worker.fail(hang=True)
    body = {"model": way.model, "messages": []}
    url, patience = f"{way.asked.http}/v1/chat/completions", aiohttp.ClientTimeout(total=0.5)
    with pytest.raises(TimeoutError):
        async with client.session.post(url, json=body, timeout=patience):
            pass
    left_at = time.monotonic()
    show(f"gave up a plain request, {way.name}", noticed_after=await _notices(worker, left_at))
