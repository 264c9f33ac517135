"""Policies of the router under a virtual clock: callers' waits, compared with an oracle that knows all queues and speeds.

    python -m bench.routing
    python -m bench.routing --scene speeds --load 0.9 --requests 20000
    python -m bench.routing --entries 50
    python -m bench.routing --plot docs
    python -m bench.routing --fresh
    python -m bench.routing --agents --load 0.85

Some nodes take requests for one model that eight machines serve. They know what real nodes know: their own requests in flight,
the load reports of other nodes (`registry.members.load`), and the load and the service time in the head of each answer. As in
real nodes, a machine without a free slot refuses a request that may go elsewhere. The oracle takes the machine that finishes
an average request soonest, given all queues and speeds at that instant. Times are virtual; the same arguments give the same
table.

With --agents, conversations go on turn by turn, and the table shows how many turns hit their machine's cache.

With --fresh, a ninth machine joins that has yet to load its model, and the table shows what that costs the requests of that
time, with and without slow start (`router.state.slow_start`).
"""

import argparse
import heapq
import math
import sys
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path
from random import Random

from bench import charts
from bench.conversations import READING, SHARED_BYTES, Agents, Chats, Talk
from registry.members.load import Reporter
from registry.records import Load, PeerId, Service
from router import policies
from router.requests import Request
from router.select.candidates import Candidate, hold_back_newcomers
from router.select.policy import Policy, order_candidates
from router.select.weights import candidates_to_query, longest_useful_wait
from router.state.estimator import Estimator, ObservedTime
from router.state.in_flight import Occupancy
from router.state.prefix_index import PrefixIndex
from router.state.remote_load import Report, Reports
from router.state.service_time import NOTHING_BEFORE, ReadPrefix, ServiceTime
from router.state.slow_start import SlowStart

ENTRIES = 5
ATTEMPTS = 3
ORACLE = "oracle"
TICK = 0.25
"""Seconds between two readings of a node's own load, as in `registry.service`."""

DELAY = 0.03
"""Seconds that a load report travels."""

WORK = 1.0
"""Mean seconds of a request at a slot of speed 1; log-normal, half of them take less than 0.6."""

_SIGMA = 1.0
_LUCK = 0.3
"""Spread (log-normal) of the times of answers of one length: no machine takes the same time twice."""

_TOKENS = 100


@dataclass(frozen=True, slots=True)
class Scene:
    """Machines and arrivals. With `slots` 0 a machine works on all its requests at a time, at `speeds` requests a second.

    In a burst, two seconds of eight, arrivals are `burst` times as frequent as on average. After half of all requests the
    first machine becomes `slows` times as slow. A share of conversations begin with a `document` of so many bytes; machines
    read at `reading` times their speed. With `cache`, conversations are those of agents: turns follow the previous answers,
    and a machine's cache holds `cache` bytes for each of its slots, with LRU eviction. Otherwise there are no caches.
    """

    slots: Sequence[int] = (8,) * 8
    speeds: Sequence[float] = (1.0,) * 8
    burst: float = 1.0
    slows: float = 1.0
    document: int = 0
    reading: Sequence[float] = (1.0,) * 8
    cache: int = 0

    @property
    def agents(self) -> bool:
        """Whether conversations are those of agents."""
        return self.cache > 0


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
    "agents": Scene(slots=(4,) * 8, cache=800_000),
    "agents, speeds": Scene(slots=(4,) * 8, speeds=_UNLIKE, cache=800_000),
}
"""Differences in slots alone and speeds alone, then combined with others."""

LOADING = 15.0
"""Seconds that a fresh machine takes to load its model after its first request; all requests until then wait."""

JOINS = 30.0
"""Seconds after which the fresh machine joins; requests that arrive within as many seconds after that are counted."""

LIAR = PeerId("liar")
"""Machine of a tenth of the others' speed that never refuses a request, and reports that it is idle and fast."""


