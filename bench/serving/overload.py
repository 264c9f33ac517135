"""Overload: ten times as many requests as can be served, and callers that stop reading.

As many requests are served as before; the rest get an immediate 429 with Retry-After. A hundred callers request 200 MB each and
read nothing: their worker is held up by backpressure, and they are disconnected.
"""

import asyncio
import re
import socket
import time
from collections import Counter

import orjson

from bench.mock import load
from bench.serving.scene import Row, Scene, chat, resident
from tests.swarm.load import Load
from tests.swarm.nodes import Node
from tests.swarm.waiting import percentile

SLOTS = 8
THINKING = 0.1
"""Seconds of an answer: eight slots make 80 answers a second at most."""

SECONDS = 10.0
TIMES = 10


async def measure_overload(scene: Scene) -> list[Row]:
    """Send requests as fast as they can be answered, then ten times as fast."""
    node = await scene.node("overload")
    worker = await asyncio.to_thread(
        scene.swarm.start_worker, "slow", "--delay-first", str(THINKING)
    )
    row = {"project": "bench", "model": "narrow", "api": worker.fields["url"], "type": 0}
    answer = await scene.client.post(node, "/api/v0/ai/model/register", row | {"capacity": SLOTS})
    if answer.status != 200:
        raise RuntimeError(answer.body)
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
    # Requests of the first second fill the queue; those of the last second are answered after the load has ended.
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
    """Return the answers a second with as many concurrent requests as slots."""
    body = scene.body("narrow", orjson.dumps({"model": "narrow", "messages": []}))
    url = f"{node.http}/v1/chat/completions"
    result = await load("req", url, body, c=SLOTS, d=4, w=1)
    return float(result["rps"])


READERS = 100
CHUNKS = 600_000
"""Events of some 330 bytes: 200 MB."""

GIVEN_UP = 60.0
_IN_FLIGHT = re.compile(r"^modelvine_requests_in_flight (\S+)$", re.MULTILINE)


async def measure_readers(scene: Scene) -> list[Row]:
    """Send requests, and do not read the answers."""
    node, _ = await scene.serving("readers")
    await asyncio.sleep(3)
    idle = peak = resident(node)
    began = time.monotonic()
    sockets = [_ask(node) for _ in range(READERS)]
    await asyncio.sleep(1)
    health: list[float] = []
    # A caller that reads nothing does not see the end either, as its window is closed. The node's metrics tell how many are left.
    while (left := await _in_flight(scene, node)) and time.monotonic() < began + GIVEN_UP:
        peak = max(peak, resident(node))
        asked_at = time.monotonic()
        await scene.client.get(node, "/healthz")
        health.append(time.monotonic() - asked_at)
        await asyncio.sleep(0.1)
    took = time.monotonic() - began
    for connection in sockets:
        connection.close()
    return [
        Row(
            f"{READERS} stalled readers of 200 MB: memory",
            "≤ +64 MiB",
            f"+{(peak - idle) * 1e6 / 2**20:.0f} MiB",
            (peak - idle) * 1e6 <= 64 * 2**20,
        ),
        Row(
            "closed after",
            "≤ 35 s",
            f"{took:.0f} s, {left} left",
            not left and took <= 35,
        ),
        Row(
            "`/healthz` meanwhile, longest",
            "< 100 ms",
            f"{max(health) * 1000:.0f} ms",
            max(health) < 0.1,
        ),
    ]


async def _in_flight(scene: Scene, node: Node) -> int:
    match = _IN_FLIGHT.search(await scene.client.metrics(node))
    if match is None:
        raise ValueError("the node does not show what is in flight")
    return int(float(match[1]))


def _ask(node: Node) -> socket.socket:
    host, _, port = node.http.removeprefix("http://").rpartition(":")
    body = chat(f"chunks={CHUNKS} delay_us=0", stream=True)
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16_384)
    connection.connect((host, int(port)))
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
    )
    connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    return connection
