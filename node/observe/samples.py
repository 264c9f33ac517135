"""Samples that a process takes of itself: the lag of its event loop, its queues, and its refusals.

The greatest lag of the last minute is reported, since it delays everything on this node. Queues and refusals are sampled every
few seconds for the last hour, so that they cost a request nothing. Refusals that are too many for a log line
each are counted, and their number is logged once a minute; once an hour, if an operator wants the refusal.
"""

import asyncio
import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Protocol

from node.auth.usage_history import UsageHistory
from node.observe.recent import RecentRequests
from registry.clock import Clock
from registry.records import Load, PeerId, Service
from router.state.remote_load import Reports

LAG_PERIOD = 0.1
"""Seconds between two samples: anything that blocks the loop for longer is seen, and ten wakes a second cost next to nothing."""

WINDOW = 60.0
"""Seconds for which the greatest value is remembered."""


class WindowMaximum:
    """Maximum of the numbers of the last `WINDOW` seconds; time is an argument."""

    def __init__(self) -> None:
        # Times increase and numbers decrease: an entry that a later one exceeds is never the maximum again.
        self._worst: deque[tuple[float, float]] = deque()

    def note(self, number: float, now: float) -> None:
        """Add a number."""
        while self._worst and self._worst[-1][1] <= number:
            self._worst.pop()
        self._worst.append((now, number))
        self._forget(now)

    def worst(self, now: float) -> float:
        """Return the maximum, or 0 if there is none above."""
        self._forget(now)
        return max(self._worst[0][1], 0.0) if self._worst else 0.0

    def _forget(self, now: float) -> None:
        while self._worst and self._worst[0][0] <= now - WINDOW:
            self._worst.popleft()


class LoopLag:
    """Lag of one thread's event loop, and the CPU time that the thread used meanwhile."""

    def __init__(self) -> None:
        self.lag = WindowMaximum()
        """Lag of the loop, in seconds."""
        self.busy = WindowMaximum()
        """CPU time of its thread between two samples, in seconds; lag without it comes from the machine."""

    async def watch(self, now: Clock, busy: Clock = time.thread_time) -> None:
        """Measure until cancelled."""
        while True:
            due, before = now() + LAG_PERIOD, busy()
            await asyncio.sleep(LAG_PERIOD)
            woke = now()
            self.lag.note(woke - due, woke)
            self.busy.note(busy() - before, woke)


QUEUE_PERIOD = 5.0
"""Seconds between two samples."""

FRESH = 10.0
"""Seconds for which another node's report is taken as the current state of its queue."""


class BusyWorkers(Protocol):
    """This machine's workers, with the load of all processes of the node."""

    def busy_loads(self) -> dict[Service, Load]:
        """Return the load of those that have requests."""


class QueueSamples:
    """Sampler of the queues of this machine, and of those of other nodes that it has asked within the hour."""

    def __init__(
        self,
        history: UsageHistory,
        recent: RecentRequests,
        *,
        own_peer: PeerId,
        busy: BusyWorkers,
        reports: Reports,
        now: Clock,
    ) -> None:
        """Samples go into `history`; `recent` counts the refusals."""
        self._history = history
        self._recent = recent
        self._own_peer = own_peer
        self._busy = busy
        self._reports = reports
        self._now = now

    async def run(self) -> None:
        """Take a sample every few seconds, until cancelled."""
        while True:
            await asyncio.sleep(QUEUE_PERIOD)
            self.sample()

    def sample(self) -> None:
        """Record how many requests wait now, and the refusals since the previous sample."""
        queued: Counter[tuple[str, str]] = Counter()
        for service, load in self._busy.busy_loads().items():
            queued[service.model, self._own_peer] += load.queued
        # Reports of other nodes on models without requests here take no room.
        pairs = set(self._history.pairs())
        for model, node, count in self._recent.take_refused():
            # A caller that lists several models may give the first one any name.
            if node != self._own_peer or (model, node) in pairs or (model, node) in queued:
                self._history.refused(model, node, count)
        for other in {node for _, node in pairs} - {self._own_peer}:
            for model, waiting in self._rows(PeerId(other)):
                if (model, other) in pairs:
                    queued[model, other] += waiting
        for (model, peer), waiting in queued.items():
            if waiting:
                self._history.queued(model, peer, waiting)

    def _rows(self, node: PeerId) -> Iterator[tuple[str, int]]:
        for service, report in self._reports.of_node(node, self._now()):
            if report.age <= FRESH:
                yield service.model, report.load.queued


log = logging.getLogger("modelvine.registry")

LINES: Mapping[str, str] = {
    "strangers_refused": "refused %d frames of unknown nodes: a neighbour introduces more than registry.strangers_per_second",
    "frames_dropped": "dropped %d frames: a neighbour forwards more than its limit",
    "frames_bad": "refused %d frames that are malformed, forged or not their publisher's own",
    "frames_lost_in_queue": "lost %d frames: this node is too busy to read them, or mesh.queue is too small",
    "kept_out": "kept out %d frames, records and questions of nodes that are not admitted",
    "evicted_by_all": "closed %d idle connections: all connections were in use (web.connections)",
    "evicted_by_own": "closed %d idle connections of addresses that have more than web.connections_per_address",
    "refused_to_all": "refused %d connections: requests in flight use all connections (web.connections)",
    "refused_to_own": "refused %d connections: their address has no connection left (web.connections_per_address)",
}
"""The log line of each event, with the number of times that it happened."""

REFUSAL_PERIOD = 5.0
"""Seconds between two readings of the counters."""

QUIET = 60.0
"""Least seconds between two lines about one event."""

WANTED: Mapping[str, float] = {"kept_out": 3600.0}
"""The same for refusals that an operator wants: a node that was retired may knock for weeks."""


class Refusals:
    """Counts that were logged of each event, and when; time is an argument."""

    def __init__(self) -> None:
        self._logged_counts: Counter[str] = Counter()
        self._logged_at: dict[str, float] = {}

    def due(self, counts: Mapping[str, int], now: float) -> Iterable[tuple[str, int]]:
        """Yield the lines to be written now, each with its event's count since the previous line."""
        for event, line in LINES.items():
            since = counts.get(event, 0) - self._logged_counts[event]
            quiet = WANTED.get(event, QUIET)
            if since > 0 and now - self._logged_at.get(event, float("-inf")) >= quiet:
                self._logged_counts[event] += since
                self._logged_at[event] = now
                yield line, since

    async def watch(
        self,
        counted: Callable[[], Mapping[str, int]],
        kept_out: Callable[[], Mapping[PeerId, str]],
        now: Clock,
    ) -> None:
        """Write the due lines, until cancelled; `kept_out` returns the last few peers that were not admitted, and why."""
        while True:
            await asyncio.sleep(REFUSAL_PERIOD)
            for line, since in self.due(counted(), now()):
                peers = kept_out().items() if line == LINES["kept_out"] else ()
                names = ", ".join(f"{peer} ({why})" for peer, why in peers)
                log.warning("%s%s", line % since, f": {names}" if names else "")