@dataclass(slots=True)
class Machine:
    """Machine with slots and a queue, or one whose requests share it. One that `lies` reports to be idle and fast."""

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
    index: PrefixIndex = field(default_factory=PrefixIndex)
    room: int = 0
    lies: bool = False
    cache: OrderedDict[str, int] = field(default_factory=OrderedDict)
    looked: float = 0.0
    turn: int = 0

    def __post_init__(self) -> None:
        self.estimator = Estimator(shares=not self.slots)

    @property
    def there(self) -> int:
        """Number of its requests."""
        return len(self.running) + len(self.waiting)

    @property
    def load(self) -> Load:
        """Load that its node would report now."""
        return Load(0, 0, 1_000) if self.lies else Load(self.there, 0, self.slots)

    @property
    def time(self) -> ServiceTime | None:
        """Service time that its node would report now."""
        return ServiceTime(0.001) if self.lies else self.estimator.time

    @property
    def full(self) -> bool:
        """Whether one more request would have to wait."""
        return 0 < self.slots <= self.there

    def wait(self) -> float:
        """Return the seconds that one more request would wait for a slot, by the estimate of the machine's node."""
        time = self.estimator.time
        usual = time.seconds_alone(kilobytes=1, tokens=time.tokens) if time else WORK
        return (len(self.waiting) + 1) * usual / self.slots

    def begins(self, now: float) -> float:
        """Return when an answer begins that gets its slot now."""
        if self.ready is None:
            self.ready = now + LOADING
        return max(now, self.ready)

    def takes(self, job: "Job") -> float:
        """Return the seconds that a request takes alone."""
        return job.luck * self.work(job) / self.speed

    def work(self, job: "Job") -> float:
        """Return the seconds that a request usually takes alone at speed 1."""
        return job.work + READING * self.unread(job) / 1_000 / self.reading

    def unread(self, job: "Job") -> int:
        """Return the number of a request's bytes that are not in the cache."""
        shared = SHARED_BYTES if self.cache else 0
        return job.size - max(shared, self.cache.get(job.talk, 0))

    def reads(self, job: "Job") -> None:
        """Add a conversation to the cache, and evict the least recently used ones."""
        if self.room:
            self.cache[job.talk] = job.size
            self.cache.move_to_end(job.talk)
            while sum(self.cache.values()) > self.room:
                self.cache.popitem(last=False)

    def expected(self, job: "Job") -> tuple[float, float]:
        """Return the seconds that a request would take here now, and how full the machine would be."""
        fullness = (self.there + 1) / (self.slots or 1)
        queued = max(0.0, fullness - 1) if self.slots else fullness - 1
        usual = self.work(job) if self.room else WORK
        return (usual + WORK * queued) / self.speed, fullness


@dataclass(slots=True)
class Entry:
    """Node that takes requests, and what it knows."""

    policy: Policy
    slow_start: SlowStart
    reports: Reports = field(default_factory=Reports)
    times: dict[PeerId, ServiceTime] = field(default_factory=dict)
    index: PrefixIndex = field(default_factory=PrefixIndex)
    in_flight: Counter[PeerId] = field(default_factory=Counter)
    observed: defaultdict[PeerId, ObservedTime] = field(
        default_factory=lambda: defaultdict(ObservedTime)
    )


