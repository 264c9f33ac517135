"""What if ten times as many come as can be served? As many are served as before, the rest is told at once when to come back."""

import asyncio
import time
from collections import Counter

import orjson

from bench.mock import load
from bench.serving.rows import Row
from bench.serving.scene import Scene
from tests.swarm.load import Load
from tests.swarm.nodes import Node
from tests.swarm.waiting import percentile

SLOTS = 8
THINKING = 0.1
"""Seconds: eight slots make 80 answers a second at most."""

SECONDS = 10.0
TIMES = 10


async def measure(scene: Scene) -> list[Row]:
    """Ask as fast as it can answer, then ten times as fast."""
    node = await scene.node("overload")
    worker = await asyncio.to_thread(
        scene.swarm.start_worker, "slow", "--delay-first", str(THINKING)
    )
    row = {"project": "bench", "model": "narrow", "api": worker.fields["url"], "type": 0}
    seen = await scene.client.post(node, "/api/v0/ai/model/register", row | {"capacity": SLOTS})
    if seen.status != 200:
        raise RuntimeError(seen.body)
    peak = await _peak(scene, node)
    load = Load(scene.client, node, "narrow", rate=TIMES * SLOTS / THINKING)
    health: list[float] = []
    async with asyncio.TaskGroup() as group:
        group.create_task(load.run())
        ends = time.monotonic() + SECONDS
        while time.monotonic() < ends:
            began = time.monotonic()
            await scene.client.get(node, "/healthz")
            health.append(time.monotonic() - began)
            await asyncio.sleep(0.05)
        load.end()
    first = load.shots[0].at
    # Those of the first second fill the queue; what was sent in the last is answered after the load has ended.
    steady = [
        s for s in load.shots if s.seen and first + 1 < s.at + s.seen.seconds < first + SECONDS
    ]
    statuses = Counter(shot.seen.status if shot.seen else 0 for shot in load.shots)
    goodput = sum(s.seen.status == 200 for s in steady if s.seen) / (SECONDS - 1)
    refused = [s.seen for s in load.shots if s.seen and s.seen.status == 429]
    bare = [r for r in refused if "Retry-After" not in r.headers]
    waits = sorted(r.seconds for r in refused) or [0.0]
    return [
        Row(
            f"overload by {TIMES}, {len(load.shots):,} requests: answered",
            "≥ 80 % of peak",
            f"{goodput:.0f}/s, {goodput / peak:.0%} of {peak:.0f}/s",
            goodput >= 0.8 * peak,
        ),
        Row(
            "the rest",
            "429 and Retry-After",
            f"{dict(statuses)}, {len(bare)} without Retry-After",
            set(statuses) <= {200, 429} and not bare,
        ),
        Row(
            "a 429 comes after, p50 / p99",
            "< 100 ms",
            f"{percentile(waits, 0.5) * 1000:.0f} / {percentile(waits, 0.99) * 1000:.0f} ms",
            percentile(waits, 0.99) < 0.1,
        ),
        Row(
            "`/healthz` meanwhile, p50 / longest",
            "< 100 ms",
            f"{percentile(health, 0.5) * 1000:.0f} / {max(health) * 1000:.0f} ms",
            max(health) < 0.1,
        ),
    ]


async def _peak(scene: Scene, node: Node) -> float:
    """Return how many requests a second are answered when as many ask as there are slots."""
    body = scene.body("narrow", orjson.dumps({"model": "narrow", "messages": []}))
    url = f"{node.http}/v1/chat/completions"
    said = await load("req", url, body, c=SLOTS, d=4, w=1)
    return float(said["rps"])
