"""Whom would nodes ask, and how long does it take? Machines with slots, nodes that know what nodes know, and a virtual clock."""

import heapq
import math
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from random import Random

import orjson

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


class World:
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
