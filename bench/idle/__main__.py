"""Traffic of idle nodes: real processes on hosts of their own, by the counters of their network interfaces.

    python -m bench.idle --nodes 5
    python -m bench.idle --nodes 50 --settle 90 --seconds 60
    python -m bench.idle --nodes 20 --kinds

Each node runs in a network namespace of its own (Linux, root, `ip` and `nft`). Reported are the bytes that left its interface,
including all headers and acknowledgements. `--kinds` also reports what libp2p's streams carried. Heartbeats and repeated
records begin at a random point of their interval, as after hours of running; with `--fresh` they begin as after a start, which
means none for minutes.
"""

import argparse
import json
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from tempfile import TemporaryDirectory

from node.demo.play import Actor, ProcessGroup
from node.secrets import identity, secret_files
from tests.lab.net import Network, missing

_PORT = 6101
_AROUND = 16 + 2 + 52 + 14
"""Bytes around one yamux frame: noise's seal and length, TCP and IP, Ethernet."""

_SAYING = 1.0


@dataclass(frozen=True, slots=True)
class Sent:
    """Counters of what one interface has sent."""

    size: int
    packets: int


class Field:
    """The nodes, on the hosts of a network."""

    def __init__(self, network: Network, folder: Path, options: argparse.Namespace) -> None:
        self._network = network
        self._folder = folder
        self._options = options
        self._actors: list[Actor] = []

    def start(self, stack: ExitStack) -> None:
        """Start all nodes, two at a time."""
        hosts = list(self._network.hosts)
        bootstrap = [self._address(host) for host in hosts[: self._options.bootstraps]]
        for host in hosts:
            self._address(host)
        with ThreadPoolExecutor(max_workers=2) as pool:
            self._actors = list(pool.map(lambda host: self._run(stack, host, bootstrap), hosts))

    def sent(self) -> list[Sent]:
        """Return what each host has sent, as received at the other end of its cable."""
        command = ("ip", "-n", self._network.namespace("core"), "-s", "-j", "link", "show")
        received = {
            entry["ifname"]: entry["stats64"]["rx"] for entry in json.loads(_output(command))
        }
        rows = [received[f"h{host}"] for host in self._network.hosts]
        return [Sent(row["bytes"], row["packets"]) for row in rows]

    def kinds(self) -> tuple[Counter[str], Counter[str], Counter[str]]:
        """Return frames, bytes and events of all nodes together, by name."""
        for actor in self._actors:
            actor.process.send_signal(signal.SIGUSR1)
        time.sleep(_SAYING)
        frames, sizes, events = Counter[str](), Counter[str](), Counter[str]()
        for actor in self._actors:
            counts = json.loads(self._counts(actor.name).read_text())
            frames.update({name: entry[0] for name, entry in counts["kinds"].items()})
            sizes.update({name: entry[1] for name, entry in counts["kinds"].items()})
            events.update(counts["events"])
        return frames, sizes, events

    def _run(self, stack: ExitStack, host: int, bootstrap: Sequence[str]) -> Actor:
        stage = stack.enter_context(ProcessGroup(self._folder))
        name = f"h{host}"
        own_address = self._address(host)
        addresses = (
            f"--http={self._network.own_address(host)}:6100",
            f"--listen=/ip4/{self._network.address(host)}/tcp/{_PORT}",
            f"--data-dir={self._folder / name}",
            "--profile=lan",
            *(f"--bootstrap={address}" for address in bootstrap if address != own_address),
        )
        how = ["--fresh"] if self._options.fresh else []
        if self._options.kinds:
            how.append(f"--counts={self._counts(name)}")
        inside = (self._network.namespace(host), "bench.idle.node", *how, "up", *addresses)
        return stage.start(name, "tests.lab.inside", *inside)

    def _counts(self, name: str) -> Path:
        return self._folder / f"{name}.counts"

    def _address(self, host: int) -> str:
        folder = self._folder / f"h{host}"
        secret_files.make_private_directory(folder)
        peer = identity.load_or_create(folder).peer
        return f"/ip4/{self._network.address(host)}/tcp/{_PORT}/p2p/{peer}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Start the nodes, wait, count, and print what they sent."""
    options = _parser().parse_args(arguments)
    if lacking := missing():
        print(f"this needs {lacking}", file=sys.stderr)
        return 1
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()))
        network = stack.enter_context(Network(hosts=options.nodes))
        field = Field(network, folder, options)
        begun = time.monotonic()
        field.start(stack)
        print(f"{options.nodes} nodes after {time.monotonic() - begun:.0f} s", file=sys.stderr)
        _settle(field, options.settle)
        _measure(field, options)
    return 0


def _settle(field: Field, seconds: float) -> None:
    """Wait, and print the traffic meanwhile as it settles."""
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        span = min(15.0, left)
        before = field.sent()
        time.sleep(span)
        rates = _rates(before, field.sent(), span)
        print(f"  settling: {mean(rates):8.0f} B/s a node", file=sys.stderr)


def _measure(field: Field, options: argparse.Namespace) -> None:
    kinds = field.kinds() if options.kinds else None
    before, begun = field.sent(), time.monotonic()
    time.sleep(options.seconds)
    after, span = field.sent(), time.monotonic() - begun
    rates = sorted(_rates(before, after, span))
    packets = [(b.packets - a.packets) / span for a, b in zip(before, after, strict=True)]
    print(f"{options.nodes} nodes, {span:.0f} s, {options.settle:.0f} s after the last had started")
    print(f"sent by a node   {mean(rates):8.0f} B/s, {mean(packets):.2f} packets/s")
    print(f"least, median, most {rates[0]:.0f}, {rates[len(rates) // 2]:.0f}, {rates[-1]:.0f} B/s")
    if kinds is not None:
        _print_kinds(kinds, field.kinds(), len(rates) * span)


def _print_kinds(
    before: tuple[Counter[str], ...], after: tuple[Counter[str], ...], node_seconds: float
) -> None:
    frames, sizes, events = (b - a for a, b in zip(before, after, strict=True))
    print("| what | frames/s | bytes/s | with headers |\n|---|---:|---:|---:|")
    for name in sorted(sizes, key=lambda n: -sizes[n]):
        count, size = frames[name] / node_seconds, sizes[name] / node_seconds
        print(f"| {name} | {count:.3f} | {size:.1f} | {size + count * _AROUND:.1f} |")
    for name in sorted(events):
        print(f"| {name} | {events[name] / node_seconds:.4f} | | |")


def _rates(before: Sequence[Sent], after: Sequence[Sent], seconds: float) -> list[float]:
    return [(b.size - a.size) / seconds for a, b in zip(before, after, strict=True)]


def _output(command: Sequence[str]) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench.idle",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--nodes", type=int, default=5, help="how many nodes, up to 250 (5)")
    add("--bootstraps", type=int, default=1, help="how many of them everybody is told of (1)")
    add("--settle", type=float, default=60.0, help="seconds to wait after the last start (60)")
    add("--seconds", type=float, default=60.0, help="seconds to count for (60)")
    add("--fresh", action="store_true", help="start all intervals together, as a real start does")
    add("--kinds", action="store_true", help="tell what libp2p's streams carried")
    return parser


if __name__ == "__main__":
    sys.exit(main())
