"""User-space instructions of a request and of a chunk: a measure that other load on the machine does not change.

    python -m bench.instructions
    python -m bench.instructions --bounds request=0.7 paced=0.9

Each program runs under callgrind, which needs valgrind and makes it some fifty times slower. Requests go over one keep-alive
connection, one after the other. The instructions of an idle program are measured first, and subtracted. libp2p's thread,
which no request passes, is left out. With `--bounds`, the exit code is 1 if something costs a node more than so many times
what it costs bare aiohttp.
"""

import argparse
import json
import os
import re
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from bench.mock import Mock, build

START_SECONDS = 300.0
WARM, COUNTED = 200, 200
"""Requests for warm-up, and in a counted run."""

RUNS = 3
"""Runs of which the median is taken; two more for requests, which vary more."""

APART = 0.012
"""Seconds between two requests. A node learns from one request in 10 ms: with this pause from each, on slow machines too."""

FEW, MANY = 20, 820
"""Chunks of two streams, whose difference is the cost of chunks."""

PACE_MICROSECONDS = 5_000
"""Microseconds between paced chunks: even under callgrind the previous chunk has passed by then."""

PERIOD = 5.0
"""Seconds after which an idle node repeats its work: each count lasts a multiple of it."""

IDLE_SECONDS = 3.5 * PERIOD

_TOTALS = re.compile(r"^(?:totals|summary): (\d+)", re.MULTILINE)


class Counted:
    """Python program under callgrind, which counts only on demand."""

    def __init__(self, folder: Path, name: str, *command: str) -> None:
        self._out = folder / f"{name}.callgrind"
        self.log = folder / f"{name}.log"
        self._left_out = self._dumps = 0
        counting = ("--tool=callgrind", "--instr-atstart=no", "--separate-threads=yes")
        counting += (f"--callgrind-out-file={self._out}",)
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                ["valgrind", *counting, sys.executable, "-u", *command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=os.environ | {"PYTHONHASHSEED": "0"},
            )

    def prepare(self) -> None:
        """Switch instrumentation on: all code is translated again, which takes a while."""
        self._tell("--instr=on")

    def begin(self) -> None:
        """Start counting."""
        self._tell("--zero")

    def end(self) -> int:
        """Return the instructions since `begin`, without those of the excluded thread."""
        threads = self._threads()
        return sum(threads.values()) - threads.get(self._left_out, 0)

    def leave_out(self) -> None:
        """Exclude the busiest thread since `begin`, except the first: without requests that is libp2p's."""
        others = Counter(self._threads())
        del others[1]
        self._left_out = others.most_common(1)[0][0] if others else 0

    def _threads(self) -> dict[int, int]:
        """Return the instructions of each thread, numbered in the order of their start."""
        self._dumps += 1
        self._tell("--dump")
        dumps = self._out.parent.glob(f"{self._out.name}.{self._dumps}-*")
        return {
            int(f.name.rpartition("-")[2]): int(_TOTALS.findall(f.read_text())[-1]) for f in dumps
        }

    def stop(self) -> None:
        """Stop the program."""
        self.process.terminate()
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def _tell(self, option: str) -> None:
        command = ["callgrind_control", option, str(self.process.pid)]
        subprocess.run(command, check=True, capture_output=True, timeout=60)


@dataclass(frozen=True, slots=True)
class Target:
    """Server that answers chats at a port of the loopback interface, run by these processes."""

    name: str
    port: int
    processes: tuple[Counted, ...]


