"""Aggregate of what all processes of a node do. Most nodes are one process: then it is what that one does."""

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Protocol

from node.connection_limits import Crowd
from node.observe.counters import Counts, summed
from node.observe.log_line import LogLine
from node.observe.loop_lag import Lateness
from node.observe.metrics import Metrics
from node.observe.recent_lines import RecentLines
from registry.records import Load, Service
from router.dispatch import Router
from router.workers import Worker


class HelperState(Protocol):
    """How another process of this node was a moment ago."""

    @property
    def in_flight(self) -> int:
        """Attempts that are under way and are not booked by this process."""

    @property
    def loads(self) -> Iterable[tuple[Service, Load]]:
        """How busy it makes this machine's workers."""

    @property
    def counts(self) -> Counts:
        """What it has counted since it began."""

    @property
    def loop_lag(self) -> float:
        """Seconds by which its event loop woke too late."""

    @property
    def loop_busy(self) -> float:
        """Seconds of processor time that its event loop took between two looks."""


class Sibling(Protocol):
    """Another process of this node."""

    @property
    def state(self) -> HelperState:
        """How it was when it was asked last."""

    async def ask(self) -> HelperState:
        """Ask it how it is now; raise `TimeoutError`."""

    async def lines_since(self, time: float) -> tuple[LogLine, ...]:
        """Ask it for the last lines of its log; raise `TimeoutError`."""


class Whole:
    """Sums over the processes of a node."""

    def __init__(
        self, router: Router, metrics: Metrics, lateness: Lateness, lines: RecentLines
    ) -> None:
        self._router = router
        self._metrics = metrics
        self._lateness = lateness
        self._lines = lines
        self._siblings: dict[Sibling, None] = {}
        self._past = Counts()

    def join(self, sibling: Sibling) -> None:
        """Take in another process."""
        self._siblings[sibling] = None

    def part(self, sibling: Sibling) -> None:
        """A process has ended; what it counted still counts."""
        del self._siblings[sibling]
        self._past = replace(summed((self._past, sibling.state.counts)), in_flight=0, connections=0)

    @property
    def processes(self) -> int:
        """How many there are."""
        return 1 + len(self._siblings)

    async def refresh(self) -> None:
        """Ask all how they are; one that does not say so keeps what it said last."""
        asked = (sibling.ask() for sibling in self._siblings)
        await asyncio.gather(*asked, return_exceptions=True)

    async def lines_since(self, time: float) -> list[LogLine]:
        """Return the last lines of all logs that are no older than `time`, in order; who does not answer is left out."""
        asked = (sibling.lines_since(time) for sibling in self._siblings)
        told = await asyncio.gather(*asked, return_exceptions=True)
        others = [line for lines in told if isinstance(lines, tuple) for line in lines]
        return sorted((*self._lines.since(time), *others), key=lambda line: line.time)

    async def at_work(self) -> int:
        """Ask all, and return how many attempts are under way."""
        await self.refresh()
        return self.in_flight()

    def in_flight(self) -> int:
        """Return how many attempts are under way, as it was known last."""
        return self._router.under_way + sum(s.state.in_flight for s in self._siblings)

    def busy(self) -> dict[Service, Load]:
        """Say how busy this machine's workers are that have requests."""
        own = self._router.busy()
        if not self._siblings:
            return own
        return together([own, *(dict(sibling.state.loads) for sibling in self._siblings)])

    def load_of(self, worker: Worker) -> Load:
        """Say how busy one worker of this machine is."""
        own = self._router.load_of(worker)
        if not self._siblings:
            return own
        service = worker.service
        said = ({s: load} for o in self._siblings for s, load in o.state.loads if s == service)
        return together([{service: own}, *said])[service]

    def others(self) -> Iterable[Counts]:
        """Return what all other processes have counted, those that have ended included."""
        return (self._past, *(sibling.state.counts for sibling in self._siblings))

    def routed(self) -> Mapping[str, int]:
        """Return the routers' events."""
        own = Counts(routed=tuple(self._router.events.items()))
        return dict(summed((own, *self.others())).routed)

    def connections(self) -> Crowd:
        """Return how many are connected, and what happened to those who came."""
        both = summed((self._metrics.counts(), *self.others()))
        return Crowd(both.connections, Counter(dict(both.crowd)))

    def loop_lag(self, now: float) -> float:
        """Return by how many seconds an event loop woke too late at worst."""
        lags = [sibling.state.loop_lag for sibling in self._siblings]
        return max(self._lateness.lag.worst(now), *lags, 0.0)

    def loop_busy(self, now: float) -> float:
        """Return the seconds of processor time that an event loop took between two looks at worst."""
        busy = [sibling.state.loop_busy for sibling in self._siblings]
        return max(self._lateness.busy.worst(now), *busy, 0.0)


def together(loads: Iterable[Mapping[Service, Load]]) -> dict[Service, Load]:
    """Add up what several processes say of the same workers."""
    found: dict[Service, Load] = {}
    for each in loads:
        for service, load in each.items():
            before = found.get(service)
            found[service] = load if before is None else _both(before, load)
    return found


def _both(one: Load, two: Load) -> Load:
    return Load(
        in_flight=one.in_flight + two.in_flight,
        queued=one.queued + two.queued,
        slots=max(one.slots, two.slots),
        rate=one.rate + two.rate,
        first=one.first if two.first is None else two.first,
    )
