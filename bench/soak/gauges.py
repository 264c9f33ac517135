"""Gauges of a node's growth over a soak, of its own figures: memory as a slope, everything else before and after."""

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
"""Requests by which the slope of memory is told."""

SLOPE = 1.0
"""MiB by which a node may grow in so many requests."""

WARM_UP = 0.3
"""Share of the requests after which a node's caches and pools are as full as they will be."""

TELLING = 100_000
"""Requests below which a slope is mostly chance, and not judged."""

SPARE = 8
"""Descriptors, tasks or threads that a node may have more of at the end."""

OF_A_WIRE = 8
"""Tasks of the mesh for one more connection to a peer that has one: both ends dialled it at one time."""


OF_A_STREAM = 1
"""Task of the mesh for one more idle stream on which a peer may ask again: they come and go, a few for each peer."""


@dataclass(frozen=True, slots=True)
class Gauge:
    """What a node said of its process after so many requests."""

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
    found = re.search(rf"^{series} (\S+)$", metrics, re.MULTILINE)
    if found is None:
        raise ValueError(f"the node shows no {series}")
    return float(found[1])


def slope(gauges: Sequence[Gauge]) -> float:
    """Return the MiB by which memory grew in `PER` requests, once warm."""
    warm = [g for g in gauges if g.requests >= WARM_UP * gauges[-1].requests]
    if len({g.requests for g in warm}) < 3:
        return 0.0
    line = statistics.linear_regression([g.requests for g in warm], [g.resident for g in warm])
    return line.slope * PER


def leaks(before: Gauge, after: Gauge) -> list[str]:
    """Say what a node has more of at rest than it had at rest before."""
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
    """Say what is wrong with how a node changed from the first gauge, at rest, to the last, at rest again."""
    wrong = leaks(gauges[0], gauges[-1])
    if gauges[-1].requests >= TELLING and slope(gauges) > SLOPE:
        wrong.append(f"memory grows by {slope(gauges):.2f} MiB in {PER:,} requests")
    return [f"{name}: {what}" for what in wrong]