@dataclass(slots=True)
class Job:
    """Request in flight, of `size` bytes; `work` is seconds at speed 1, scaled by `luck`; `left` is what remains of them.

    `before` is what its machine's node believes to be cached of it.
    """

    request: Request
    entry: Entry
    arrived: float
    talk: str
    size: int
    work: float
    luck: float
    agent: Talk | None = None
    before: ReadPrefix = NOTHING_BEFORE
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
        liar: bool = False,
    ) -> None:
        """With `fresh` a new machine joins; with `gentle` it gets a slow start. With `liar`, `LIAR` is there too."""
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
        for machine in self.machines:
            machine.room = self._scene.cache * machine.slots
        bears = sum((m.slots or 1) * m.speed for m in self.machines)
        if fresh:
            late = Machine(PeerId("fresh"), Service("p", "m"), 8, 1.0, 1.0, joins=JOINS, ready=None)
            self.machines.append(late)
        if liar:
            slow = Machine(LIAR, Service("p", "m"), 1_000, 0.1, 1.0, lies=True)
            self.machines.append(slow)
        self._by_node = {m.node: m for m in self.machines}
        name = "p2c" if policy == ORACLE else policy
        self.entries = [Entry(policies.load(name), SlowStart()) for _ in range(entries)]
        self._rate = load * bears / WORK
        self._events: list[tuple[float, int, Callable[[float], None]]] = []
        self._order = count()
        self.seconds: list[float] = []
        self.when: list[float] = []
        self._talks = Chats(self._random, self._scene.document)
        self._agents = Agents(self._random) if self._scene.agents else None
        self.turns = self.found = self.asked = 0
        self.chosen: Counter[PeerId] = Counter()
        """Requests that each machine got."""
        if self._agents:
            self._rate *= WORK / self._agents.seconds

    def run(self, requests: int) -> list[float]:
        """Run so many requests, and return the sorted seconds of each, without the first tenth."""
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

    def _arrive(self, now: float, remaining: int, half: int) -> None:
        if remaining == half:
            self.machines[0].speed /= self._scene.slows
        if self._agents:
            self._turn(now, self._agents.begin())
        else:
            entry, request = self._entry(), next(self._talks)
            size = len(request.body)
            rest = WORK - READING * self._talks.mean_bytes / 1_000
            work = self._random.lognormvariate(math.log(rest) - _SIGMA**2 / 2, _SIGMA)
            self._ask(now, entry, request, request.session, size, work)
        if remaining > 1:
            # Two seconds of eight are the burst; the other six have the rest of the mean.
            calm = (8 - 2 * self._scene.burst) / 6
            rate = self._rate * (self._scene.burst if now % 8 < 2 else calm)
            then = now + self._random.expovariate(rate)
            self._at(then, lambda n: self._arrive(n, remaining - 1, half))

    def _turn(self, now: float, talk: Talk) -> None:
        entry, (request, work) = self._entry(), talk.turn()
        self._ask(now, entry, request, talk.name, talk.size, work, talk)

    def _entry(self) -> Entry:
        return self.entries[int(self._random.random() * len(self.entries))]

    def _ask(
        self,
        now: float,
        entry: Entry,
        request: Request,
        name: str,
        size: int,
        work: float,
        talk: Talk | None = None,
    ) -> None:
        luck = self._random.lognormvariate(-(_LUCK**2) / 2, _LUCK)
        job = Job(request, entry, now, name, size, work, luck, agent=talk)
        machine = self._choose(job, now)
        entry.in_flight[machine.node] += 1
        job.before = _before(machine.index, machine, request, now)
        for index in (entry.index, machine.index):
            index.record_read((machine.node, machine.service), request.prefixes, now)
        if machine.full:
            machine.waiting.append(job)
        else:
            self._begin(now, machine, job)

    def _choose(self, job: Job, now: float) -> Machine:
        joined = [m for m in self.machines if m.joins <= now]
        if self._policy == ORACLE:
            return min(joined, key=partial(Machine.expected, job=job))
        entry = job.entry
        candidates = self._candidates(joined, job, now)
        queried = candidates_to_query(job.request, candidates) if entry.policy.compares else []
        # Questions and answers travel as load reports do.
        job.arrived -= 2 * DELAY * bool(queried)
        for candidate in queried:
            machine, self.asked = self._by_node[candidate.node], self.asked + 1
            read, _ = machine.index.find_readers(job.request.prefixes, now)
            self._hear(now, machine, entry, machine.load)
            if machine.time:
                entry.times[machine.node] = machine.time
            if candidate.key in read:
                entry.index.record_reported(
                    candidate.key, job.request.prefixes, read[candidate.key], now
                )
            candidates = self._candidates(joined, job, now)
        ordered = order_candidates(entry.policy, job.request, candidates, self._drawn.random)
        entry.policy.begun(job.request)
        for index, chosen in enumerate(ordered[:ATTEMPTS]):
            others, machine = ordered[index + 1 :], self._by_node[chosen.node]
            last = index == ATTEMPTS - 1 or not others
            if (
                last
                or not machine.full
                or machine.wait() <= longest_useful_wait(job.request, chosen, others)
            ):
                break
        entry.slow_start.record_request(*chosen.key, now)
        self.chosen[machine.node] += 1
        return machine

    def _candidates(self, joined: Sequence[Machine], job: Job, now: float) -> Sequence[Candidate]:
        entry = job.entry
        reports = [
            entry.observed[m.node].choose_figures(
                entry.reports.newest(m.node, m.service, now), entry.times.get(m.node)
            )
            for m in joined
        ]
        candidates: Sequence[Candidate] = [
            Candidate(
                m.node,
                m.service,
                in_flight=entry.in_flight[m.node],
                report=report,
                time=time,
                before=_before(entry.index, m, job.request, now),
            )
            for m, (report, time) in zip(joined, reports, strict=True)
        ]
        if self._gentle:
            candidates = hold_back_newcomers(
                candidates, lambda c: entry.slow_start.allowance(*c.key, now)
            )
        return candidates

    def _begin(self, now: float, machine: Machine, job: Job) -> None:
        self._share(now, machine)
        machine.running[job.request.id] = job
        machine.crowd.change(1, now)
        job.began, job.crowd = now, machine.crowd.seconds_until(now)
        job.left = machine.takes(job)
        if job.agent and job.agent.said > 1:
            self.turns += 1
            self.found += job.talk in machine.cache
        machine.reads(job)
        self._hear(now, machine, job.entry, machine.load)
        if machine.time:
            job.entry.times[machine.node] = machine.time
        if machine.slots:
            self._at(machine.begins(now) + job.left, lambda n: self._end(n, machine, job))
        else:
            self._look(now, machine)

    def _share(self, now: float, machine: Machine) -> None:
        """Subtract the work done on each request since the previous call, if they share the machine."""
        if not machine.slots and machine.running:
            done = (now - machine.looked) / len(machine.running)
            for job in machine.running.values():
                job.left -= done
        machine.looked = now

    def _look(self, now: float, machine: Machine) -> None:
        """Plan the end of the first request to finish on a shared machine; void if requests come or go before."""
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
        self._observe(now, machine, job)
        machine.estimator.record_answer(
            now - job.began,
            kilobytes=len(job.request.body) / 1_000,
            tokens=_TOKENS * job.work / WORK,
            concurrency=(machine.crowd.seconds_until(now) - job.crowd) / (now - job.began),
            before=job.before,
        )
        if self._agents and job.agent and (gap := self._agents.gap(job.agent)):
            self._at(now + gap, partial(self._turn, talk=job.agent))
        machine.crowd.change(-1, now)
        del machine.running[job.request.id]
        if machine.waiting:
            self._begin(now, machine, machine.waiting.popleft())
        elif not machine.slots:
            self._look(now, machine)

    def _observe(self, now: float, machine: Machine, job: Job) -> None:
        """Take in an answer at the node that the request came to."""
        entry, node = job.entry, machine.node
        entry.slow_start.record_answer(node, machine.service)
        entry.observed[node].record_answer(
            now - job.arrived,
            kilobytes=len(job.request.body) / 1_000,
            tokens=_TOKENS * job.work / WORK,
            ours=entry.in_flight[node],
            time=entry.times.get(node),
            report=entry.reports.newest(node, machine.service, now),
            before=job.before,
        )
        entry.in_flight[node] -= 1

    def _tick(self, now: float, machine: Machine) -> None:
        busy = {machine.service: machine.load} if machine.load.in_flight else {}
        rarity = max(1.0, (len(self.machines) + len(self.entries)) / 5)
        load = machine.reporter.rows_to_report(busy, now, rarity=rarity).get(machine.service)
        if load is not None:
            for entry in self.entries:
                self._at(now + DELAY, lambda n, e=entry: self._hear(n, machine, e, load))
        self._at(now + TICK, lambda n: self._tick(n, machine))

    def _hear(self, now: float, machine: Machine, entry: Entry, load: Load) -> None:
        report = Report(load, entry.in_flight[machine.node], now)
        entry.reports.record(machine.node, machine.service, report)


