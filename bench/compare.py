"""Cost of one and two hops through modelvine, compared with bare aiohttp: medians of interleaved rounds in one run.

    python -m bench [--rounds 3] [--seconds 4] [--write docs/performance.md]

A mock worker and the load share CPU 0; the measured target runs alone on CPU 1. Needs a C compiler and two CPUs.
Targets: `direct` (no proxy), `bare` (aiohttp + uvloop, no routing), `local` (a node with the worker), `hop` (a node
without one, in front of it, over HTTPS). CPU of a target is the sum over its processes.
"""

import argparse
import json
import math
import os
import platform
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from node.compiled import is_compiled
from node.demo.play import ProcessGroup

HERE = Path(__file__).resolve().parent
WORKER_PORT, BARE_PORT = 28_000, 28_104
TICKS = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")

SIZES = {"100KB": 100_000, "5MB": 5_000_000}
"""Bytes of long bodies by name."""

Figures = dict[str, float]


@dataclass(frozen=True, slots=True)
class Target:
    """Server that answers chat requests at `url`, run by these processes."""

    name: str
    url: str
    pids: tuple[int, ...]


def cpu_seconds(pids: tuple[int, ...]) -> float:
    """Return the user and system time that some processes have used so far, in seconds."""
    used = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        used += int(fields[11]) + int(fields[12])
    return used / TICKS


def memory_mb(pids: tuple[int, ...]) -> float:
    """Return the total resident memory of some processes, in MB."""
    return sum(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE / 1e6 for pid in pids)


def _ms(percentiles: Mapping | None, which: str) -> float:
    """Return a percentile in ms, infinity if nothing arrived in time."""
    return percentiles[which] / 1e3 if percentiles else math.inf