class Caller:
    """One keep-alive connection: a request is one write, as clients send it."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=120)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def ask(self, orders: str, *, stream: bool) -> None:
        """Send a chat, and read its complete answer."""
        body = json.dumps(_chat(orders) | ({"stream": True} if stream else {})).encode()
        head = "POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        self._socket.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        answer = b""
        while not _is_whole(answer):
            piece = self._socket.recv(262_144)
            if not piece:
                raise ConnectionError(f"the answer broke off: {answer[-200:]!r}")
            answer += piece
        if not answer.startswith(b"HTTP/1.1 200"):
            raise ConnectionError(answer[:300].decode(errors="replace"))

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()


def _chat(orders: str) -> dict[str, object]:
    system = "You are a helpful assistant. Answer briefly. " * 4
    question = f"[[{orders}]] What does a request router do?"
    messages = [{"role": "system", "content": system}, {"role": "user", "content": question}]
    return {"model": "mock", "messages": messages, "temperature": 0.7, "max_tokens": 64}


def _is_whole(answer: bytes) -> bool:
    head, separator, body = answer.partition(b"\r\n\r\n")
    if not separator:
        return False
    length = re.search(rb"content-length: *(\d+)", head, re.IGNORECASE)
    return len(body) >= int(length[1]) if length else body.endswith(b"0\r\n\r\n")


def counted(target: Target, work: Callable[[], None]) -> tuple[int, float]:
    """Do some work, wait for the end of a `PERIOD`, and return the target's instructions and the seconds."""
    for process in target.processes:
        process.begin()
    began = time.monotonic()
    work()
    time.sleep((began - time.monotonic()) % PERIOD)
    seconds = time.monotonic() - began
    return sum(process.end() for process in target.processes), seconds


def measure(target: Target) -> dict[str, float]:
    """Return the instructions of a request, of a stream of one chunk, and of a chunk in bursts and paced."""
    for process in target.processes:
        process.prepare()
    url = f"http://127.0.0.1:{target.port}/v1/chat/completions"
    until(lambda: call(url, _chat("chunks=1")), target.processes[0])
    caller = Caller(target.port)
    for _ in range(WARM):
        caller.ask("chunks=1", stream=False)
    delays = {"burst": 0, "paced": PACE_MICROSECONDS}
    for delay in delays.values():
        caller.ask(f"chunks={FEW} delay_us={delay}", stream=True)
    for process in target.processes:
        process.begin()
    time.sleep(IDLE_SECONDS)
    for process in target.processes:
        process.leave_out()
    idle, seconds = counted(target, lambda: time.sleep(IDLE_SECONDS))
    rate = idle / seconds

    def spent(work: Callable[[], None], runs: int = RUNS) -> float:
        """Return the median of some runs, as now and then a node maintains its mesh, or a worker is slow to answer."""
        counts = (counted(target, work) for _ in range(runs))
        return statistics.median(instructions - rate * seconds for instructions, seconds in counts)

    def requests(*, stream: bool) -> None:
        for _ in range(COUNTED):
            time.sleep(APART)
            caller.ask("chunks=1", stream=stream)

    figures = {
        "request": spent(partial(requests, stream=False), RUNS + 2) / COUNTED,
        "stream": spent(partial(requests, stream=True)) / COUNTED,
    }
    for name, delay in delays.items():
        orders = [f"chunks={count} delay_us={delay}" for count in (FEW, MANY)]
        few, many = (
            spent(lambda orders=orders: caller.ask(orders, stream=True)) for orders in orders
        )
        figures[name] = (many - few) / (MANY - FEW)
    caller.close()
    return figures


def call(url: str, body: Mapping[str, object] | None = None) -> Mapping[str, object]:
    """Send a GET, or a POST of JSON, and return the JSON answer."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        payload: Mapping[str, object] = json.load(answer)
    return payload


def until(ready: Callable[[], object], process: Counted) -> None:
    """Wait until a condition holds; raise `TimeoutError` with the end of the process's log."""
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and process.process.poll() is None:
        try:
            if ready():
                return
        except (OSError, IndexError):
            pass
        time.sleep(0.5)
    raise TimeoutError(process.log.read_text()[-1_000:])


TARGETS = ("bare", "local", "hop")


