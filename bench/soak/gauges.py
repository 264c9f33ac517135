"""Gauges of a node's growth over a soak test, from its own metrics: memory as a slope, the rest as before and after."""

import math
import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

SERIES = {
    "resident": "process_resident_memory_bytes",
    "descriptors": "process_open_fds",
    "tasks": r'modelvine_tasks\{loop="http"\}',
    "mesh_tasks": r'modelvine_tasks\{loop="mesh"\}',
    "threads": "modelvine_threads",
    "peers": "modelvine_mesh_connections",
    "wires": "modelvine_mesh_wires",
    "standing": "modelvine_mesh_standing_streams",
}

COUNTED = ("descriptors", "tasks", "mesh_tasks", "threads")

MIB = 1024 * 1024
PER = 50_000
"""Requests for which the slope of memory is stated."""

SLOPE = 1.0
"""MiB by which a node may grow in `PER` requests."""

WARM_UP = 0.3
"""Share of the requests after which a node's caches and pools are as full as they will be."""

SURE = 2.0
"""Standard errors by which the slope has to exceed its bound."""

SPARE = 8
"""Additional descriptors, tasks or threads that a node may have at the end."""

OF_A_WIRE = 8
"""Tasks of the mesh for a second connection to a peer, which arises if both ends dial at the same time."""


OF_A_STREAM = 1
"""Task of the mesh for each idle stream that a peer keeps for its next question; they come and go, a few for each peer."""


@dataclass(frozen=True, slots=True)
class Gauge:
    """Metrics of a node's process after so many requests."""

    requests: int
    resident: float
    descriptors: int
    tasks: int
    mesh_tasks: int
    threads: int
    doubled: int
    standing: int


def read(metrics: str, requests: int) -> Gauge:
    """Read a gauge from a node's metrics."""
    values = {name: _value(metrics, series) for name, series in SERIES.items()}
    return Gauge(
        requests,
        values["resident"] / MIB,
        int(values["descriptors"]),
        int(values["tasks"]),
        int(values["mesh_tasks"]),
        int(values["threads"]),
        int(values["wires"] - values["peers"]),
        int(values["standing"]),
    )


def _value(metrics: str, series: str) -> float:
    match = re.search(rf"^{series} (\S+)$", metrics, re.MULTILINE)
    if match is None:
        raise ValueError(f"the node shows no {series}")
    return float(match[1])


def slope(gauges: Sequence[Gauge]) -> tuple[float, float]:
    """Return the growth of memory in MiB for each `PER` requests, after the warm-up, and its standard error."""
    warm = {g.requests: g.resident for g in gauges if g.requests >= WARM_UP * gauges[-1].requests}
    if len(warm) < 3:
        return 0.0, math.inf
    line = statistics.linear_regression(list(warm), list(warm.values()))
    off = sum((value - line.intercept - line.slope * at) ** 2 for at, value in warm.items())
    spread = statistics.pvariance(warm) * len(warm)
    return line.slope * PER, math.sqrt(off / (len(warm) - 2) / spread) * PER


def told(gauges: Sequence[Gauge]) -> str:
    """Return the growth of memory in words, which say so if it may be within the bound as well as beyond it."""
    grows, error = slope(gauges)
    undecided = grows - SURE * error <= SLOPE < grows + SURE * error
    note = " (too few readings to tell)" if undecided else ""
    return f"{grows:+.2f} ± {error:.2f} MiB in {PER:,} requests{note}"


def leaks(before: Gauge, after: Gauge) -> list[str]:
    """Return what a node has more of at rest than at the previous rest."""
    spare = dict.fromkeys(COUNTED, SPARE)
    spare["mesh_tasks"] += OF_A_WIRE * max(0, after.doubled - before.doubled)
    spare["mesh_tasks"] += OF_A_STREAM * max(0, after.standing - before.standing)
    return [
        f"{after_count - before_count} more {name.replace('_', ' ')} ({before_count} → {after_count})"
        for name in COUNTED
        if (after_count := getattr(after, name))
        > (before_count := getattr(before, name)) + spare[name]
    ]


def judged(name: str, gauges: Sequence[Gauge]) -> list[str]:
    """Return what is wrong with a node's growth from the first gauge, at rest, to the last, at rest again."""
    wrong = leaks(gauges[0], gauges[-1])
    grows, error = slope(gauges)
    if grows - SURE * error > SLOPE:
        wrong.append(f"memory grows by {told(gauges)}")
    return [f"{name}: {problem}" for problem in wrong]
