"""Discovery of a worker's slots: how many requests it takes at one time, where none were registered and its dialect can tell.

A worker is asked once it has several requests, since before that it makes no difference, and again now and then: it may be
restarted with other settings.
"""

from collections.abc import Mapping

from registry.bounded import put_newest
from registry.clock import Clock
from registry.records import Service
from registry.task_group import BackgroundTasks
from router.dialects import Dialect
from router.state.concurrency import Limits
from router.workers import Worker

AGAIN = 600.0
"""Seconds after which a worker is asked again."""

MAX_WORKERS = 4_096
"""Workers that are remembered as asked; beyond that, the one asked longest ago is evicted, and is asked once more."""


class SlotDiscovery:
    """Asks workers in the background, never in the way of requests. Lives on one event loop."""

    def __init__(
        self,
        dialects: Mapping[str, Dialect],
        limits: Limits,
        now: Clock,
        tasks: BackgroundTasks,
    ) -> None:
        """`limits` takes in what a dialect was told; `tasks` runs the queries."""
        self._dialects = dialects
        self._limits = limits
        self._now = now
        self._tasks = tasks
        self._queried_at: dict[tuple[str, str, Service], float] = {}

    def is_due(self, worker: Worker) -> bool:
        """Return whether it is time to ask a worker."""
        return self._now() - self._queried_at.get(_worker_key(worker), -AGAIN) >= AGAIN

    def query_if_due(self, worker: Worker) -> None:
        """Ask a worker, if it is time to."""
        if not self.is_due(worker):
            return
        put_newest(self._queried_at, _worker_key(worker), self._now(), limit=MAX_WORKERS)
        self._tasks.spawn(self._query(worker))

    async def _query(self, worker: Worker) -> None:
        dialect = self._dialects.get(worker.dialect)
        slots = 0 if dialect is None else await dialect.slots(worker)
        if slots > 0:
            self._limits.record_stated(worker.service, slots, self._now())


def _worker_key(worker: Worker) -> tuple[str, str, Service]:
    # These are hashed faster than a worker, and every request looks one up.
    return worker.api, worker.dialect, worker.service
