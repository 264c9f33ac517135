"""Soak test of a small swarm: requests, registrations and faults over a long time.

    python -m bench.soak                                   500,000 requests, 50,000 registrations: some six minutes
    python -m bench.soak --requests 2000 --rate 200        a look

Four nodes run on loopback: one takes the requests, and is attacked by heavy strangers and loud members; one serves without
faults; two serve and are killed, frozen and stopped in turn.
Exit status 0: no request failed, no stream ended without an error event, and neither of the first two nodes grew. Needs a C
compiler. Ends only processes that it started.
"""

import argparse
import asyncio
import signal
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from bench.compare import write_bodies
from bench.mock import Mock, build, load
from bench.soak.faults import ATTACKS, Harm, Place
from bench.soak.gauges import Gauge, judged, leaks, read, told
from tests.swarm.attacks.attacker import Attacker
from tests.swarm.client import Client, connected
from tests.swarm.nodes import Node, Swarm

CONNECTIONS = 1_000
"""Connections for the steady rate: enough for all requests that wait until a frozen worker is given up."""

HASTY = 32
STREAMS = 50
CHUNKS = 100


@dataclass(slots=True)
class Seen:
    """Results of the crowd so far."""

    requests: int = 0
    streams: int = 0
    broken: int = 0
    """Streams that ended in an error event, because their worker died: streams are not replayed."""
    failed: int = 0
    slowest: float = 0.0
    last_error: str = ""

    @property
    def asked(self) -> int:
        """Number of requests and streams so far."""
        return self.requests + self.streams


class Crowd:
    """Callers of one node. All answers are awaited, except those of callers that disconnect on purpose."""

    def __init__(self, url: str, bodies: Path) -> None:
        self.seen = Seen()
        self._url = f"{url}/v1/chat/completions"
        self._bodies = bodies

    async def steadily(self, rate: float, seconds: float) -> None:
        """Send so many requests a second, whatever happens to earlier ones."""
        result = await self._run("req", "chat", r=rate, c=CONNECTIONS, d=seconds, w=0)
        self._note(result)
        self.seen.requests += int(result["requests"] + result["unfinished"])

    async def hastily(self, seconds: float) -> None:
        """Send requests as fast as possible, and disconnect from the last ones."""
        result = await self._run("req", "chat", c=HASTY, d=seconds, w=0)
        self._note(result)
        self.seen.requests += int(result["requests"])

    async def streaming(self, seconds: float) -> None:
        """Keep streams open concurrently, and start a new one when one ends."""
        result = await self._run("stream", "paced", c=STREAMS, d=seconds, w=0, e=CHUNKS)
        self._note(result)
        self.seen.streams += int(result["requests"] + result["unfinished"])

    def _note(self, result: Mapping) -> None:
        reported = int(result.get("told", 0))
        self.seen.broken += reported
        self.seen.failed += int(result["errors"] + result["unfinished"]) - reported
        times = result.get("latency_us")
        if times:
            self.seen.slowest = max(self.seen.slowest, times["max"] / 1e6)
        self.seen.last_error = result["last_error"] or self.seen.last_error

    async def _run(self, mode: str, body: str, **options: float) -> Mapping:
        return await load(mode, self._url, self._bodies / body, **options)


MODEL = "mock"
NOWHERE = "http://127.0.0.1:9/v1"
TURN = 10.0
"""Seconds of steady load between two readings of the gauges."""

AT_REST = 5.0
LET_GO = 45.0
"""Seconds of rest before a reading at rest, and seconds for unused connections to end."""

WARMING = 3.0
"""Seconds of full load at first, which fill caches and pools, and measure the capacity."""

STREAM_EVERY = 5
"""Turns between two phases of streams."""

SLOWEST = 100
"""Requests a second; a slower run is given up."""

KEPT = 20
"""Models that are registered at one node at a time, besides the one that is requested."""