def _before(index: PrefixIndex, machine: Machine, request: Request, now: float) -> ReadPrefix:
    """Return how much of a request a machine has cached, by an index."""
    read, shared = index.find_readers(request.prefixes, now)
    its = read.get((machine.node, machine.service))
    return ReadPrefix(its.size / 1_000 if its else 0.0, its.age if its else 0.0, shared / 1_000)


def percentile(ordered: Sequence[float], share: float) -> float:
    """Return the value below which a share of the ordered values lies."""
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def compare(
    scene: str, *, load: float, requests: int, seed: int, entries: int = ENTRIES
) -> dict[str, list[float]]:
    """Run every policy and the oracle over the same arrivals."""
    results = {}
    for policy in (ORACLE, *policies.NAMES):
        print(f"  {scene:14} {policy:12} at {load:.0%}", file=sys.stderr)
        cluster = Cluster(scene, policy=policy, load=load, seed=seed, entries=entries)
        results[policy] = cluster.run(requests)
    return results


def as_table(results: Mapping[str, Mapping[str, Sequence[float]]]) -> str:
    """Return a table of the oracle's p50 and p99 in each scene, and of each policy's mean and p99 as multiples of them."""
    rows = ["| | oracle: p50 / p99 s | " + " | ".join(policies.NAMES) + " |"]
    rows.append("|---|---|" + "---|" * len(policies.NAMES))
    for scene, seconds in results.items():
        best = seconds[ORACLE]
        cells = [f"{percentile(best, 0.5):.2f} / {percentile(best, 0.99):.2f}"]
        for policy in policies.NAMES:
            longer = [sum(seconds[policy]) / sum(best)]
            longer.append(percentile(seconds[policy], 0.99) / percentile(best, 0.99))
            cells.append(" / ".join(f"{x:.2f}" if x < 10 else f"{x:.0f}" for x in longer))
        rows.append(f"| {scene} | " + " | ".join(cells) + " |")
    return "\n".join(rows)


