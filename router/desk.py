"""Desk of a router: starts attempts at candidates, and watches them until the first byte."""

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from typing import cast

from registry.clock import Clock
from registry.members.liveness import Presence
from router.answer import Answer
from router.attempt import Attempt, AttemptDesk
from router.dialects import Dialect, Starter
from router.errors import WorkerFailed, WorkerUnreachable
from router.first_byte_timeout import Waits
from router.ledger import Ledger
from router.outcome import Outcome
from router.requests import Request
from router.select.weights import patience
from router.slot_discovery import SlotDiscovery
from router.world import World


class Desk(AttemptDesk):
    """The `AttemptDesk` of a router."""

    def __init__(
        self,
        ledger: Ledger,
        now: Clock,
        *,
        world: World,
        dialects: Mapping[str, Dialect],
        waits: Waits,
        discovery: SlotDiscovery,
    ) -> None:
        super().__init__(ledger, now)
        self._world = world
        self.dialects = dialects
        self._waits = waits
        self._discovery = discovery

    def observe(self, outcome: Outcome) -> None:
        """Take in how an attempt went."""
        self._world.observe(outcome)

    def discover_slots(self, attempt: Attempt) -> None:
        """Have a local worker asked how many requests it takes at one time, if it has several and its bound is to be learnt."""
        worker = attempt.candidate.worker
        if worker is None or attempt.occupancy.count <= 1 or not self._discovery.is_due(worker):
            return
        if self.ledger.learns(worker):
            self._discovery.ask(worker)

    def put(self, attempt: Attempt) -> AbstractAsyncContextManager[Answer]:
        """Send a request to its candidate; the result enters at the first byte, or raises a `WorkerError`."""
        candidate, others = attempt.candidate, attempt.others
        dialect = self.dialects.get(candidate.dialect)
        if dialect is None:
            raise WorkerFailed(f"this node has no dialect called {candidate.dialect!r}")
        asked = as_asked(attempt)
        if attempt.reply is None:
            self.discover_slots(attempt)
            answer = dialect.answer(asked, candidate)
        elif not candidate.worker and self._world.presence_of(candidate.node) is Presence.LOST:
            attempt.reply.close()
            raise WorkerUnreachable("the other node stopped answering", sent=True)
        else:
            answer = cast("Starter", dialect).resume(asked, candidate, attempt.reply)
        return self._waits.watch(candidate, others, answer, elsewhere=not attempt.request.waits)


def as_asked(attempt: Attempt) -> Request:
    """Return the request as its candidate gets it: if there are others, with how long it may wait there."""
    request, candidate, others = attempt.request, attempt.candidate, attempt.others
    waits, patient, holds, passed = request.waits, request.patience, request.holds, request.passed
    if request.trace is not None and attempt.trace is not None:
        passed = request.trace.onward(passed, attempt.trace)
    if others and not candidate.worker:
        waits, patient = False, patience(request, candidate, others)
    elif attempt.number > 1 and holds:
        # It has other candidates to go to; this node finds the one that is ready first.
        holds = False
    elif passed is request.passed:
        return request
    return request.asked(waits=waits, patience=patient, holds=holds, passed=passed)
