"""Throughput of a node of several processes, compared with one of a single process, on CPUs shared with worker and load.

    python -m bench --workers 2 [--rounds 3] [--seconds 4]

Two nodes, one of one process and one of several, are measured in turns; the ratio is that of each round's pair, with median and
range. `plain` is a worker without a limit; `slots` is one with 64 slots, of which each request borrows one from the first
process. Streams have 100 chunks, 25 ms apart, and are more than one process can pass on.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path

from bench.compare import (  # fmt: skip
    HERE,
    WORKER_PORT,
    Figures,
    Load,
    Target,
    call,
    machine,
    memory_mb,
    running,
    write_bodies,
)
from node.demo.play import ProcessGroup

SLOTS = 64
PARTS = (("plain", 32), ("plain", 128), ("slots", 32))
STREAMS = 1200


def main(processes: int, *, rounds: int, seconds: float) -> int:
    """Run the comparison and print its table."""
    with tempfile.TemporaryDirectory(prefix="modelvine-bench-") as name:
        folder = Path(name)
        load = Load(_bodies(folder), seconds, cpus=_cpus())
        results: dict[str, list[Figures]] = {}
        with _nodes(folder, processes) as targets:
            for number in range(rounds):
                for target in targets if number % 2 == 0 else targets[::-1]:
                    print(f"round {number + 1}/{rounds} {target.name}", file=sys.stderr)
                    results.setdefault(target.name, []).append(_measured(load, target))
    one, many = results.values()
    command = f"python -m bench --workers {processes} --rounds {rounds} --seconds {seconds:g}"
    print(f"Measured {datetime.now(UTC):%Y-%m-%d} with `{command}` on {machine()}; medians.\n")
    print(_table(processes, one, many))
    return 0


def _measured(load: Load, target: Target) -> Figures:
    figures: Figures = {}
    for body, connections in PARTS:
        measured = load.closed_loop(target, connections, body)
        figures |= {f"{body}.{connections}.{name}": value for name, value in measured.items()}
    measured = load.streams(target, STREAMS)
    figures |= {f"streams.{name}": value for name, value in measured.items()}
    return figures | {"memory_mb": memory_mb(target.pids)}


def _table(processes: int, one: Sequence[Figures], many: Sequence[Figures]) -> str:
    lines = [f"| | 1 process | {processes} processes | ratio, least to most |", "|---|---|---|---|"]
    rows: dict[str, tuple[str, str]] = {}
    for body, connections in PARTS:
        rows |= {
            f"requests/s, {connections} connections, {body}": (
                f"{body}.{connections}.requests_per_s",
                "{:,.0f}",
            ),
            f"CPU-s per 1,000 requests, {connections} connections, {body}": (
                f"{body}.{connections}.cpu_s_per_1000",
                "{:.3f}",
            ),
            f"failed requests, {connections} connections, {body}": (
                f"{body}.{connections}.errors",
                "{:.0f}",
            ),
        }
    rows |= {
        f"chunks/s, {STREAMS:,} streams of 40 a second": ("streams.chunks_per_s", "{:,.0f}"),
        "CPU-s per 1,000 chunks, the same": ("streams.cpu_s_per_1000_chunks", "{:.4f}"),
        "chunk lag p99, ms, the same": ("streams.lag_p99_ms", "{:.0f}"),
        "failed streams": ("streams.errors", "{:.0f}"),
        "resident memory after it all, MB": ("memory_mb", "{:.0f}"),
    }
    for label, (key, form) in rows.items():
        a, b = ([figures[key] for figures in rounds] for rounds in (one, many))
        cells = [form.format(statistics.median(values)) for values in (a, b)]
        lines.append(f"| {label} | " + " | ".join([*cells, _ratio(a, b)]) + " |")
    return "\n".join(lines)


def _ratio(one: Sequence[float], many: Sequence[float]) -> str:
    if not all(one):
        return "-"
    ratios = sorted(b / a for a, b in zip(one, many, strict=True))
    return f"{statistics.median(ratios):.2f}, {ratios[0]:.2f} to {ratios[-1]:.2f}"


@contextmanager
def _nodes(folder: Path, processes: int) -> Iterator[list[Target]]:
    worker = f"127.0.0.1:{WORKER_PORT}"
    with ExitStack() as stack:
        stack.enter_context(
            running(str(HERE / "bin/mock_worker"), "-p", str(WORKER_PORT), cpu=_cpus())
        )
        stage = stack.enter_context(ProcessGroup(folder))
        yield [_node(stage, folder, count, worker) for count in (1, processes)]


def _node(stage: ProcessGroup, folder: Path, count: int, worker: str) -> Target:
    addresses = ("--http", "127.0.0.1:0", "--listen", "/ip4/127.0.0.1/tcp/0")
    data = ("--data-dir", str(folder / f"node{count}"))
    actor = stage.start(f"node{count}", "node", "up", *addresses, *data, "--workers", str(count))
    for model, capacity in (("mock", 0), ("slots", SLOTS)):
        call(
            f"{actor.fields['http']}/api/v0/ai/model/register",
            _registration(model, worker, capacity),
        )
    first = actor.process.pid
    pids = (first, *(_children(first) if count > 1 else ()))
    return Target(f"{count} processes", actor.fields["http"], pids)


def _registration(model: str, worker: str, capacity: int) -> Mapping[str, object]:
    row = {"project": "bench", "model": model, "api": f"http://{worker}/v1", "type": 0, "cid": ""}
    return row | ({"capacity": capacity} if capacity else {})


def _children(pid: int) -> list[int]:
    command = ["ps", "--ppid", str(pid), "-o", "pid="]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    return [int(line) for line in result.stdout.split()]


def _bodies(folder: Path) -> Path:
    plain = json.loads((write_bodies(folder) / "chat").read_text())
    (folder / "plain").write_text(json.dumps(plain))
    (folder / "slots").write_text(json.dumps(plain | {"model": "slots"}))
    return folder


def _cpus() -> str:
    return ",".join(map(str, sorted(os.sched_getaffinity(0))))
