"""Policies of the router under a virtual clock: how long callers wait, beside an oracle that knows all queues and speeds.

    python -m bench.routing
    python -m bench.routing --scene speeds --load 0.9 --requests 20000
    python -m bench.routing --entries 50
    python -m bench.routing --plot docs
    python -m bench.routing --fresh

Some nodes take requests for one model that eight machines serve, and see them as nodes do: their own requests in flight, what
other nodes say of themselves (`registry.members.load`), and the load and the service time in the head of each answer. Who has
no slot free refuses what may go elsewhere, as nodes do. The oracle takes the machine that has an average request done soonest,
knowing all queues and speeds at that instant. Times are virtual; the same arguments give the same table.

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
from router.select.weights import patience
from router.state.remote_load import Report, Reports
from router.state.service_time import Estimator, Occupancy, ServiceTime
from router.state.slow_start import Warming

ENTRIES = 5
ATTEMPTS = 3
TICK = 0.25
"""Seconds between two looks of a node at its own load, as `registry.service` takes them."""

DELAY = 0.03
"""Seconds that a load note travels."""

WORK = 1.0
"""Seconds that an average request takes a slot of speed 1; log-normal, half of them take less than 0.6."""

_SIGMA = 1.0
_LUCK = 0.3
"""How unlike two answers of one length are, log-normal: no machine takes the same time twice."""

_TURNS = 6
_TOKENS = 100
_TURN_BYTES = 400
_READING = 0.02
"""Seconds for each kilobyte of a request, at speed 1."""


@dataclass(frozen=True, slots=True)
class Scene:
    """Machines and arrivals. `slots` 0 is a machine that works on all it has at one time, at `speeds` requests a second.

    In a burst, two seconds of eight, arrivals are `burst` times as frequent as on average. After half of all requests the
    first machine is `slows` times as slow. A share of conversations begin with a `document` of so many bytes; machines read
    at `reading` times their speed.
    """

    slots: Sequence[int] = (8,) * 8
    speeds: Sequence[float] = (1.0,) * 8
    burst: float = 1.0
    slows: float = 1.0
    document: int = 0
    reading: Sequence[float] = (1.0,) * 8


_UNLIKE = (0.25, 0.37, 0.55, 0.82, 1.22, 1.81, 2.69, 4.0)

SCENES: Mapping[str, Scene] = {
    "alike": Scene(),
    "slots": Scene(slots=(2, 2, 4, 4, 8, 8, 16, 16)),
    "bursts": Scene(burst=3.0),
    "speeds": Scene(slots=(4,) * 8, speeds=_UNLIKE),
    "speeds, bursts": Scene(slots=(4,) * 8, speeds=_UNLIKE, burst=3.0),
    "one slows": Scene(slows=8.0),
    "half share": Scene(slots=(8, 0) * 4, speeds=(1.0, 8.0) * 4),
    "documents": Scene(document=40_000, reading=(0.25, 4.0) * 4),
}
"""Slots alone and speeds alone, then together with what else is unlike."""

LOADING = 15.0
"""Seconds that a fresh machine takes to load its model once the first request is there; all that come until then wait."""

JOINS = 30.0
"""Seconds after which the fresh machine is there, and for as long after that those count who ask just then."""


@dataclass(slots=True)
class Machine:
    """A machine with slots, where who finds none free waits in turn, or one whose requests share it."""

    node: PeerId
    service: Service
    slots: int
    speed: float
    reading: float
    joins: float = 0.0
    ready: float | None = 0.0
    running: dict[str, "Job"] = field(default_factory=dict)
    waiting: deque["Job"] = field(default_factory=deque)
    reporter: Reporter = field(default_factory=Reporter)
    estimator: Estimator = field(init=False)
    crowd: Occupancy = field(default_factory=Occupancy)
    looked: float = 0.0
    turn: int = 0

    def __post_init__(self) -> None:
        self.estimator = Estimator(shares=not self.slots)

    @property
    def there(self) -> int:
        """How many requests it has."""
        return len(self.running) + len(self.waiting)

    @property
    def load(self) -> Load:
        """What its node would say of it now."""
        return Load(self.there, 0, self.slots)

    @property
    def full(self) -> bool:
        """Whether one more would have to wait."""
        return 0 < self.slots <= self.there

    def wait(self) -> float:
        """Return the seconds that one more would wait for a slot, as the machine's node thinks."""
        time = self.estimator.time
        usual = time.alone(kilobytes=1, tokens=time.tokens) if time else WORK
        return (len(self.waiting) + 1) * usual / self.slots

    def begins(self, now: float) -> float:
        """Return when an answer begins whose slot is there now."""
        if self.ready is None:
            self.ready = now + LOADING
        return max(now, self.ready)

    def takes(self, job: "Job") -> float:
        """Return the seconds that a request takes alone."""
        return job.luck * (job.work + job.reading / self.reading) / self.speed

    def expected(self) -> tuple[float, float]:
        """Return the seconds that an average request would take here now, and how full it is then."""
        fullness = (self.there + 1) / (self.slots or 1)
        return WORK / self.speed * (max(1.0, fullness) if self.slots else fullness), fullness


