"""Aggregate of the state and counters of all processes of a node. Most nodes are a single process."""

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Protocol

from node.connection_limits import ConnectionCounts
from node.observe.counters import Counts, sum_of
from node.observe.log_writer import LogLine, RecentLines
from node.observe.metrics import Metrics
from node.observe.samples import LoopLag
from registry.records import Load, Service
from router.dispatch import Router
from router.workers import Worker


class HelperState(Protocol):
    """State that another process of this node reported a moment ago."""

    @property
    def in_flight(self) -> int:
        """Attempts that are in flight and that this process does not count."""

    @property
    def loads(self) -> Iterable[tuple[Service, Load]]:
        """Load that it puts on this machine's workers."""

    @property
    def counts(self) -> Counts:
        """Its counters since it started."""

    @property
    def loop_lag(self) -> float:
        """Lag of its event loop, in seconds."""

    @property
    def loop_busy(self) -> float:
        """CPU time of its event loop between two samples, in seconds."""


class OtherProcess(Protocol):
    """Another process of this node."""

    @property
    def state(self) -> HelperState:
        """The state that it reported last."""

    async def ask(self) -> HelperState:
        """Query its current state; raise `TimeoutError`."""

    async def lines_since(self, time: float) -> tuple[LogLine, ...]:
        """Query the last lines of its log; raise `TimeoutError`."""


class Aggregate:
    """Sums over the processes of a node."""

    def __init__(
        self, router: Router, metrics: Metrics, loop_lag: LoopLag, lines: RecentLines
    ) -> None:
        self._router = router
        self._metrics = metrics
        self._loop_lag = loop_lag
        self._lines = lines
        self._siblings: dict[OtherProcess, None] = {}
        self._past = Counts()

    def join(self, sibling: OtherProcess) -> None:
        """Add another process."""
        self._siblings[sibling] = None

    def part(self, sibling: OtherProcess) -> None:
        """Remove a process that has ended, and keep its counters."""
        del self._siblings[sibling]
        self._past = replace(sum_of((self._past, sibling.state.counts)), in_flight=0, connections=0)

    @property
    def processes(self) -> int:
        """Number of processes, this one included."""
        return 1 + len(self._siblings)

    async def refresh(self) -> None:
        """Query the state of all processes; one that does not answer keeps its previous state."""
        queries = (sibling.ask() for sibling in self._siblings)
        await asyncio.gather(*queries, return_exceptions=True)

    async def lines_since(self, time: float) -> list[LogLine]:
        """Return the last lines of all logs since `time`, sorted by time, without processes that do not answer."""
        queries = (sibling.lines_since(time) for sibling in self._siblings)
        answers = await asyncio.gather(*queries, return_exceptions=True)
        other_lines = [line for lines in answers if isinstance(lines, tuple) for line in lines]
        return sorted((*self._lines.since(time), *other_lines), key=lambda line: line.time)

    async def at_work(self) -> int:
        """Query all processes, and return the number of attempts in flight."""
        await self.refresh()
        return self.in_flight()

    def in_flight(self) -> int:
        """Return the number of attempts in flight, by the last known states."""
        return self._router.attempts_in_flight + sum(s.state.in_flight for s in self._siblings)

    def busy_loads(self) -> dict[Service, Load]:
        """Return the load of those workers of this machine that have requests."""
        own = self._router.busy_loads()
        if not self._siblings:
            return own
        return together([own, *(dict(sibling.state.loads) for sibling in self._siblings)])

    def load_of(self, worker: Worker) -> Load:
        """Return the load of one worker of this machine."""
        own = self._router.load_of(worker)
        if not self._siblings:
            return own
        service = worker.service
        reported = ({s: load} for o in self._siblings for s, load in o.state.loads if s == service)
        return together([{service: own}, *reported])[service]

    def others(self) -> Iterable[Counts]:
        """Return the counters of all other processes, including those that have ended."""
        return (self._past, *(sibling.state.counts for sibling in self._siblings))

    def routed(self) -> Mapping[str, int]:
        """Return the sums of the routers' events."""
        own = Counts(routed=tuple(self._router.events.items()))
        return dict(sum_of((own, *self.others())).routed)

    def connections(self) -> ConnectionCounts:
        """Return the number of open connections, and the events of all connections."""
        both = sum_of((self._metrics.counts(), *self.others()))
        return ConnectionCounts(both.connections, Counter(dict(both.connection_events)))

    def loop_lag(self, now: float) -> float:
        """Return the greatest lag of any event loop, in seconds."""
        lags = [sibling.state.loop_lag for sibling in self._siblings]
        return max(self._loop_lag.lag.worst(now), *lags, 0.0)

    def loop_busy(self, now: float) -> float:
        """Return the greatest CPU time of any event loop between two samples, in seconds."""
        busy = [sibling.state.loop_busy for sibling in self._siblings]
        return max(self._loop_lag.busy.worst(now), *busy, 0.0)


def together(loads: Iterable[Mapping[Service, Load]]) -> dict[Service, Load]:
    """Add up the loads that several processes report of the same workers."""
    sums: dict[Service, Load] = {}
    for each in loads:
        for service, load in each.items():
            before = sums.get(service)
            sums[service] = load if before is None else _both(before, load)
    return sums


def _both(one: Load, two: Load) -> Load:
    return Load(
        in_flight=one.in_flight + two.in_flight,
        queued=one.queued + two.queued,
        slots=max(one.slots, two.slots),
        rate=one.rate + two.rate,
        first=one.first if two.first is None else two.first,
    )
