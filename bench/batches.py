"""Batches over real nodes: how long one takes on machines of different speeds, and how it affects people who chat meanwhile.

    python -m bench.batches                   some four minutes
    python -m bench.batches --only speeds     without llama.cpp
    python -m bench.batches --write docs/performance.md

`speeds`: three nodes, each with a simulated worker of two slots; the fastest is eight times as fast as the slowest.
`prompts`: cache hits, see `bench.prompts`.
"""

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import openai

from bench import prompts
from bench.batch_run import answered, provide
from bench.compare import replace_between_marks
from bench.serving.scene import Row, table
from tests.swarm.client import Client, connected
from tests.swarm.nodes import Node, Swarm
from tests.swarm.waiting import percentile

MODEL = "answers"
SECONDS = (0.48, 0.24, 0.06)
"""Seconds of an answer at each worker."""

SLOTS = 2
LINES = 500
CHATS = 120
EVERY = 0.15
"""Seconds between two chats of people, sent whether or not earlier ones are answered."""


async def measure(swarm: Swarm, client: Client) -> list[Row]:
    """Measure chats alone, a batch alone, and chats beside a batch."""
    nodes = swarm.start_all("one", "two", "three")
    for node, seconds in zip(nodes, SECONDS, strict=True):
        worker = swarm.start_worker(f"takes{seconds}", "--delay-first", f"{seconds}")
        await client.register(node, "p", [MODEL], worker.fields["url"], capacity=SLOTS)
    provide(swarm, nodes[0])
    await client.listed(nodes, MODEL, "batch")
    ideal = LINES / sum(SLOTS / seconds for seconds in SECONDS)
    async with openai.AsyncOpenAI(base_url=f"{nodes[1].http}/v1", api_key="x") as ask:
        await people(nodes[2], client)
        alone = await people(nodes[2], client)
        took = min([await batch(ask) for _ in range(2)])
        running = asyncio.ensure_future(batch(ask, lines=4 * LINES))
        await asyncio.sleep(1)
        beside = await people(nodes[2], client)
        running.cancel()
    p50, p99 = (percentile(beside, s) / percentile(alone, s) for s in (0.5, 0.99))
    figures = f"{1e3 * percentile(alone, 0.99):.0f} → {1e3 * percentile(beside, 0.99):.0f} ms"
    return [
        Row(f"{LINES:,} lines on machines of speed 1 : 2 : 8, against the ideal {ideal:.1f} s", "≤ 1.15",
            f"{took:.1f} s, {took / ideal:.2f}", took <= 1.15 * ideal),
        Row("people's answers beside a batch ÷ without, p50", "≤ 1.1", f"{p50:.2f}", p50 <= 1.1),
        Row("the same, p99", "first ≤ 1.3, then ≤ 1.1", f"{p99:.2f} ({figures})", p99 <= 1.3),
    ]  # fmt: skip


async def batch(ask: openai.AsyncOpenAI, lines: int = LINES) -> float:
    """Return the seconds that a batch of lines without a common prefix takes."""
    bodies = [
        {"model": MODEL, "messages": [{"role": "user", "content": str(n)}]} for n in range(lines)
    ]
    return (await answered(ask, bodies))[0]


async def people(node: Node, client: Client) -> Sequence[float]:
    """Send chats at a steady pace, and return the seconds of each answer."""

    async def one() -> float:
        began = time.monotonic()
        answer = await client.chat(node, MODEL)
        assert answer.status == 200, answer.body
        return time.monotonic() - began

    tasks = []
    for _ in range(CHATS):
        tasks.append(asyncio.ensure_future(one()))
        await asyncio.sleep(EVERY)
    return await asyncio.gather(*tasks)


PARTS = {"speeds": measure, "prompts": prompts.measure}


async def _measured(only: Sequence[str]) -> list[Row]:
    rows: list[Row] = []
    for name in only:
        with tempfile.TemporaryDirectory() as folder, Swarm(Path(folder)) as swarm:
            async with connected() as client:
                rows += await PARTS[name](swarm, client)
    return rows


def main() -> int:
    """Measure, print the table, and write it if requested; return 1 if a goal was missed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--write", type=Path, help="page whose table is replaced")
    parser.add_argument("--only", choices=PARTS, action="append", help="measure this part")
    arguments = parser.parse_args()
    rows = asyncio.run(_measured(arguments.only or PARTS))
    text = f"Measured {datetime.now(UTC):%Y-%m-%d} with `python -m bench.batches`.\n\n{table(rows)}"
    print(text)
    if arguments.write:
        replace_between_marks(arguments.write, text, "batches")
    return 0 if all(row.kept for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
