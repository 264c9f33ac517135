"""How long until a node serves, and until the command line says what it can do?"""

import asyncio
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

from bench.serving.rows import Row
from bench.serving.scene import Scene

TIMES = 5


async def measure(scene: Scene) -> list[Row]:
    """Start each a few times; medians."""
    number = iter(range(TIMES))
    ready = await asyncio.to_thread(
        _median, lambda: scene.swarm.start(f"started{next(number)}"), times=TIMES
    )
    helped = await asyncio.to_thread(
        _median,
        lambda: subprocess.run(
            [sys.executable, "-m", "node", "--help"], capture_output=True, check=True
        ),
        times=TIMES,
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
