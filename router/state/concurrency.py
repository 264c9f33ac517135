"""Adaptive concurrency limit of workers that were registered without one. No I/O, time is an argument.

A worker states its limit itself, or the limit is learnt from its refusals: a worker that refused a fifth request takes four.
After a while one more is tried, less and less often where that is refused again. Slowness is not a refusal: a worker that
batches well is not throttled, and one that never refuses has no limit.
"""

from dataclasses import dataclass, replace
from typing import Protocol

from registry.bounded import put_newest
from registry.records import Service
from router.workers import Worker, Workers

FIRST_PAUSE = 1.0
LONGEST_PAUSE = 60.0
"""Bounds of the seconds until one more request is tried: doubled when it is refused, halved when it is not."""

MAX_BOUNDS = 4_096
"""Workers whose limit is remembered; the one learnt first is evicted, and has no limit until it refuses again."""


@dataclass(slots=True)
class _Bound:
    slots: int
    since: float
    stated: bool = False
    pause: float = FIRST_PAUSE
    answered: int = 0
    trying: bool = False


class Limits:
    """The learnt limits. `changes` rises with every change."""

    def __init__(self) -> None:
        self._bounds: dict[Service, _Bound] = {}
        self.changes = 0

    def limit_of(self, service: Service) -> int:
        """Return how many concurrent requests a worker takes, 0 where no limit is known."""
        bound = self._bounds.get(service)
        return bound.slots if bound else 0

    def record_stated(self, service: Service, slots: int, now: float) -> None:
        """Take in the limit that a worker states itself."""
        self._remember(service, _Bound(slots, now, stated=True))

    def record_refusal(self, service: Service, under_way: int, now: float) -> None:
        """Lower the limit of a worker that was full with `under_way` requests, the refused one included."""
        # The refusal of a request that was there alone says nothing about the limit.
        if under_way < 2:
            return
        bound = self._bounds.get(service)
        if bound is None:
            self._remember(service, _Bound(under_way - 1, now))
            return
        if bound.trying:
            bound.trying, bound.pause = False, min(2 * bound.pause, LONGEST_PAUSE)
        bound.slots = min(bound.slots, under_way - 1)
        bound.since, bound.answered = now, 0
        self.changes += 1

    def record_answer(self, service: Service, under_way: int, now: float) -> bool:
        """Return whether a worker that answered may have one more request from now on, and raise its limit if so.

        `under_way` requests were there, the answered one included.
        """
        bound = self._bounds.get(service)
        if bound is None or bound.stated or under_way < bound.slots:
            return False
        bound.answered += 1
        if bound.answered < bound.slots or now - bound.since < bound.pause:
            return False
        if bound.trying:
            bound.pause = max(bound.pause / 2, FIRST_PAUSE)
        bound.slots, bound.since, bound.answered, bound.trying = bound.slots + 1, now, 0, True
        self.changes += 1
        return True

    def _remember(self, service: Service, bound: _Bound) -> None:
        put_newest(self._bounds, service, bound, limit=MAX_BOUNDS)
        self.changes += 1


class RegisteredWorkers(Protocol):
    """Owner of this machine's workers as they were registered."""

    @property
    def workers(self) -> Workers:
        """The current table."""


class BoundedWorkers:
    """This machine's workers, with learnt limits where none was registered."""

    def __init__(self, registered: RegisteredWorkers, limits: Limits) -> None:
        self._registered = registered
        self._limits = limits
        self._built_from: tuple[Workers, int] = (Workers(), -1)
        self._bounded = Workers()

    def __call__(self) -> Workers:
        """Return the current table; it is rebuilt only when something changed."""
        registered, changes = self._registered.workers, self._limits.changes
        if not changes:
            return registered
        if self._built_from[0] is not registered or self._built_from[1] != changes:
            self._bounded = Workers.of(map(self._with_bound, registered))
            self._built_from = registered, changes
        return self._bounded

    def should_learn_limit(self, worker: Worker) -> bool:
        """Return whether a worker was registered without a capacity, so that a limit may be learnt."""
        registered = self._registered.workers.by_key.get(worker.key)
        return registered is not None and not registered.capacity

    def _with_bound(self, worker: Worker) -> Worker:
        if worker.capacity:
            return worker
        return replace(worker, capacity=self._limits.limit_of(worker.service))
