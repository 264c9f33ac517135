"""What do a thousand streams at once cost? Each is followed to its end; memory is looked at before and meanwhile."""

import asyncio

from bench.mock import load
from bench.serving.rows import Row
from bench.serving.scene import Scene, chat, resident

STREAMS = 1_000
CHUNKS = 240
DELAY = 0.25
"""Seconds between two chunks: a stream lasts a minute."""

KIB = 1000 / 1024 * 1000
"""KiB in one MB."""


async def measure(scene: Scene) -> list[Row]:
    """Open all streams at once."""
    node, _ = await scene.serving("streams")
    await asyncio.sleep(3)
    idle = resident(node)
    body = scene.body("streams", chat(f"chunks={CHUNKS} delay_us={DELAY * 1e6:.0f}", stream=True))
    url = f"{node.http}/v1/chat/completions"
    most = idle
    async with asyncio.TaskGroup() as group:
        # Streams begun before `d` has passed are followed to their end, twenty seconds longer at most.
        asking = group.create_task(
            load("stream", url, body, c=STREAMS, d=CHUNKS * DELAY - 10, w=0, e=CHUNKS)
        )
        while not asking.done():
            most = max(most, resident(node))
            await asyncio.sleep(0.5)
    said = asking.result()
    each = (most - idle) / STREAMS * KIB
    whole = int(said["ok"])
    return [
        Row(
            f"{STREAMS:,} streams of {CHUNKS * DELAY:.0f} s: whole to the last chunk",
            f"{STREAMS:,}",
            f"{whole:,} ({said['errors']} broke, {said['unfinished']} did not end)",
            whole == STREAMS == said["requests"],
        ),
        Row("memory of each", "≤ 64 KiB", f"{each:.0f} KiB", each <= 64),
        Row("memory of the node, idle", "≤ 160, then ≤ 110 MB", f"{idle:.0f} MB", idle <= 110),
        Row(
            f"memory of the node, {STREAMS:,} streams",
            "≤ 230, then ≤ 150 MB",
            f"{most:.0f} MB",
            most <= 150,
        ),
        Row(
            "chunks late by, p50 / p99",
            "p99 ≤ 50 ms",
            f"{said['lag_us']['p50'] / 1e3:.1f} / {said['lag_us']['p99'] / 1e3:.1f} ms",
            said["lag_us"]["p99"] <= 50e3,
        ),
    ]