@dataclass(slots=True)
class Entry:
    """A node that takes requests, and what it knows."""

    policy: Policy
    warming: Warming
    reports: Reports = field(default_factory=Reports)
    times: dict[PeerId, ServiceTime] = field(default_factory=dict)
    in_flight: Counter[PeerId] = field(default_factory=Counter)


@dataclass(slots=True)
class Job:
    """One request on its way; `work` and `reading` are seconds at speed 1 that `luck` stretches, `left` what is left of them."""

    request: Request
    entry: Entry
    arrived: float
    work: float
    reading: float
    luck: float
    began: float = 0.0
    crowd: float = 0.0
    left: float = 0.0


class Cluster:
    """Machines, entries and a virtual clock."""

    def __init__(
        self,
        scene: str,
        *,
        policy: str,
        load: float,
        seed: int,
        entries: int = ENTRIES,
        fresh: bool = False,
        gentle: bool = True,
    ) -> None:
        """`fresh` has a new machine come, `gentle` has it begin gently."""
        self._scene = SCENES[scene]
        self._gentle = gentle
        # Arrivals are the same for all policies.
        self._random = Random(seed)
        self._drawn = Random(seed + 1)
        self._policy = policy
        made_of = zip(self._scene.slots, self._scene.speeds, self._scene.reading, strict=True)
        self.machines = [
            Machine(PeerId(f"n{number}"), Service("p", "m"), *each)
            for number, each in enumerate(made_of)
        ]
        bears = sum((m.slots or 1) * m.speed for m in self.machines)
        if fresh:
            late = Machine(PeerId("fresh"), Service("p", "m"), 8, 1.0, 1.0, joins=JOINS, ready=None)
            self.machines.append(late)
        self._by_node = {m.node: m for m in self.machines}
        made = "p2c" if policy == "oracle" else policy
        self.entries = [Entry(policies.load(made), Warming()) for _ in range(entries)]
        self._rate = load * bears / WORK
        self._events: list[tuple[float, int, Callable[[float], None]]] = []
        self._order = count()
        self.seconds: list[float] = []
        self.when: list[float] = []
        self._talks = _Conversations(self._random, self._scene.document)

    def run(self, requests: int) -> list[float]:
        """Let so many requests come, and return how long each took, the first tenth left out."""
        for machine in self.machines:
            self._at(self._random.random() * TICK, lambda now, m=machine: self._tick(now, m))
        half = requests // 2
        self._at(0.0, lambda now: self._arrive(now, requests, half))
        while len(self.seconds) < requests:
            now, _, happen = heapq.heappop(self._events)
            happen(now)
        return sorted(self.seconds[requests // 10 :])

    def _at(self, when: float, happen: Callable[[float], None]) -> None:
        heapq.heappush(self._events, (when, next(self._order), happen))

    def _arrive(self, now: float, left: int, half: int) -> None:
        if left == half:
            self.machines[0].speed /= self._scene.slows
        entry = self.entries[int(self._random.random() * len(self.entries))]
        request = next(self._talks)
        reading = _READING * len(request.body) / 1_000
        rest = WORK - _READING * self._talks.mean_bytes / 1_000
        mean = math.log(rest) - _SIGMA**2 / 2
        work = self._random.lognormvariate(mean, _SIGMA)
        luck = self._random.lognormvariate(-(_LUCK**2) / 2, _LUCK)
        job = Job(request, entry, now, work, reading, luck)
        machine = self._choose(job, now)
        entry.in_flight[machine.node] += 1
        if machine.full:
            machine.waiting.append(job)
        else:
            self._begin(now, machine, job)
        if left > 1:
            # Two seconds of eight are the burst; the other six have what is left of the mean.
            calm = (8 - 2 * self._scene.burst) / 6
            rate = self._rate * (self._scene.burst if now % 8 < 2 else calm)
            then = now + self._random.expovariate(rate)
            self._at(then, lambda n: self._arrive(n, left - 1, half))

    def _choose(self, job: Job, now: float) -> Machine:
        there = [m for m in self.machines if m.joins <= now]
        if self._policy == "oracle":
            return min(there, key=Machine.expected)
        entry = job.entry
        found: Sequence[Candidate] = [
            Candidate(
                m.node,
                m.service,
                in_flight=entry.in_flight[m.node],
                report=entry.reports.of(m.node, m.service, now),
                time=entry.times.get(m.node),
            )
            for m in there
        ]
        if self._gentle:
            found = begin_gently(found, lambda c: entry.warming.allowance(*c.key, now))
        ordered = in_order(entry.policy, job.request, found, self._drawn.random)
        entry.policy.begun(job.request)
        for place, chosen in enumerate(ordered[:ATTEMPTS]):
            others, machine = ordered[place + 1 :], self._by_node[chosen.node]
            last = place == ATTEMPTS - 1 or not others
            if last or not machine.full or machine.wait() <= patience(job.request, chosen, others):
                break
        entry.warming.began(*chosen.key, now)
        entry.policy.answered(job.request, chosen)
        return machine

    def _begin(self, now: float, machine: Machine, job: Job) -> None:
        self._share(now, machine)
        machine.running[job.request.id] = job
        machine.crowd.change(1, now)
        job.began, job.crowd = now, machine.crowd.seconds(now)
        job.left = machine.takes(job)
        self._hear(now, machine, job.entry, machine.load)
        if machine.estimator.time:
            job.entry.times[machine.node] = machine.estimator.time
        if machine.slots:
            self._at(machine.begins(now) + job.left, lambda n: self._end(n, machine, job))
        else:
            self._look(now, machine)

    def _share(self, now: float, machine: Machine) -> None:
        """Take what was done of each since the last look, where all share the machine."""
        if not machine.slots and machine.running:
            done = (now - machine.looked) / len(machine.running)
            for job in machine.running.values():
                job.left -= done
        machine.looked = now

    def _look(self, now: float, machine: Machine) -> None:
        """Come back when the first of those that share a machine is done, unless others come or go before."""
        machine.turn += 1
        turn = machine.turn
        if machine.running:
            first = min(machine.running.values(), key=lambda j: j.left)
            then = now + max(0.0, first.left) * len(machine.running)

            def happen(when: float) -> None:
                if machine.turn == turn:
                    self._end(when, machine, first)

            self._at(then, happen)

    def _end(self, now: float, machine: Machine, job: Job) -> None:
        self._share(now, machine)
        self.seconds.append(now - job.arrived)
        self.when.append(job.arrived)
        job.entry.warming.answered(machine.node, machine.service)
        job.entry.in_flight[machine.node] -= 1
        machine.estimator.take(
            now - job.began,
            kilobytes=len(job.request.body) / 1_000,
            tokens=_TOKENS * job.work / WORK,
            concurrency=(machine.crowd.seconds(now) - job.crowd) / (now - job.began),
        )
        machine.crowd.change(-1, now)
        del machine.running[job.request.id]
        if machine.waiting:
            self._begin(now, machine, machine.waiting.popleft())
        elif not machine.slots:
            self._look(now, machine)

    def _tick(self, now: float, machine: Machine) -> None:
        busy = {machine.service: machine.load} if machine.load.in_flight else {}
        rarity = max(1.0, (len(self.machines) + len(self.entries)) / 5)
        said = machine.reporter.rows(busy, now, rarity=rarity).get(machine.service)
        if said is not None:
            for entry in self.entries:
                self._at(now + DELAY, lambda n, e=entry: self._hear(n, machine, e, said))
        self._at(now + TICK, lambda n: self._tick(n, machine))

    def _hear(self, now: float, machine: Machine, entry: Entry, load: Load) -> None:
        report = Report(load, entry.in_flight[machine.node], now)
        entry.reports.hear(machine.node, machine.service, report)


class _Conversations(Iterator[Request]):
    """Chats of some turns each, many at one time, a fifth of them about a document, if any."""

    _DOCUMENTS = 0.2

    def __init__(self, random: Random, document: int) -> None:
        self._random = random
        self._document = document
        self._talks: dict[int, list[dict[str, str]]] = {}
        self._number = count()
        turns = _TURN_BYTES * 2 * (_TURNS - 1) / 2
        self.mean_bytes = turns + document * self._DOCUMENTS + 200

    def __next__(self) -> Request:
        if len(self._talks) < 200 or self._random.random() < 1 / _TURNS:
            self._talks[next(self._number)] = [{"role": "system", "content": "be brief"}]
        talk = self._random.choice(list(self._talks))
        said = self._talks[talk]
        words = f"{talk}:{len(said)} ".ljust(_TURN_BYTES, "x")
        if len(said) == 1 and self._document and self._random.random() < self._DOCUMENTS:
            words = words.ljust(self._document, "x")
        said.append({"role": "user", "content": words})
        body = orjson.dumps({"model": "m", "messages": said})
        said.append({"role": "assistant", "content": words[:_TURN_BYTES]})
        if len(said) > 2 * _TURNS:
            del self._talks[talk]
        name = f"r{next(self._number)}"
        return Request(name, Kind.CHAT, "m", body, "application/json", session=str(talk))


def percentile(ordered: Sequence[float], share: float) -> float:
    """Return the value below which a share of ordered values lies."""
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def compare(
    scene: str, *, load: float, requests: int, seed: int, entries: int = ENTRIES
) -> dict[str, list[float]]:
    """Run every policy and the oracle over the same arrivals."""
    found = {}
    for policy in ("oracle", *policies.NAMES):
        print(f"  {scene:14} {policy:12} at {load:.0%}", file=sys.stderr)
        cluster = Cluster(scene, policy=policy, load=load, seed=seed, entries=entries)
        found[policy] = cluster.run(requests)
    return found


def as_table(found: Mapping[str, Mapping[str, Sequence[float]]]) -> str:
    """Lay out p50 and p99 of the oracle in each scene, and each policy's mean and p99 as multiples of the oracle's."""
    rows = ["| | oracle: p50 / p99 s | " + " | ".join(policies.NAMES) + " |"]
    rows.append("|---|---|" + "---|" * len(policies.NAMES))
    for scene, seconds in found.items():
        best = seconds["oracle"]
        cells = [f"{percentile(best, 0.5):.2f} / {percentile(best, 0.99):.2f}"]
        for policy in policies.NAMES:
            longer = [sum(seconds[policy]) / sum(best)]
            longer.append(percentile(seconds[policy], 0.99) / percentile(best, 0.99))
            cells.append(" / ".join(f"{x:.2f}" if x < 10 else f"{x:.0f}" for x in longer))
        rows.append(f"| {scene} | " + " | ".join(cells) + " |")
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


_NOT_DRAWN = frozenset({"local_first", "round_robin"})


def plot(folder: Path, *, requests: int, seed: int) -> None:
    """Draw by how much p99 is above the oracle's, over the load.

    Nobody here has workers of their own to stay at, and `round_robin` would leave the picture.
    """
    loads = (0.3, 0.5, 0.6, 0.7, 0.8, 0.9)
    above: dict[str, list[float]] = {n: [] for n in policies.NAMES if n not in _NOT_DRAWN}
    for load in loads:
        found = compare("speeds", load=load, requests=requests, seed=seed)
        best = percentile(found["oracle"], 0.99)
        for name, row in above.items():
            row.append(100 * (percentile(found[name], 0.99) / best - 1))
    title = "Slowest hundredth of answers, beside an oracle (machines of speeds 0.25 to 4)"
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
    parser.add_argument("--entries", type=int, default=ENTRIES, help="nodes that take requests")
    parser.add_argument("--scene", choices=[*SCENES], action="append", help="only this one")
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
        scene: compare(
            scene,
            load=options.load,
            requests=options.requests,
            seed=options.seed,
            entries=options.entries,
        )
        for scene in options.scene or SCENES
    }
    print(as_table(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