@dataclass(slots=True)
class Soak:
    """One run of the soak test."""

    options: argparse.Namespace
    client: Client
    crowd: Crowd
    steady: list[Node]
    harm: Harm
    gauges: dict[str, list[Gauge]] = field(default_factory=dict)
    registered: int = 0
    rate: float = 0.0
    enough: asyncio.Event = field(default_factory=asyncio.Event)
    began: float = field(default_factory=time.monotonic)

    async def run(self) -> None:
        """Warm up, then take turns until enough requests were sent."""
        await self.crowd.hastily(WARMING)
        self.rate = self.options.rate or self.crowd.seen.requests / WARMING / 2
        self.crowd.seen.requests = 0
        # What strangers leave behind stays, within its bound: attack first, so that it is there before memory is compared.
        for attack in ATTACKS:
            self._say(await self.harm.attack(attack))
        await asyncio.sleep(AT_REST)
        await self._look()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._harm())
            group.create_task(self._register())
            turn = 0
            while self.crowd.seen.asked < self.options.requests:
                turn += 1
                remaining = self.options.requests - self.crowd.seen.asked
                await self.crowd.steadily(self.rate, min(TURN, 1 + remaining / self.rate))
                await self.crowd.hastily(1.0)
                if turn % STREAM_EVERY == 1:
                    await self.crowd.streaming(1.0)
                await self._look()
            self.enough.set()
        await self.client.met([*self.steady, *(v.node for v in self.harm.victims)], within=30)
        rested = time.monotonic() + LET_GO
        while True:
            await asyncio.sleep(AT_REST)
            await self._look()
            if time.monotonic() > rested or not any(
                leaks(g[0], g[-1]) for g in self.gauges.values()
            ):
                return

    async def _harm(self) -> None:
        while not self.enough.is_set():
            event = await self.harm.next()
            self._say(event)
            await asyncio.sleep(self.options.pause)

    async def _register(self) -> None:
        """Register models one by one at the steady nodes, and unregister whole projects, at an even pace."""
        total = self.options.registrations
        while self.registered < total:
            node = self.steady[self.registered // KEPT % len(self.steady)]
            for _ in range(min(KEPT, total - self.registered)):
                row = {
                    "project": "soak",
                    "model": f"soak-{self.registered}",
                    "api": NOWHERE,
                    "type": 0,
                }
                answer = await self.client.post(node, "/api/v0/ai/model/register", row)
                if answer.status != 200:
                    raise RuntimeError(f"a registration was refused: {answer.body!r}")
                self.registered += 1
            await self.client.unregister(node, "soak")
            # If ahead of the requests, wait for them.
            while self.registered / total > self.crowd.seen.asked / self.options.requests + 0.05:  # noqa: ASYNC110 (there is nothing to wait for)
                await asyncio.sleep(0.1)

    async def _look(self) -> None:
        for node in self.steady:
            # The mesh's tasks are reported as of the previous reading.
            await self.client.metrics(node)
            await asyncio.sleep(0.1)
            metrics = await self.client.metrics(node)
            self.gauges.setdefault(node.name, []).append(read(metrics, self.crowd.seen.asked))
        last = [f"{g[-1].resident:.0f} MiB" for g in self.gauges.values()]
        self._say(f"memory {' / '.join(last)}, {self.crowd.seen.failed} failed")

    def _say(self, event: str) -> None:
        seconds = time.monotonic() - self.began
        done = f"{self.crowd.seen.asked:,} of {self.options.requests:,}"
        print(f"{seconds:5.0f} s  {done}  {event}", file=sys.stderr, flush=True)

    def wrong(self) -> list[str]:
        """Return what went wrong."""
        totals = self.crowd.seen
        wrong = [w for name, gauges in self.gauges.items() for w in judged(name, gauges)]
        if totals.failed:
            wrong.append(f"{totals.failed} requests failed; the last with: {totals.last_error}")
        return wrong

    def table(self) -> str:
        """Return a table of the results."""
        totals, names = self.crowd.seen, list(self.gauges)
        ends = {name: (gauges[0], gauges[-1]) for name, gauges in self.gauges.items()}
        lines = [
            f"Soaked {datetime.now(UTC):%Y-%m-%d} for {time.monotonic() - self.began:.0f} s.",
            "",
            "| | |",
            "|---|---|",
            f"| requests, streams | {totals.requests:,}, {totals.streams:,} |",
            f"| failed | {totals.failed} |",
            f"| streams that ended in an error event, their worker gone | {totals.broken} |",
            f"| slowest | {totals.slowest:.1f} s |",
            f"| registrations | {self.registered:,} |",
            f"| times a node or worker was killed, frozen, stopped or attacked | {self.harm.done} |",
        ]
        for name in names:
            first, last = ends[name]
            memory = f"{first.resident:.1f} → {last.resident:.1f} MiB, {told(self.gauges[name])}"
            lines += [
                f"| {name}: second connections to one peer | {first.doubled} → {last.doubled} |",
                f"| {name}: streams on which peers may ask again | {first.standing} → {last.standing} |",
                f"| {name}: memory | {memory} |",
                f"| {name}: descriptors, tasks, tasks of the mesh, threads | {_counted(first)} → {_counted(last)} |",
            ]
        return "\n".join(lines)


def _counted(gauge: Gauge) -> str:
    return f"{gauge.descriptors}, {gauge.tasks}, {gauge.mesh_tasks}, {gauge.threads}"


async def soak(options: argparse.Namespace, folder: Path) -> int:
    """Start all processes, run, and print the results; return 0 if nothing went wrong."""
    async with AsyncExitStack() as stack:
        workers = [Mock() for _ in range(3)]
        for worker in workers:
            stack.callback(worker.kill)
        swarm = stack.enter_context(Swarm(folder))
        client = await stack.enter_async_context(connected())
        names = ("asked", "steady", "victim1", "victim2")
        asked, *serving = await asyncio.to_thread(swarm.start_all, *names)
        for node, worker in zip(serving, workers, strict=True):
            await client.register(node, "bench", [MODEL], worker.api)
        await client.met([asked, *serving])
        await client.agreed([asked, *serving])
        places = [Place(n, w) for n, w in zip(serving[1:], workers[1:], strict=True)]
        steady = [asked, serving[0]]
        attacker = Attacker(asked, folder / "attacker.log")
        stack.callback(attacker.end)
        harm = Harm(swarm, client, steady, places, attacker)
        crowd = Crowd(asked.http, write_bodies(folder))
        run = Soak(options, client, crowd, steady, harm)
        async with asyncio.timeout(LET_GO + 120 + options.requests / SLOWEST):
            await run.run()
    print(run.table())
    wrong = run.wrong()
    for problem in wrong:
        print(f"WRONG: {problem}", file=sys.stderr)
    return 1 if wrong else 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the soak."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.soak",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--requests", type=int, default=500_000)
    parser.add_argument("--registrations", type=int, help="default: a tenth of the requests")
    parser.add_argument("--rate", type=float, help="per second; default: half of what goes at most")
    parser.add_argument(
        "--pause", type=float, default=2.0, help="seconds between two pieces of harm"
    )
    options = parser.parse_args(arguments)
    options.registrations = options.registrations or options.requests // 10
    build()
    # On SIGTERM, stop the started processes too.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with ExitStack() as stack:
        name = stack.enter_context(tempfile.TemporaryDirectory(prefix="modelvine-soak-"))
        return asyncio.run(soak(options, Path(name)))


if __name__ == "__main__":
    sys.exit(main())
