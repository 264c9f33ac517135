"""Samples of queues, and what was refused, for the last hour: looked at every few seconds, so that a request pays nothing."""

import asyncio
from collections import Counter
from collections.abc import Iterator
from typing import Protocol

from node.auth.usage_history import UsageHistory
from node.observe.recent import Recent
from registry.clock import Clock
from registry.records import Load, PeerId, Service
from router.state.remote_load import Reports

PERIOD = 5.0
"""Seconds between two looks."""

FRESH = 10.0
"""Seconds for which a report of another node says something of its queue now."""


class BusyWorkers(Protocol):
    """This machine's workers, by all processes of the node."""

    def busy(self) -> dict[Service, Load]:
        """Say how busy those are that have requests."""


class QueueSamples:
    """Looks at the queues of this machine, and at those of other nodes that it has asked within the hour."""

    def __init__(
        self,
        history: UsageHistory,
        recent: Recent,
        *,
        own: PeerId,
        busy: BusyWorkers,
        reports: Reports,
        now: Clock,
    ) -> None:
        """What is found goes into `history`; `recent` has counted what was refused."""
        self._history = history
        self._recent = recent
        self._own = own
        self._busy = busy
        self._reports = reports
        self._now = now

    async def run(self) -> None:
        """Look every few seconds, until cancelled."""
        while True:
            await asyncio.sleep(PERIOD)
            self.look()

    def look(self) -> None:
        """Take in how many requests wait now, and what was refused since the last time."""
        queued: Counter[tuple[str, str]] = Counter()
        for service, load in self._busy.busy().items():
            queued[service.model, self._own] += load.queued
        # What others say of models that nobody asks for here takes no room.
        asked = set(self._history.pairs())
        for model, node, count in self._recent.take_refused():
            # A caller who names several models may call the first one anything.
            if node != self._own or (model, node) in asked or (model, node) in queued:
                self._history.refused(model, node, count)
        for other in {node for _, node in asked} - {self._own}:
            for model, waiting in self._told(PeerId(other)):
                if (model, other) in asked:
                    queued[model, other] += waiting
        for (model, at), waiting in queued.items():
            if waiting:
                self._history.queued(model, at, waiting)

    def _told(self, node: PeerId) -> Iterator[tuple[str, int]]:
        for service, said in self._reports.of_node(node, self._now()):
            if said.age <= FRESH:
                yield service.model, said.load.queued
