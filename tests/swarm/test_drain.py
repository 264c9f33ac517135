"""What do callers notice when all nodes are restarted, one after the other? Nothing, if they know more than one node."""

import asyncio
import itertools
import time
from collections import Counter

import aiohttp
import orjson
import pytest

from tests.swarm.client import Client
from tests.swarm.nodes import Node, Swarm
from tests.swarm.waiting import percentile, show
from tests.workers.openai_worker import running

pytestmark = pytest.mark.swarm

RATE = 50.0
CHAT = "/v1/chat/completions"


@pytest.fixture(scope="module")
def five(swarm: Swarm) -> list[Node]:
    """Five nodes."""
    return swarm.start_all("node1", "node2", "node3", "node4", "node5")


class Fleet:
    """Callers that know all nodes: each asks the next one, and another only where nothing listens."""

    def __init__(self, nodes: list[Node], model: str) -> None:
        self.nodes = nodes
        self.seen: Counter[str] = Counter()
        self.seconds: list[float] = []
        self.closes = 0
        self._body = orjson.dumps({"model": model, "messages": []})
        self._turns = itertools.count()
        self._ended = asyncio.Event()

    def end(self) -> None:
        """Send nothing more."""
        self._ended.set()

    async def run(self, session: aiohttp.ClientSession) -> None:
        """Send `RATE` requests a second until `end`."""
        async with asyncio.TaskGroup() as group:
            due = time.monotonic()
            while not self._ended.is_set():
                group.create_task(self._ask(session))
                due += 1 / RATE
                await asyncio.sleep(max(0.0, due - time.monotonic()))

    async def _ask(self, session: aiohttp.ClientSession) -> None:
        first = next(self._turns)
        began = time.monotonic()
        for turn in range(first, first + len(self.nodes)):
            node = self.nodes[turn % len(self.nodes)]
            headers = {"Content-Type": "application/json"}
            try:
                async with session.post(
                    node.http + CHAT, data=self._body, headers=headers
                ) as answer:
                    await answer.read()
            except aiohttp.ClientConnectorError:
                self.seen["nobody listens, asked the next"] += 1
                continue
            except (aiohttp.ClientError, TimeoutError) as error:
                self.seen[type(error).__name__] += 1
            else:
                self.seen[str(answer.status)] += 1
                self.closes += answer.headers.get("Connection") == "close"
                self.seconds.append(time.monotonic() - began)
            return
        self.seen["nobody listens anywhere"] += 1


async def test_five_nodes_are_restarted_one_after_the_other_and_no_request_fails(
    swarm: Swarm, five: list[Node], client: Client
) -> None:
    await client.met(five)
    async with running() as one, running() as two:
        for node, worker in ((five[0], one), (five[3], two)):
            await client.register(node, "rolling", ["rolling"], worker.url)
        await client.listed(five, "rolling")
        fleet = Fleet(five, "rolling")
        codes: list[int] = []
        stops: list[float] = []
        async with asyncio.TaskGroup() as group:
            group.create_task(fleet.run(client.session))
            await asyncio.sleep(2)
            for index, node in enumerate(list(five)):
                began = time.monotonic()
                codes.append(await asyncio.to_thread(swarm.stop, node))
                stops.append(time.monotonic() - began)
                known = [other for other in five if other.running][:2]
                five[index] = await asyncio.to_thread(swarm.again, node, known=known)
                await client.met(five)
                await client.listed(five, "rolling")
            await asyncio.sleep(1)
            fleet.end()
    show(
        "rolling restart of 5 nodes at 50/s",
        answers=", ".join(f"{outcome}: {n}" for outcome, n in sorted(fleet.seen.items())),
        p50=percentile(fleet.seconds, 0.5),
        p99=percentile(fleet.seconds, 0.99),
        slowest=max(fleet.seconds),
        told_to_close_their_connection=str(fleet.closes),
        slowest_stop=max(stops),
    )
    assert codes == [0] * 5
    assert set(fleet.seen) <= {"200", "nobody listens, asked the next"}
    assert fleet.closes
