"""Throughput of long streams and of large bodies.

Each of a thousand streams is followed to its end; memory is measured before and meanwhile. Images of 1.4 MB are generated and
edited, in turns with bare aiohttp.
"""

import asyncio
import json
import statistics
import sys

from bench.compare import call, running, until
from bench.mock import load
from bench.serving.scene import MODEL, Row, Scene, chat, resident

STREAMS = 1_000
CHUNKS = 240
DELAY = 0.25
"""Seconds between two chunks: a stream lasts a minute."""

KIB = 1000 / 1024 * 1000
"""KiB in one MB."""


async def measure_streams(scene: Scene) -> list[Row]:
    """Open all streams at once."""
    node, _ = await scene.serving("streams")
    await asyncio.sleep(3)
    idle = resident(node)
    body = scene.body("streams", chat(f"chunks={CHUNKS} delay_us={DELAY * 1e6:.0f}", stream=True))
    url = f"{node.http}/v1/chat/completions"
    peak = idle
    async with asyncio.TaskGroup() as group:
        # Streams that begin before `d` has passed are followed to their end, for twenty more seconds at most.
        asking = group.create_task(
            load("stream", url, body, c=STREAMS, d=CHUNKS * DELAY - 10, w=0, e=CHUNKS)
        )
        while not asking.done():
            peak = max(peak, resident(node))
            await asyncio.sleep(0.5)
    result = asking.result()
    each = (peak - idle) / STREAMS * KIB
    complete = int(result["ok"])
    return [
        Row(
            f"{STREAMS:,} streams of {CHUNKS * DELAY:.0f} s: whole to the last chunk",
            f"{STREAMS:,}",
            f"{complete:,} ({result['errors']} broke, {result['unfinished']} did not end)",
            complete == STREAMS == result["requests"],
        ),
        Row("memory of each", "≤ 64 KiB", f"{each:.0f} KiB", each <= 64),
        Row("memory of the node, idle", "≤ 160, then ≤ 110 MB", f"{idle:.0f} MB", idle <= 110),
        Row(
            f"memory of the node, {STREAMS:,} streams",
            "≤ 230, then ≤ 150 MB",
            f"{peak:.0f} MB",
            peak <= 150,
        ),
        Row(
            "chunks late by, p50 / p99",
            "p99 ≤ 50 ms",
            f"{result['lag_us']['p50'] / 1e3:.1f} / {result['lag_us']['p99'] / 1e3:.1f} ms",
            result["lag_us"]["p99"] <= 50e3,
        ),
    ]


BYTES = 1_400_000
ROUNDS = 3
SECONDS = 4.0
CONNECTIONS = 8
BARE_PORT = 28_114
BOUNDARY = "x-bench"


async def measure_images(scene: Scene) -> list[Row]:
    """Measure the node and bare aiohttp in turns; return the medians."""
    node, mock = await scene.serving("images")
    request = json.dumps({"model": MODEL, "prompt": f"[[bytes={BYTES}]] a cat"}).encode()
    generations = scene.body("generations", request)
    edits = scene.body("edits", _form())
    worker = f"127.0.0.1:{mock.port}"
    rates: dict[tuple[str, str], list[float]] = {}
    with running(sys.executable, "-m", "bench.bare", str(BARE_PORT), worker, cpu="1"):
        bare = f"http://127.0.0.1:{BARE_PORT}"
        until(lambda: "choices" in call(f"{bare}/v1/chat/completions", {}))
        for _ in range(ROUNDS):
            for name, url in (("bare", bare), ("node", node.http)):
                form = ("-t", f"multipart/form-data; boundary={BOUNDARY}")
                for kind, body, more in (("generations", generations, ()), ("edits", edits, form)):
                    result = await load(
                        "req",
                        f"{url}/v1/images/{kind}",
                        body,
                        *more,
                        c=CONNECTIONS,
                        d=SECONDS,
                        w=0.5,
                    )
                    if result["errors"]:
                        raise RuntimeError(result["last_error"])
                    rates.setdefault((kind, name), []).append(float(result["rps"]))
    rows = []
    for kind, least in (("generations", 1_000), ("edits", 400)):
        ours, theirs = (statistics.median(rates[kind, name]) for name in ("node", "bare"))
        rows.append(
            Row(
                f"images of 1.4 MB a second, {kind}",
                f"≥ {least:,}, then level with bare aiohttp",
                f"{ours:,.0f}; bare aiohttp {theirs:,.0f} (÷ {ours / theirs:.2f})",
                ours >= min(least, theirs),
            )
        )
    return rows


def _form() -> bytes:
    """Return a form with instructions to the worker, the model's name, and an image."""
    fields = (("prompt", "[[bytes=1000]] wearing a beret"), ("model", MODEL))
    parts = [
        f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'.encode()
        for name, value in fields
    ]
    head = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="image"; filename="a.png"\r\n'
    parts.append(
        f"{head}Content-Type: image/png\r\n\r\n".encode() + bytes(range(256)) * (BYTES // 256)
    )
    return b"".join(parts) + f"\r\n--{BOUNDARY}--\r\n".encode()
