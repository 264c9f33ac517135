"""Receipts of two nodes, of which one is killed under a mixed load: they agree to the token, and nothing is counted twice."""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.swarm.client import PROMPT, Client
from tests.swarm.nodes import Node, Start, Swarm
from tests.swarm.waiting import show, until
from tests.workers.openai_worker import OpenAIWorker, running

pytestmark = pytest.mark.swarm

MODEL, SPARE = "written-down", "spare"
SECONDS, RATE = float(os.environ.get("RECEIPTS_SECONDS", "12")), 25.0
EVERY = 12.0
"""Seconds after which the node that serves is killed again."""

LOST = 1.0
"""Seconds before a kill of which a node may have lost receipts; a quarter is the goal."""


class Site:
    """A node that asks and one that serves, each with a helper; the time of each kill is noted."""

    def __init__(self, swarm: Swarm) -> None:
        self.swarm = swarm
        self.serving = swarm.start(Start("serving", {"node": {"workers": 2}}))
        self.asking = swarm.start(Start("asking", {"node": {"workers": 2}}), known=[self.serving])
        self.killed: list[float] = []

    async def kill_the_server(self) -> None:
        """End the node that serves as a power cut would, and start it with its files."""
        self.killed.append(time.monotonic())
        self.swarm.kill(self.serving.actor)
        again = asyncio.to_thread(self.swarm.again, self.serving, known=[self.asking])
        self.serving = await again


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with Swarm(tmp_path) as swarm:
        yield Site(swarm)


@pytest.fixture
async def worker(site: Site, client: Client) -> AsyncIterator[OpenAIWorker]:
    async with running() as worker:
        await client.register(site.serving, "p", [MODEL], worker.url)
        await client.register(site.asking, "q", [SPARE], worker.url)
        yield worker


async def test_receipts_agree_after_a_kill_under_load(
    site: Site, client: Client, worker: OpenAIWorker
) -> None:
    await until(lambda: _knows(client, site.asking), within=10, otherwise="the model is known")
    good: list[float] = []
    began = time.monotonic()
    async with asyncio.TaskGroup() as group:
        for number in range(int(SECONDS * RATE)):
            # One in three is a stream, and one in four is answered by the node that asks.
            name = SPARE if number % 4 == 0 else MODEL
            group.create_task(_ask(client, site.asking, name, stream=number % 3 == 0, good=good))
            if number % int(EVERY * RATE) == int(EVERY * RATE / 2):
                group.create_task(site.kill_the_server())
            await asyncio.sleep(max(0.0, began + number / RATE - time.monotonic()))
    await until(lambda: _compared_at_all(client, site), within=10, otherwise="they are compared")
    totals = await _compare(client, site)
    late = sum(any(kill - LOST <= at <= kill for kill in site.killed) for at in good)
    show(
        "receipts",
        kills=len(site.killed),
        asked=len(good),
        agreed=totals["answers"],
        tokens=totals["tokens"],
        asking_alone=totals["counts"]["only_here"],
        serving_alone=totals["counts"]["only_there"],
        in_the_last_second=late,
    )
    assert totals["faults"] == []
    assert totals["differ"] == []
    # The node that asks is never killed, so it has each receipt that the other kept, but for answers that broke off on the way.
    assert totals["counts"]["only_there"] <= late
    assert totals["counts"]["only_here"] <= late
    # The last receipts of a helper take a moment to reach the first process.
    await until(lambda: _counted(client, site, len(good)), within=5, otherwise="each is counted")


async def _ask(client: Client, node: Node, name: str, *, stream: bool, good: list[float]) -> None:
    body = {"model": name, "messages": PROMPT, "stream": stream}
    # The kernel chooses one of the node's processes for each connection.
    headers = {"Connection": "close"}
    answer = await client.post(node, "/v1/chat/completions", body, headers=headers)
    if name == MODEL and answer.status == 200 and b'"error"' not in answer.body:
        good.append(time.monotonic())


async def _compare(client: Client, site: Site) -> dict[str, object]:
    path = f"/api/v1/receipts/{site.serving.peer}/comparison"
    totals = await client.get(site.asking, path)
    assert isinstance(totals, dict)
    return totals


async def _counted(client: Client, site: Site, answers: int) -> bool:
    sums = (await client.get(site.asking, "/api/v1/receipts"))["receipts"]
    return sum(row["answers"] for row in sums) == answers


async def _compared_at_all(client: Client, site: Site) -> bool:
    path = f"{site.asking.http}/api/v1/receipts/{site.serving.peer}/comparison"
    async with client.session.get(path) as response:
        return response.status == 200


async def _knows(client: Client, node: Node) -> bool:
    return MODEL in await client.models(node)
