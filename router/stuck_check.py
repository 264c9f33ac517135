"""Check of a silent local worker: carries out the decisions of `router.state.stuck`."""

import asyncio
from collections.abc import Mapping

from registry.clock import Clock
from registry.members.liveness import Presence
from registry.task_group import BackgroundTasks
from router.dialects import Dialect
from router.select.candidates import Candidate
from router.state.stuck import StuckWorkers
from router.workers import Worker
from router.world import World

GRAIN = 0.5
"""Seconds between two checks of the workers that have stopped."""


class StuckCheck:
    """Probes of workers, at most one of each at a time. Lives on one event loop."""

    def __init__(
        self,
        stuck: StuckWorkers,
        dialects: Mapping[str, Dialect],
        now: Clock,
        tasks: BackgroundTasks,
    ) -> None:
        """`tasks` runs tasks until they end or the node does."""
        self._stuck = stuck
        self._dialects = dialects
        self._now = now
        self._tasks = tasks
        self._stopped: dict[str, Worker] = {}
        self._timer: asyncio.TimerHandle | None = None

    def probe_if_due(self, candidate: Candidate) -> None:
        """Probe a worker that a request waits for, if it is time to."""
        worker = candidate.worker
        if worker is not None and self._stuck.claim_probe(worker.api, self._now()):
            self._tasks.spawn(self._probe(worker))

    def is_silent(self, worker: Worker) -> bool:
        """Return whether a worker no longer answers anything."""
        return self._stuck.is_silent(worker.api)

    async def alive(self, worker: Worker) -> bool:
        """Probe a worker, in bounded time; return whether it answered."""
        dialect = self._dialects.get(worker.dialect)
        return dialect is not None and await dialect.alive(worker)

    async def _probe(self, worker: Worker) -> None:
        answered = False
        try:
            answered = await self.alive(worker)
        finally:
            self._stuck.record_probe(worker.api, self._now(), answered=answered)
        if self._stuck.is_silent(worker.api):
            self._stopped[worker.api] = worker
            self._watch()

    def _watch(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(GRAIN, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self._stopped = {a: w for a, w in self._stopped.items() if self._stuck.is_silent(a)}
        for address, worker in self._stopped.items():
            if self._stuck.claim_probe(address, self._now()):
                self._tasks.spawn(self._probe(worker))
        # Without a stopped worker there is nothing to check.
        if self._stopped:
            self._watch()


class CandidateLiveness:
    """Observer of whether candidates are alive: workers of this machine by a stuck check, peers by the world."""

    def __init__(self, stuck_check: StuckCheck, world: World) -> None:
        self._stuck_check = stuck_check
        self._world = world

    def request_probe(self, candidate: Candidate) -> None:
        """Have a peer or worker probed; the stuck check and the world limit how often."""
        if candidate.worker is None:
            self._world.request_probe(candidate.node)
        else:
            self._stuck_check.probe_if_due(candidate)

    def is_silent(self, candidate: Candidate) -> bool:
        """Return whether it did not answer."""
        worker = candidate.worker
        return (
            self._world.is_silent(candidate.node)
            if worker is None
            else self._stuck_check.is_silent(worker)
        )

    def is_trusted(self, candidate: Candidate) -> bool:
        """Return whether it may be asked instead."""
        if candidate.worker is not None:
            return not self._stuck_check.is_silent(candidate.worker)
        return self._world.presence_of(candidate.node) is Presence.ALIVE

    def is_cut_off(self, candidate: Candidate) -> bool:
        """Return whether it lives, but its answers do not arrive here."""
        presence = self._world.presence_of(candidate.node)
        return candidate.worker is None and presence is Presence.UNREACHABLE
