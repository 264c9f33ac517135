"""Samples of queues and refusals for the last hour, taken every few seconds, so that they cost a request nothing."""

import asyncio
from collections import Counter
from collections.abc import Iterator
from typing import Protocol

from node.auth.usage_history import UsageHistory
from node.observe.recent import RecentRequests
from registry.clock import Clock
from registry.records import Load, PeerId, Service
from router.state.remote_load import Reports

PERIOD = 5.0
"""Seconds between two samples."""

FRESH = 10.0
"""Seconds for which another node's report is taken as the current state of its queue."""


class BusyWorkers(Protocol):
    """This machine's workers, with the load of all processes of the node."""

    def busy(self) -> dict[Service, Load]:
        """Return the load of those that have requests."""


class QueueSamples:
    """Sampler of the queues of this machine, and of those of other nodes that it has asked within the hour."""

    def __init__(
        self,
        history: UsageHistory,
        recent: RecentRequests,
        *,
        own: PeerId,
        busy: BusyWorkers,
        reports: Reports,
        now: Clock,
    ) -> None:
        """Samples go into `history`; `recent` counts the refusals."""
        self._history = history
        self._recent = recent
        self._own = own
        self._busy = busy
        self._reports = reports
        self._now = now

    async def run(self) -> None:
        """Take a sample every few seconds, until cancelled."""
        while True:
            await asyncio.sleep(PERIOD)
            self.look()

    def look(self) -> None:
        """Record how many requests wait now, and the refusals since the previous sample."""
        queued: Counter[tuple[str, str]] = Counter()
        for service, load in self._busy.busy().items():
            queued[service.model, self._own] += load.queued
        # Reports of other nodes on models without requests here take no room.
        asked = set(self._history.pairs())
        for model, node, count in self._recent.take_refused():
            # A caller that lists several models may give the first one any name.
            if node != self._own or (model, node) in asked or (model, node) in queued:
                self._history.refused(model, node, count)
        for other in {node for _, node in asked} - {self._own}:
            for model, waiting in self._rows(PeerId(other)):
                if (model, other) in asked:
                    queued[model, other] += waiting
        for (model, at), waiting in queued.items():
            if waiting:
                self._history.queued(model, at, waiting)

    def _rows(self, node: PeerId) -> Iterator[tuple[str, int]]:
        for service, said in self._reports.of_node(node, self._now()):
            if said.age <= FRESH:
                yield service.model, said.load.queued
