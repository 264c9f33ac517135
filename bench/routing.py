"""Policies of the router under a virtual clock: how long callers wait, beside an oracle that knows all queues.

    python -m bench.routing
    python -m bench.routing --load 0.9 --requests 20000
    python -m bench.routing --plot docs
    python -m bench.routing --fresh

Five nodes take requests for one model that eight machines serve, and see them as nodes do: their own requests in flight, what
other nodes say of themselves (`registry.members.load`), and the load in the head of each answer. The oracle joins the
shortest queue per slot, knowing all queues at that instant. Times are virtual; the same arguments give the same table.

With --fresh a ninth machine comes whose model has yet to be loaded, and the table shows what that costs those who ask just
then, with and without a gentle beginning (`router.state.slow_start`).
"""

import argparse
import heapq
import math
import sys
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from random import Random

import orjson

from bench import charts
from registry.members.load import Reporter
from registry.records import Load, PeerId, Service
from router import policies
from router.policies import Policy, in_order
from router.requests import Kind, Request
from router.select.candidates import Candidate, begin_gently
from router.state.remote_load import Report, Reports
from router.state.slow_start import Warming

ENTRIES = 5
TICK = 0.25
"""Seconds between two looks of a node at its own load, as `registry.service` takes them."""

DELAY = 0.03
"""Seconds that a load note travels."""

WORK = 1.0
"""Seconds that a request takes on average once it has a slot; log-normal, half of them take less than 0.6."""

_SIGMA = 1.0
_TURNS = 6

SCENES: Mapping[str, tuple[Sequence[int], float]] = {
    "alike": ((8,) * 8, 1.0),
    "unequal": ((2, 2, 4, 4, 8, 8, 16, 16), 1.0),
    "bursts": ((8,) * 8, 3.0),
}
"""Slots of the machines, and how many times the mean the rate of arrivals is in a burst."""

LOADING = 15.0
"""Seconds that a fresh machine takes to load its model once the first request is there; all that come until then wait."""

JOINS = 30.0
"""Seconds after which the fresh machine is there, and for as long after that those count who ask just then."""


@dataclass(slots=True)
class Machine:
    """A machine with slots; who finds none free waits in turn."""

    node: PeerId
    service: Service
    slots: int
    joins: float = 0.0
    ready: float | None = 0.0
    running: int = 0
    waiting: deque["Job"] = field(default_factory=deque)
    reporter: Reporter = field(default_factory=Reporter)

    @property
    def load(self) -> Load:
        """What its node would say of it now."""
        return Load(self.running + len(self.waiting), 0, self.slots)

    def begins(self, now: float) -> float:
        """Return when an answer begins whose slot is there now."""
        if self.ready is None:
            self.ready = now + LOADING
        return max(now, self.ready)

    @property
    def fullness(self) -> float:
        """Requests for each slot, with one more."""
        return (self.running + len(self.waiting) + 1) / self.slots


@dataclass(slots=True)
class Entry:
    """A node that takes requests, and what it knows."""

    policy: Policy
    warming: Warming
    reports: Reports = field(default_factory=Reports)
    in_flight: Counter[PeerId] = field(default_factory=Counter)


@dataclass(slots=True)
class Job:
    """One request on its way."""

    request: Request
    entry: Entry
    arrived: float
    work: float