def as_table_of_agents(*, load: float, requests: int, seed: int) -> str:
    """Return a table of cache hits of turns, and of times relative to the oracle, by the number of nodes that take requests."""
    rows = [
        "| | nodes that take requests | turns that find their cache | mean / p99, of the oracle's | questions a request |",
        "|---|---|---|---|---|",
    ]
    for scene in (name for name, shape in SCENES.items() if shape.agents):
        run = partial(Cluster, scene, load=load, seed=seed)
        knowing = run(policy=ORACLE, entries=1)
        best = knowing.run(requests)
        rows.append(f"| {scene} | oracle | {knowing.found / knowing.turns:.2f} | | |")
        for entries in (1, 8, 50):
            cluster = run(policy="p2c", entries=entries)
            took = cluster.run(requests)
            longer = percentile(took, 0.99) / percentile(best, 0.99)
            rows.append(
                f"| {scene} | {entries} | {cluster.found / cluster.turns:.2f} | "
                f"{sum(took) / sum(best):.2f} / {longer:.2f} | {cluster.asked / requests:.1f} |"
            )
    return "\n".join(rows)


def fresh(policy: str, *, load: float, seeds: Sequence[int]) -> tuple[list[float], list[float]]:
    """Return the seconds of the requests that arrived while a machine was new: with slow start, and without."""
    groups: tuple[list[float], list[float]] = [], []
    for seed in seeds:
        for seconds, gentle in zip(groups, (True, False), strict=True):
            cluster = Cluster(
                "alike", policy=policy, load=load, seed=seed, fresh=True, gentle=gentle
            )
            cluster.run(int(3 * JOINS * load * sum(m.slots for m in cluster.machines) / WORK))
            took = zip(cluster.when, cluster.seconds, strict=True)
            seconds += [s for when, s in took if JOINS <= when < 2 * JOINS]
    return sorted(groups[0]), sorted(groups[1])


def as_table_of_the_fresh(*, load: float, seed: int) -> str:
    """Return a table of p50, p99 and mean with and without slow start, over five runs."""
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
    """Draw the excess of p99 over the oracle's, by load.

    Without `local_first`, as the nodes here have no workers of their own, and `round_robin`, which would leave the chart.
    """
    loads = (0.3, 0.5, 0.6, 0.7, 0.8, 0.9)
    above: dict[str, list[float]] = {n: [] for n in policies.NAMES if n not in _NOT_DRAWN}
    for load in loads:
        results = compare("speeds", load=load, requests=requests, seed=seed)
        best = percentile(results[ORACLE], 0.99)
        for name, row in above.items():
            row.append(100 * (percentile(results[name], 0.99) / best - 1))
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
    """Print the table, or draw the chart."""
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
    parser.add_argument("--agents", action="store_true", help="see who finds its cache instead")
    options = parser.parse_args(arguments)
    if options.fresh:
        print(as_table_of_the_fresh(load=options.load, seed=options.seed))
        return 0
    if options.agents:
        print(as_table_of_agents(load=options.load, requests=options.requests, seed=options.seed))
        return 0
    if options.plot:
        plot(options.plot, requests=options.requests, seed=options.seed)
        return 0
    results = {
        scene: compare(
            scene,
            load=options.load,
            requests=options.requests,
            seed=options.seed,
            entries=options.entries,
        )
        for scene in options.scene or SCENES
    }
    print(as_table(results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