@contextmanager
def targets(folder: Path, only: Sequence[str]) -> Iterator[list[Target]]:
    """Start the targets. The node of `hop` has no worker, and forwards to the node of `local`."""
    with ExitStack() as stack:
        mock = Mock()
        stack.callback(mock.kill)
        found: list[Target] = []
        if "bare" in only:
            port = _free_port()
            bare = Counted(folder, "bare", "-m", "bench.bare", str(port), f"127.0.0.1:{mock.port}")
            stack.callback(bare.stop)
            found.append(Target("bare", port, (bare,)))
        if {"local", "hop"} & {*only}:
            serving, mesh = _node(stack, folder, "local")
            worker = {"project": "bench", "model": "mock", "api": mock.api, "type": 0, "cid": ""}
            call(f"http://127.0.0.1:{serving.port}/api/v0/ai/model/register", worker)
            found.append(serving)
        if "hop" in only:
            asking, _ = _node(stack, folder, "hop", "--bootstrap", mesh)
            listed = f"http://127.0.0.1:{asking.port}/v1/models"
            until(lambda: call(listed)["data"], asking.processes[0])
            found.append(Target("hop", asking.port, serving.processes + asking.processes))
        yield [target for target in found if target.name in only]


def _node(stack: ExitStack, folder: Path, name: str, *more: str) -> tuple[Target, str]:
    """Start a node, and return it as a target, with its address in the mesh."""
    port = _free_port()
    options = ("--http", f"127.0.0.1:{port}", "--listen", "/ip4/127.0.0.1/tcp/0")
    data = ("--data-dir", str(folder / name))
    node = Counted(folder, name, "-m", "node", "up", *options, *data, *more)
    stack.callback(node.stop)
    pattern = re.compile(r"^ready .*p2p=(\S+)", re.MULTILINE)
    until(lambda: pattern.search(node.log.read_text()), node)
    ready = pattern.search(node.log.read_text())
    return Target(name, port, (node,)), ready[1] if ready else ""


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


_LABELS = {
    "request": "a request",
    "stream": "a stream of one chunk",
    "burst": "a chunk, in bursts",
    "paced": "a chunk, paced",
}


def table(measured: Mapping[str, Mapping[str, float]]) -> str:
    """Return a table of the figures, with ratios to bare aiohttp if that was measured."""
    lines = [
        "| instructions of | " + " | ".join(measured) + " |",
        "|---" * (len(measured) + 1) + "|",
    ]
    for figure in next(iter(measured.values())):
        cells = [
            f"{figures[figure]:,.0f}"
            + (f" ({figures[figure] / measured['bare'][figure]:.2f})" if "bare" in measured else "")
            for figures in measured.values()
        ]
        lines.append(f"| {_LABELS[figure]} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; return 1 if a bound is exceeded."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.instructions",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", default="bare,local", help=f"of: {', '.join(TARGETS)}")
    parser.add_argument(
        "--bounds", nargs="*", default=(), help=f"of local ÷ bare: {', '.join(_LABELS)}"
    )
    options = parser.parse_args(arguments)
    only = options.only.split(",")
    if unknown := {*only}.difference(TARGETS):
        parser.error(f"no such program: {', '.join(unknown)}")
    if shutil.which("valgrind") is None:
        print("needs valgrind (a package of that name)", file=sys.stderr)
        return 1
    build()
    with (
        tempfile.TemporaryDirectory(prefix="modelvine-bench-") as name,
        targets(Path(name), only) as running,
    ):
        measured = {target.name: measure(target) for target in running}
    print(table(measured))
    exceeded = 0
    for bound in options.bounds:
        name, _, limit = bound.partition("=")
        ratio = measured["local"][name] / measured["bare"][name]
        print(f"{_LABELS[name]}, local ÷ bare: {ratio:.3f}, bound {limit}")
        exceeded += ratio > float(limit)
    return int(exceeded > 0)


if __name__ == "__main__":
    sys.exit(main())