class Load:
    """Runner of the load generator against targets, with one method for each measurement."""

    def __init__(self, bodies: Path, seconds: float, *, cpus: str = "0") -> None:
        self._bodies = bodies
        self._seconds = seconds
        self._cpus = cpus

    def closed_loop(self, target: Target, connections: int, body: str = "chat") -> Figures:
        """Send as many requests as possible over some connections."""
        before = cpu_seconds(target.pids)
        out = self._loadgen("req", target, body, c=connections, d=self._seconds, w=0)
        cpu_time = cpu_seconds(target.pids) - before
        return {
            "requests_per_s": out["rps"],
            "cpu_s_per_1000": cpu_time / max(out["ok"], 1) * 1000,
            "errors": out["errors"],
        }

    def bodies(self, target: Target, body: str) -> Figures:
        """Send bodies of one size, one after the other."""
        figures = self.closed_loop(target, 1, body)
        return {"cpu_ms": figures["cpu_s_per_1000"], "errors": figures["errors"]}

    def paced(self, target: Target) -> Figures:
        """Send a light open-loop load: the latency of a lone request."""
        out = self._loadgen("req", target, "chat", c=32, d=self._seconds, w=0.5, r=50)
        return {"p50_ms": _ms(out["latency_us"], "p50"), "p99_ms": _ms(out["latency_us"], "p99")}

    def streams(self, target: Target, count: int) -> Figures:
        """Open concurrent streams of 100 chunks each, 25 ms apart, as GPUs produce them: each chunk comes alone."""
        before = cpu_seconds(target.pids)
        out = self._loadgen("stream", target, "paced", c=count, d=4, w=1, R=1.5, e=100)
        cpu_time = cpu_seconds(target.pids) - before
        return {
            "chunks_per_s": out["chunks_per_s"],
            "cpu_s_per_1000_chunks": cpu_time / max(out["chunks"], 1) * 1000,
            "ttft_p50_ms": _ms(out["ttft_us"], "p50"),
            "ttft_p99_ms": _ms(out["ttft_us"], "p99"),
            "lag_p99_ms": _ms(out["lag_us"], "p99"),
            "errors": out["errors"] + out["unfinished"],
        }

    def burst(self, target: Target) -> Figures:
        """Open streams whose chunks come without a pause."""
        before = cpu_seconds(target.pids)
        out = self._loadgen("stream", target, "burst", c=16, d=self._seconds, w=0, e=200)
        cpu_time = cpu_seconds(target.pids) - before
        return {
            "chunks_per_s": out["chunks_per_s"],
            "cpu_s_per_1000_chunks": cpu_time / max(out["chunks"], 1) * 1000,
        }

    def _loadgen(self, mode: str, target: Target, body: str, **options: float) -> Mapping:
        command = ["taskset", "-c", self._cpus, str(HERE / "bin/loadgen"), mode]
        command += ["-u", f"{target.url}/v1/chat/completions", "-b", str(self._bodies / body)]
        for name, value in options.items():
            command += [f"-{name}", str(value)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
        return json.loads(done.stdout)


def write_bodies(folder: Path) -> Path:
    """Write the request bodies; the mock worker reads its instructions from the prompt."""
    filler = "You are a helpful assistant. Answer briefly. " * 4

    def body(orders: str, *, stream: bool) -> str:
        question = f"{orders} What does a request router do?"
        messages = [
            {"role": "system", "content": filler},
            {"role": "user", "content": question},
        ]
        fields = {"model": "mock", "messages": messages, "temperature": 0.7, "max_tokens": 64}
        return json.dumps(fields | ({"stream": True} if stream else {}))

    (folder / "chat").write_text(body("[[chunks=1]]", stream=False))
    for name, size in SIZES.items():
        (folder / name).write_text(
            body("[[chunks=1]] " + "What else? " * (size // 11), stream=False)
        )
    (folder / "paced").write_text(body("[[chunks=100 delay_us=25000]]", stream=True))
    (folder / "burst").write_text(body("[[chunks=200 delay_us=0]]", stream=True))
    return folder


@contextmanager
def running(*command: str, cpu: str) -> Iterator[int]:
    """Run a process on a CPU and end it afterwards."""
    process = subprocess.Popen(["taskset", "-c", cpu, *command], stdin=subprocess.DEVNULL)
    try:
        yield process.pid
    finally:
        process.terminate()
        process.wait(10)


def call(url: str, body: Mapping | None = None) -> Mapping:
    """Send a GET, or a POST of JSON, and return the JSON answer."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=5) as answer:
        return json.load(answer)


def until(ready: Callable[[], bool], *, seconds: float = 20) -> None:
    """Wait until a condition holds; raise `TimeoutError`."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            if ready():
                return
        except OSError:
            pass
        time.sleep(0.1)
    raise TimeoutError("a target did not get ready")


@contextmanager
def targets(folder: Path) -> Iterator[list[Target]]:
    """Start all targets."""
    worker = f"127.0.0.1:{WORKER_PORT}"
    with ExitStack() as stack:
        mock = running(str(HERE / "bin/mock_worker"), "-p", str(WORKER_PORT), cpu="0")
        mock_pid = stack.enter_context(mock)
        bare = running(sys.executable, "-m", "bench.bare", str(BARE_PORT), worker, cpu="1")
        bare_pid = stack.enter_context(bare)
        stage = stack.enter_context(ProcessGroup(folder))
        serving = stage.start_node("serving")
        asking = stage.start_node("asking", bootstrap=[serving.fields["p2p"]])
        for actor in (serving, asking):
            subprocess.run(
                ["taskset", "-a", "-cp", "1", str(actor.process.pid)],
                check=True,
                stdout=subprocess.DEVNULL,
            )
        here, there = serving.fields["http"], asking.fields["http"]
        registration = {"project": "bench", "model": "mock", "api": f"http://{worker}/v1"}
        call(f"{here}/api/v0/ai/model/register", registration | {"type": 0, "cid": ""})
        until(lambda: bool(call(f"{there}/v1/models")["data"]))
        until(lambda: "choices" in call(f"http://127.0.0.1:{BARE_PORT}/v1/chat/completions", {}))
        pids = serving.process.pid, asking.process.pid
        yield [
            Target("direct", f"http://{worker}", (mock_pid,)),
            Target("bare", f"http://127.0.0.1:{BARE_PORT}", (bare_pid,)),
            Target("local", here, pids[:1]),
            Target("hop", there, pids),
        ]


def measure(load: Load, target: Target, only: Sequence[str]) -> Figures:
    """Measure one target once."""
    parts: dict[str, Callable[[], Figures]] = {
        "c1": lambda: load.closed_loop(target, 1),
        "c32": lambda: load.closed_loop(target, 32),
        "c128": lambda: load.closed_loop(target, 128),
        "paced": lambda: load.paced(target),
        "s500": lambda: load.streams(target, 500),
        "burst": lambda: load.burst(target),
        **{name: partial(load.bodies, target, name) for name in SIZES},
    }
    figures: Figures = {}
    for part in only:
        figures |= {f"{part}.{name}": value for name, value in parts[part]().items()}
    return figures | {"memory_mb": memory_mb(target.pids)}


ROWS = (
    ("requests/s, 1 connection", "c1.requests_per_s", "{:,.0f}"),
    ("requests/s, 32 connections", "c32.requests_per_s", "{:,.0f}"),
    ("requests/s, 128 connections", "c128.requests_per_s", "{:,.0f}"),
    ("CPU-s per 1,000 requests, 32 connections", "c32.cpu_s_per_1000", "{:.3f}"),
    ("latency p50 at 50 requests/s, ms", "paced.p50_ms", "{:.2f}"),
    ("latency p99 at 50 requests/s, ms", "paced.p99_ms", "{:.2f}"),
    ("time to first token at 500 streams, p50 ms", "s500.ttft_p50_ms", "{:.2f}"),
    ("time to first token at 500 streams, p99 ms", "s500.ttft_p99_ms", "{:.2f}"),
    ("chunk lag at 500 streams, p99 ms", "s500.lag_p99_ms", "{:.2f}"),
    ("CPU-s per 1,000 chunks, in bursts", "burst.cpu_s_per_1000_chunks", "{:.4f}"),
    ("CPU-s per 1,000 chunks, paced", "s500.cpu_s_per_1000_chunks", "{:.4f}"),
    ("CPU-ms of a request of 100 KB", "100KB.cpu_ms", "{:.2f}"),
    ("CPU-ms of a request of 5 MB", "5MB.cpu_ms", "{:.1f}"),
    ("resident memory after it all, MB", "memory_mb", "{:.0f}"),
    ("failed requests and streams", "failed", "{:.0f}"),
)


def table(rounds: Mapping[str, list[Figures]]) -> str:
    """Return a table of the medians over the rounds, with ratios to bare aiohttp."""
    names = list(rounds)
    lines = ["| | " + " | ".join(names) + " | local ÷ bare | hop ÷ bare |"]
    lines.append("|---" * (len(names) + 3) + "|")

    def median(name: str, key: str) -> float:
        if key == "failed":
            return sum(v for f in rounds[name] for k, v in f.items() if k.endswith(".errors"))
        return statistics.median(figures[key] for figures in rounds[name])

    measured = rounds["bare"][0].keys() | {"failed"}
    for label, key, form in ROWS:
        if key not in measured:
            continue
        values = {name: median(name, key) for name in names}
        ratios = [
            f"{values[name] / values['bare']:.2f}" if values["bare"] else "-"
            for name in ("local", "hop")
        ]
        cells = [form.format(value) for value in values.values()]
        lines.append(f"| {label} | " + " | ".join([*cells, *ratios]) + " |")
    return "\n".join(lines)


def heading(arguments: argparse.Namespace, module: str = "bench") -> str:
    """Return a line with the date, the command and the machine of the measurement."""
    command = f"python -m {module} --rounds {arguments.rounds} --seconds {arguments.seconds:g}"
    return f"Measured {datetime.now(UTC):%Y-%m-%d} with `{command}` on {machine()}; medians.\n"


def machine() -> str:
    """Describe the machine, and whether the modules are compiled, as in a wheel."""
    compiled = ", compiled" if is_compiled() else ""
    return f"{os.cpu_count()} CPUs, Python {platform.python_version()}{compiled}"


def replace_between_marks(file: Path, text: str, name: str = "bench") -> None:
    """Replace the text between a page's marks of this name."""
    begin, end = f"<!-- {name} begin -->", f"<!-- {name} end -->"
    before, _, rest = file.read_text().partition(begin)
    _, mark, after = rest.partition(end)
    if not mark:
        raise ValueError(f"{file} has no {begin} … {end}")
    file.write_text(f"{before}{begin}\n{text}\n{end}{after}")


def main() -> int:
    """Run the comparison and print its table."""
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument(
        "--only",
        default="c1,c32,c128,paced,s500,burst,100KB,5MB",
        help="which measurements, by name",
    )
    parser.add_argument("--write", type=Path, help="page whose table is replaced")
    parser.add_argument(
        "--workers", type=int, help="instead: a node of so many processes beside a node of one"
    )
    arguments = parser.parse_args()
    if shutil.which("taskset") is None or (os.cpu_count() or 1) < 2:
        print("needs taskset (util-linux) and two CPUs", file=sys.stderr)
        return 1
    # On SIGTERM, stop the started processes too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    subprocess.run(["make", "-s", "-C", str(HERE / "csrc")], check=True)
    if arguments.workers:
        from bench import workers  # noqa: PLC0415 (it imports this module)

        return workers.main(arguments.workers, rounds=arguments.rounds, seconds=arguments.seconds)
    rounds: dict[str, list[Figures]] = {}
    only = arguments.only.split(",")
    with tempfile.TemporaryDirectory(prefix="modelvine-bench-") as name:
        folder = Path(name)
        load = Load(write_bodies(folder), arguments.seconds)
        with targets(folder) as all_targets:
            for number in range(arguments.rounds):
                for target in all_targets if number % 2 == 0 else all_targets[::-1]:
                    print(f"round {number + 1}/{arguments.rounds} {target.name}", file=sys.stderr)
                    rounds.setdefault(target.name, []).append(measure(load, target, only))
    ordered = {name: rounds[name] for name in ("direct", "bare", "local", "hop")}
    text = heading(arguments) + "\n" + table(ordered)
    print(text)
    if arguments.write:
        replace_between_marks(arguments.write, text)
    return 0
