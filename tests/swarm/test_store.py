"""What if the store fails? Registrations survive a restart, serving goes on, and nobody is told a thing is kept that is not."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator

import orjson
import pytest

from tests.redis_server import RedisServer
from tests.swarm.client import Client
from tests.swarm.nodes import Node, Start, Swarm
from tests.swarm.waiting import percentile, show, until
from tests.workers.openai_worker import OpenAIWorker, running

pytestmark = pytest.mark.swarm

MODEL = "kept-in-redis"
NOWHERE = "http://127.0.0.1:9/v1"


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """A Redis server of our own."""
    with RedisServer(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture(scope="module")
def started(swarm: Swarm, redis: RedisServer) -> list[Node]:
    """A node that keeps everything in Redis, and one that does not."""
    return swarm.start_all(Start("kept", {"node": {"store": redis.url}}), "other")


@pytest.fixture
async def nodes(
    started: list[Node], redis: RedisServer, client: Client
) -> AsyncIterator[list[Node]]:
    """The two, once they have met, with a Redis that works."""
    await client.met(started)
    await _ready(client, started[0], "ok")
    yield started
    assert all(node.running for node in started)


@pytest.fixture
async def worker(nodes: list[Node], client: Client) -> AsyncIterator[OpenAIWorker]:
    """A worker behind the node that keeps everything in Redis."""
    async with running() as worker:
        await client.register(nodes[0], "store", [MODEL], worker.url)
        await client.listed(nodes, MODEL)
        yield worker


async def _ready(client: Client, node: Node, status: str, *, within: float = 10.0) -> float:
    async def so() -> bool:
        ready = await client.get(node, "/readyz")
        assert (ready["parts"]["store"] == "ok") is (ready["status"] == "ok")
        return bool(ready["status"] == status)

    return await until(so, within=within, otherwise=f"{node.name} is not {status}")


async def _refused(client: Client, node: Node) -> float:
    """Try to register, and return after how many seconds it was told that this is not kept."""
    row = {"project": "lost", "model": "lost", "api": NOWHERE, "type": 0}
    seen = await client.post(node, "/api/v0/ai/model/register", row)
    said = orjson.loads(seen.body)
    assert (seen.status, said["code"], said["error"]["code"]) == (500, 5000, "not_saved")
    assert "lost" not in await client.models(node)
    return seen.seconds


async def _serving(client: Client, nodes: list[Node], what: str, *, seconds: float = 2.0) -> None:
    """Ask both nodes for a while: every answer is good."""
    took: list[float] = []
    until_then = time.monotonic() + seconds
    while time.monotonic() < until_then:
        for node in nodes:
            seen = await client.chat(node, MODEL)
            assert seen.status == 200, seen.body
            took.append(seen.seconds)
        await asyncio.sleep(0.02)
    show(what, requests=str(len(took)), p50=percentile(took, 0.5), p99=percentile(took, 0.99))


async def test_registrations_in_redis_survive_a_restart(
    started: list[Node], nodes: list[Node], worker: OpenAIWorker, client: Client, swarm: Swarm
) -> None:
    before = nodes[0]
    assert await asyncio.to_thread(swarm.stop, before) == 0
    started[0] = await asyncio.to_thread(swarm.again, before, known=nodes[1:])
    assert started[0].peer == before.peer
    assert MODEL in await client.models(started[0])
    await client.met(started)
    assert (await client.chat(started[1], MODEL)).status == 200


async def test_a_frozen_redis_stops_registrations_and_nothing_else(
    nodes: list[Node], worker: OpenAIWorker, client: Client, redis: RedisServer
) -> None:
    await _serving(client, nodes, "Redis well")
    redis.freeze()
    try:
        refused = await _refused(client, nodes[0])
        noticed = await _ready(client, nodes[0], "degraded")
        await _serving(client, nodes, "Redis frozen")
        assert await _ready(client, nodes[0], "degraded", within=0.5) < 0.1
    finally:
        redis.thaw()
    back = await _ready(client, nodes[0], "ok")
    show("Redis frozen", refused_after=refused, degraded_after=refused + noticed, well_again=back)
    await client.register(nodes[0], "again", ["again"], NOWHERE)
    await client.listed(nodes, "again")
    await client.unregister(nodes[0], "again")


async def test_a_dead_redis_stops_registrations_and_nothing_else(
    nodes: list[Node], worker: OpenAIWorker, client: Client, redis: RedisServer
) -> None:
    redis.stop()
    try:
        refused = await _refused(client, nodes[0])
        noticed = await _ready(client, nodes[0], "degraded")
        await _serving(client, nodes, "Redis dead")
        assert await _ready(client, nodes[0], "degraded", within=0.5) < 0.1
    finally:
        redis.start()
    back = await _ready(client, nodes[0], "ok")
    show("Redis dead", refused_after=refused, degraded_after=refused + noticed, well_again=back)
    await client.register(nodes[0], "again", ["again"], NOWHERE)
    await client.listed(nodes, "again")
    await client.unregister(nodes[0], "again")


async def test_an_emptied_redis_is_told_everything_again(
    started: list[Node],
    nodes: list[Node],
    worker: OpenAIWorker,
    client: Client,
    redis: RedisServer,
    swarm: Swarm,
) -> None:
    async def filled() -> bool:
        return await asyncio.to_thread(redis.command, "DBSIZE") == before

    before = await asyncio.to_thread(redis.command, "DBSIZE")
    await asyncio.to_thread(redis.command, "FLUSHALL")
    await _serving(client, nodes, "Redis emptied")
    show("Redis emptied", filled=await until(filled, within=10, otherwise="Redis stayed empty"))
    await asyncio.to_thread(swarm.kill, started[0].actor)
    started[0] = await asyncio.to_thread(swarm.again, started[0], known=nodes[1:])
    assert MODEL in await client.models(started[0])
    await client.met(started)
