"""How do policies compare with real workers, beside the simulator's order? Five llama.cpp, of one and two threads.

Two cores cannot give each its own, so they differ as machines in use do: by threads, by slots, and by other load.
"""

import asyncio
import random
from collections.abc import Sequence
from itertools import cycle

import orjson
import pytest

from tests.swarm.client import Client, connected
from tests.swarm.nodes import Node, Start, Swarm
from tests.swarm.waiting import percentile, show

pytestmark = [pytest.mark.swarm, pytest.mark.alone, pytest.mark.timeout(900)]

# Threads and slots.
WORKERS = ((2, 4), (2, 2), (1, 4), (1, 2), (1, 1))
POLICIES = ("p2c", "weighted", "round_robin")
ROUNDS = 1
LASTS = 10.0
BUSY = 0.7
WORDS = "It was the best of times, it was the worst of times. "


@pytest.fixture
async def entries(swarm: Swarm, client: Client) -> list[Node]:
    """A node for each policy, none of which has a worker, and two more that have five between them."""
    starts = [Start(name, {"router": {"policy": name, "queue_timeout": 60}}) for name in POLICIES]
    behind = {"router": {"queue_timeout": 60}}
    nodes = swarm.start_all(Start("left", behind), Start("right", behind), *starts)
    serving, asked = nodes[:2], nodes[2:]
    for number, ((threads, slots), node) in enumerate(zip(WORKERS, cycle(serving), strict=False)):
        worker = swarm.start_worker(
            f"llama-{number}",
            *("--threads", str(threads), "--slots", str(slots)),
            *("--alias", MODEL),
            module="node.demo.worker",
        )
        row = {"cid": str(number), "capacity": slots}
        await client.register(node, f"real-{number}", [MODEL], worker.ready.split()[1], **row)
    await client.listed(asked, MODEL)
    return asked


MODEL = "unlike"


def body(draw: random.Random) -> dict[str, object]:
    text = WORDS * max(1, int(draw.lognormvariate(1.0, 0.8)))
    tokens = max(1, min(50, int(draw.lognormvariate(2.0, 0.8))))
    message = {"role": "user", "content": f"{draw.random()} {text[:1_500]}"}
    return {"model": MODEL, "messages": [message], "max_tokens": tokens, "temperature": 0}


async def burst(client: Client, entry: Node, *, rate: float, seed: int) -> list[float]:
    """Send requests as they come, so many a second, and return how long each took."""
    draw, took = random.Random(seed), []

    async def ask(fields: dict[str, object]) -> None:
        answer = await client.post(entry, "/v1/chat/completions", fields)
        assert answer.status == 200, orjson.loads(answer.body)
        took.append(answer.seconds)

    async with asyncio.TaskGroup() as group:
        remaining = LASTS
        while remaining > 0:
            group.create_task(ask(body(draw)))
            pause = draw.expovariate(rate)
            await asyncio.sleep(pause)
            remaining -= pause
    return took


async def capacity(client: Client, entry: Node) -> float:
    """Return how many such requests a second all workers can do, asked by as many callers as there are slots."""
    draw, done, loop = random.Random(0), 0, asyncio.get_running_loop()
    ends = loop.time() + LASTS

    async def keep_asking() -> None:
        nonlocal done
        while loop.time() < ends:
            answer = await client.post(entry, "/v1/chat/completions", body(draw))
            assert answer.status == 200
            done += 1

    await asyncio.gather(*(keep_asking() for _ in range(sum(slots for _, slots in WORKERS))))
    return done / LASTS


async def test_each_policy_gets_all_requests_answered_by_workers_of_unlike_speed(
    entries: Sequence[Node],
) -> None:
    took: dict[str, list[float]] = {name: [] for name in POLICIES}
    async with connected(patience=120) as patient:
        bears = await capacity(patient, entries[0])
        for turn in range(ROUNDS):
            for name, entry in zip(POLICIES, entries, strict=True):
                took[name] += await burst(patient, entry, rate=BUSY * bears, seed=turn)
    # The goals are in docs/performance.md: beside other tests times say little, and only failures count here.
    assert len({len(seconds) for seconds in took.values()}) == 1
    for name, seconds in took.items():
        show(
            name,
            requests=str(len(seconds)),
            mean=sum(seconds) / len(seconds),
            p50=percentile(seconds, 0.5),
            p99=percentile(seconds, 0.99),
        )
