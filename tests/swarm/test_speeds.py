"""Do machines get requests according to their speed? Three real nodes, whose workers differ by 32 times."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest

from tests.swarm.client import Client
from tests.swarm.load import Load
from tests.swarm.nodes import Node
from tests.swarm.waiting import percentile, show
from tests.workers.openai_worker import OpenAIWorker, running

pytestmark = pytest.mark.swarm

MODEL = "unlike"
SECONDS = (0.15, 0.6, 4.8)
"""Long compared with what the nodes take: a slow processor must make the machines neither alike nor too slow for the load."""

SLOTS = 4
BUSY = 0.85
"""Share of what all can bear; more than the quickest can bear alone, so that the next one must have its share."""
LASTS = 20.0
LEARNT = 6.0
"""Seconds after which a node has asked every worker."""


@pytest.fixture
async def workers(three: list[Node], client: Client) -> AsyncIterator[list[OpenAIWorker]]:
    """One worker for each of the three nodes, the quickest first."""
    async with AsyncExitStack() as stack:
        made = []
        for node, seconds in zip(three, SECONDS, strict=True):
            worker = await stack.enter_async_context(running())
            worker.fail(delay_headers=seconds)
            await client.register(node, f"of-{node.name}", [MODEL], worker.url, capacity=SLOTS)
            made.append(worker)
        await client.listed(three, MODEL)
        await client.agreed(three)
        yield made
        for node in three:
            await client.unregister(node, f"of-{node.name}")


async def test_each_machine_gets_requests_according_to_its_speed_and_none_is_refused(
    three: list[Node], client: Client, workers: list[OpenAIWorker]
) -> None:
    bears = sum(SLOTS / seconds for seconds in SECONDS)
    loads = [Load(client, node, MODEL, rate=BUSY * bears / 3) for node in three]
    async with asyncio.TaskGroup() as group:
        for load in loads:
            group.create_task(load.run())
        await asyncio.sleep(LASTS)
        for load in loads:
            load.end()
    shots = [shot for load in loads for shot in load.shots]
    began = min(shot.at for shot in shots)
    answers = [shot.seen for shot in shots if shot.seen and shot.at > began + LEARNT]
    took = sorted(answer.seconds for answer in answers)
    answered = Counter(answer.node for answer in answers)
    show(
        "unlike machines",
        requests=str(len(shots)),
        p50=percentile(took, 0.5),
        p99=percentile(took, 0.99),
        **{node.name: answered[node.peer] / len(answers) for node in three},
    )
    bad = [shot for shot in shots if not shot.good]
    assert not bad, [shot.error or (shot.seen and shot.seen.body) for shot in bad]
    quick, middle, slow = (answered[node.peer] / len(answers) for node in three)
    assert quick > 0.6
    assert middle > 0.05
    assert slow < 0.05
    # Requests at any node, also at the slowest machine itself, are answered by a quick one.
    assert max(worker.most for worker in workers) <= SLOTS