class Cluster:
    """Machines, entries and a virtual clock."""

    def __init__(
        self,
        scene: str,
        *,
        policy: str,
        load: float,
        seed: int,
        fresh: bool = False,
        gentle: bool = True,
    ) -> None:
        """`fresh` has a new machine come, `gentle` has it begin gently."""
        slots, self._burst = SCENES[scene]
        self._gentle = gentle
        self._random = Random(seed)
        self._policy = policy
        self.machines = [
            Machine(PeerId(f"n{number}"), Service("p", "m"), each)
            for number, each in enumerate(slots)
        ]
        if fresh:
            late = Machine(PeerId("fresh"), Service("p", "m"), slots[0], joins=JOINS, ready=None)
            self.machines.append(late)
        made = "p2c" if policy == "oracle" else policy
        self.entries = [Entry(policies.load(made), Warming()) for _ in range(ENTRIES)]
        self._rate = load * sum(slots) / WORK
        self._events: list[tuple[float, int, Callable[[float], None]]] = []
        self._order = count()
        self.seconds: list[float] = []
        self.when: list[float] = []
        self._talks = _Conversations(self._random)

    def run(self, requests: int) -> list[float]:
        """Let so many requests come, and return how long each took, the first tenth left out."""
        for machine in self.machines:
            self._at(self._random.random() * TICK, lambda now, m=machine: self._tick(now, m))
        self._at(0.0, lambda now: self._arrive(now, requests))
        while len(self.seconds) < requests:
            now, _, happen = heapq.heappop(self._events)
            happen(now)
        return sorted(self.seconds[requests // 10 :])

    def _at(self, when: float, happen: Callable[[float], None]) -> None:
        heapq.heappush(self._events, (when, next(self._order), happen))

    def _arrive(self, now: float, left: int) -> None:
        entry = self.entries[int(self._random.random() * ENTRIES)]
        request = next(self._talks)
        mean = math.log(WORK) - _SIGMA**2 / 2
        job = Job(request, entry, now, self._random.lognormvariate(mean, _SIGMA))
        machine = self._choose(job, now)
        entry.in_flight[machine.node] += 1
        if machine.running < machine.slots:
            self._begin(now, machine, job)
        else:
            machine.waiting.append(job)
        if left > 1:
            # Two seconds of eight are the burst; the other six have what is left of the mean.
            calm = (8 - 2 * self._burst) / 6
            rate = self._rate * (self._burst if now % 8 < 2 else calm)
            self._at(now + self._random.expovariate(rate), lambda n: self._arrive(n, left - 1))

    def _choose(self, job: Job, now: float) -> Machine:
        there = [m for m in self.machines if m.joins <= now]
        if self._policy == "oracle":
            return min(there, key=lambda m: m.fullness)
        entry = job.entry
        found: Sequence[Candidate] = [
            Candidate(
                m.node,
                m.service,
                in_flight=entry.in_flight[m.node],
                report=entry.reports.of(m.node, m.service, now),
            )
            for m in there
        ]
        if self._gentle:
            found = begin_gently(found, lambda c: entry.warming.allowance(*c.key, now))
        chosen = in_order(entry.policy, job.request, found, self._random.random)[0]
        entry.warming.began(*chosen.key, now)
        entry.policy.begun(job.request)
        entry.policy.answered(job.request, chosen)
        return next(m for m in self.machines if m.node == chosen.node)

    def _begin(self, now: float, machine: Machine, job: Job) -> None:
        machine.running += 1
        self._hear(now, machine, job.entry, machine.load)
        self._at(machine.begins(now) + job.work, lambda n: self._end(n, machine, job))

    def _end(self, now: float, machine: Machine, job: Job) -> None:
        self.seconds.append(now - job.arrived)
        self.when.append(job.arrived)
        job.entry.warming.answered(machine.node, machine.service)
        job.entry.in_flight[machine.node] -= 1
        machine.running -= 1
        if machine.waiting:
            self._begin(now, machine, machine.waiting.popleft())

    def _tick(self, now: float, machine: Machine) -> None:
        busy = {machine.service: machine.load} if machine.load.in_flight else {}
        rarity = max(1.0, (len(self.machines) + ENTRIES) / 5)
        said = machine.reporter.rows(busy, now, rarity=rarity).get(machine.service)
        if said is not None:
            for entry in self.entries:
                self._at(now + DELAY, lambda n, e=entry: self._hear(n, machine, e, said))
        self._at(now + TICK, lambda n: self._tick(n, machine))

    def _hear(self, now: float, machine: Machine, entry: Entry, load: Load) -> None:
        report = Report(load, entry.in_flight[machine.node], now)
        entry.reports.hear(machine.node, machine.service, report)


class _Conversations(Iterator[Request]):
    """Chats of some turns each, many at one time, for the policies that look at what is said."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._talks: dict[int, list[str]] = {}
        self._number = count()

    def __next__(self) -> Request:
        if len(self._talks) < 200 or self._random.random() < 1 / _TURNS:
            self._talks[next(self._number)] = []
        talk = self._random.choice(list(self._talks))
        said = self._talks[talk]
        said.append(f"{talk}:{len(said)}")
        if len(said) >= _TURNS:
            del self._talks[talk]
        body = orjson.dumps({"model": "m", "messages": ["be brief", *said]})
        name = f"r{next(self._number)}"
        return Request(name, Kind.CHAT, "m", body, "application/json", session=str(talk))


def percentile(ordered: Sequence[float], share: float) -> float:
    """Return the value below which a share of ordered values lies."""
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def compare(scene: str, *, load: float, requests: int, seed: int) -> dict[str, list[float]]:
    """Run every policy and the oracle over the same arrivals."""
    found = {}
    for policy in ("oracle", *policies.NAMES):
        print(f"  {scene:8} {policy:12} at {load:.0%}", file=sys.stderr)
        found[policy] = Cluster(scene, policy=policy, load=load, seed=seed).run(requests)
    return found


def as_table(found: Mapping[str, Mapping[str, Sequence[float]]]) -> str:
    """Lay out p50 and p99 of each policy, and its p99 against the oracle's."""
    rows = ["| | " + " | ".join(f"{s}: p50 / p99 s, ÷ oracle" for s in found) + " |"]
    rows.append("|---|" + "---|" * len(found))
    for policy in ("oracle", *policies.NAMES):
        cells = []
        for seconds in found.values():
            p99, best = percentile(seconds[policy], 0.99), percentile(seconds["oracle"], 0.99)
            cells.append(f"{percentile(seconds[policy], 0.5):.2f} / {p99:.2f}, {p99 / best:.2f}")
        rows.append(f"| {policy} | " + " | ".join(cells) + " |")
    return "\n".join(rows)


def fresh(policy: str, *, load: float, seeds: Sequence[int]) -> tuple[list[float], list[float]]:
    """Return how long those took who asked while a machine was new: with a gentle beginning, and without."""
    found: tuple[list[float], list[float]] = [], []
    for seed in seeds:
        for seconds, gentle in zip(found, (True, False), strict=True):
            cluster = Cluster(
                "alike", policy=policy, load=load, seed=seed, fresh=True, gentle=gentle
            )
            cluster.run(int(3 * JOINS * load * sum(m.slots for m in cluster.machines) / WORK))
            took = zip(cluster.when, cluster.seconds, strict=True)
            seconds += [s for when, s in took if JOINS <= when < 2 * JOINS]
    return sorted(found[0]), sorted(found[1])


def as_table_of_the_fresh(*, load: float, seed: int) -> str:
    """Lay out p50, p99 and the mean with and without a gentle beginning, over five runs."""
    rows = ["| | gentle: p50 / p99 / mean s | at once: p50 / p99 / mean s |", "|---|---|---|"]
    for policy in policies.NAMES:
        cells = [
            f"{percentile(s, 0.5):.2f} / {percentile(s, 0.99):.2f} / {sum(s) / len(s):.3f}"
            for s in fresh(policy, load=load, seeds=range(seed, seed + 5))
        ]
        rows.append(f"| {policy} | " + " | ".join(cells) + " |")
    return "\n".join(rows)


def plot(folder: Path, *, requests: int, seed: int) -> None:
    """Draw by how much p99 is above the oracle's, over the load. Nobody here has workers of their own to stay at."""
    loads = (0.3, 0.5, 0.6, 0.7, 0.8, 0.9)
    above: dict[str, list[float]] = {n: [] for n in policies.NAMES if n != "local_first"}
    for load in loads:
        found = compare("unequal", load=load, requests=requests, seed=seed)
        best = percentile(found["oracle"], 0.99)
        for name, row in above.items():
            row.append(100 * (percentile(found[name], 0.99) / best - 1))
    title = "Slowest hundredth of answers, beside an oracle (machines of 2 to 16 slots)"
    charts.draw_lines(
        folder / "routing.svg",
        title,
        [100 * load for load in loads],
        above,
        across="load, % of all slots",
        up="99th percentile, % above the oracle's",
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table, or draw the picture."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.routing",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--load", type=float, default=0.8, help="share of all slots that is busy")
    parser.add_argument("--requests", type=int, default=40_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--plot", type=charts.folder, metavar="FOLDER", help="write routing.svg there"
    )
    parser.add_argument("--fresh", action="store_true", help="have a new machine come instead")
    options = parser.parse_args(arguments)
    if options.fresh:
        print(as_table_of_the_fresh(load=options.load, seed=options.seed))
        return 0
    if options.plot:
        plot(options.plot, requests=options.requests, seed=options.seed)
        return 0
    found = {
        scene: compare(scene, load=options.load, requests=options.requests, seed=options.seed)
        for scene in SCENES
    }
    print(as_table(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
