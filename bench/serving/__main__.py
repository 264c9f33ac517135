"""Behaviour of a node when all callers come at once, or read too slowly: figures and their goals.

    python -m bench.serving                        everything, some four minutes
    python -m bench.serving --only overload

Nodes and workers run on loopback, each as a process of its own. Needs a C compiler. Exit status 1: a goal was missed.
"""

import argparse
import asyncio
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import AsyncExitStack, ExitStack
from datetime import UTC, datetime
from pathlib import Path

from bench.compare import machine, replace_between_marks
from bench.mock import build
from bench.serving.apart import measure_apart
from bench.serving.overload import measure_overload, measure_readers
from bench.serving.scene import Row, Scene, table
from bench.serving.throughput import measure_images, measure_streams
from tests.swarm.client import connected
from tests.swarm.nodes import Swarm

STARTS = 5


async def measure_starting(scene: Scene) -> list[Row]:
    """Start a node and the help a few times each; return the medians."""
    number = iter(range(STARTS))
    ready = await asyncio.to_thread(
        _median, lambda: scene.swarm.start(f"started{next(number)}"), times=STARTS
    )
    helped = await asyncio.to_thread(
        _median,
        lambda: subprocess.run(
            [sys.executable, "-m", "node", "--help"], capture_output=True, check=True
        ),
        times=STARTS,
    )
    return [
        Row("`modelvine up` to ready", "≤ 4, then ≤ 2 s", f"{ready:.2f} s", ready <= 2),
        Row("`modelvine --help`", "≤ 0.3, then ≤ 0.15 s", f"{helped:.2f} s", helped <= 0.15),
    ]


def _median(do: Callable[[], object], *, times: int) -> float:
    seconds = []
    for _ in range(times):
        began = time.monotonic()
        do()
        seconds.append(time.monotonic() - began)
    return statistics.median(seconds)


PARTS = {
    "starting": measure_starting,
    "apart": measure_apart,
    "overload": measure_overload,
    "readers": measure_readers,
    "images": measure_images,
    "streams": measure_streams,
}


async def measure(only: list[str], folder: Path) -> list[Row]:
    """Measure the parts one after the other, each with nodes of its own."""
    rows: list[Row] = []
    for name in only:
        print(name, file=sys.stderr, flush=True)
        own_folder = folder / name
        own_folder.mkdir()
        async with AsyncExitStack() as stack:
            swarm = stack.enter_context(Swarm(own_folder))
            client = await stack.enter_async_context(connected())
            ended = stack.enter_context(ExitStack())
            rows += await PARTS[name](Scene(swarm, client, own_folder, ended))
    return rows


def main() -> int:
    """Measure, and print a table; return 1 if a goal was missed."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.serving",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", default=",".join(PARTS), help=f"of: {', '.join(PARTS)}")
    parser.add_argument("--write", type=Path, help="page whose table is replaced")
    options = parser.parse_args()
    build()
    # On SIGTERM, stop the started processes too.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with tempfile.TemporaryDirectory(prefix="modelvine-serving-") as name:
        rows = asyncio.run(measure(options.only.split(","), Path(name)))
    only = "" if options.only == ",".join(PARTS) else f" --only {options.only}"
    command = f"python -m bench.serving{only}"
    measured = f"Measured {datetime.now(UTC):%Y-%m-%d} with `{command}` on {machine()}."
    text = f"{measured}\n\n{table(rows)}"
    print(text)
    if options.write:
        replace_between_marks(options.write, text, "serving")
    return 0 if all(row.kept for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
