"""Runner of a router's attempts: sends the first at once if it need not wait, and watches each until its first byte."""

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from typing import cast

from registry.clock import Clock
from registry.members.liveness import Presence
from router.answer import Answer
from router.attempt import Attempt, AttemptContext
from router.choice import Chooser
from router.dialects import Dialect, Starter
from router.errors import WorkerFailed, WorkerUnreachable
from router.first_byte_timeout import FirstByteWaits
from router.ledger import Ledger
from router.outcome import Outcome
from router.requests import Request
from router.select.policy import Policy
from router.select.weights import longest_useful_wait
from router.settings import RouterSettings
from router.shared_slots import needs_slot
from router.slot_discovery import SlotDiscovery
from router.world import World


class AttemptRunner(AttemptContext):
    """The `AttemptContext` of a router."""

    def __init__(
        self,
        ledger: Ledger,
        now: Clock,
        *,
        world: World,
        dialects: Mapping[str, Dialect],
        waits: FirstByteWaits,
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
        if self.ledger.should_learn_limit(worker):
            self._discovery.query_if_due(worker)

    def send(self, attempt: Attempt) -> AbstractAsyncContextManager[Answer]:
        """Send a request to its candidate; the result enters at the first byte, or raises a `WorkerError`."""
        candidate, others = attempt.candidate, attempt.others
        dialect = self.dialects.get(candidate.dialect)
        if dialect is None:
            raise WorkerFailed(f"this node has no dialect called {candidate.dialect!r}")
        request = request_for_candidate(attempt)
        if attempt.reply is None:
            self.discover_slots(attempt)
            answer = dialect.answer(request, candidate)
        elif not candidate.worker and self._world.presence_of(candidate.node) is Presence.LOST:
            attempt.reply.close()
            raise WorkerUnreachable("the other node stopped answering", sent=True)
        else:
            answer = cast("Starter", dialect).resume(request, candidate, attempt.reply)
        waited, elsewhere = self.now() - attempt.began, not attempt.request.waits
        return self._waits.watch(candidate, others, answer, waited=waited, elsewhere=elsewhere)


def request_for_candidate(attempt: Attempt) -> Request:
    """Return the request as its candidate gets it: if there are others, with how long it may wait there."""
    request, candidate, others = attempt.request, attempt.candidate, attempt.others
    waits, patience, holds, passed = request.waits, request.patience, request.holds, request.passed
    if request.trace is not None and attempt.trace is not None:
        passed = request.trace.outgoing_headers(passed, attempt.trace)
    if others and not candidate.worker:
        waits, patience = False, longest_useful_wait(request, candidate, others)
    elif attempt.number > 1 and holds:
        # It has other candidates to go to; this node finds the one that is ready first.
        holds = False
    elif passed is request.passed:
        return request
    return request.for_candidate(waits=waits, patience=patience, holds=holds, passed=passed)


class _Starters(dict[str, Starter | None]):
    """The dialects that send requests at once, by name; `None` for one that cannot."""

    def __init__(self, dialects: Mapping[str, Dialect]) -> None:
        super().__init__()
        self._dialects = dialects

    def __missing__(self, name: str) -> Starter | None:
        dialect = self._dialects.get(name)
        self[name] = starter = dialect if isinstance(dialect, Starter) else None
        return starter


class FirstAttempts:
    """Starts first attempts."""

    def __init__(
        self, runner: AttemptRunner, chooser: Chooser, policy: Policy, settings: RouterSettings
    ) -> None:
        self._runner = runner
        self._chooser = chooser
        self._policy = policy
        self._second_attempts = settings.attempts > 1
        self._max_answer_bytes = settings.max_answer_bytes
        self._starters = _Starters(runner.dialects)

    def start(self, request: Request) -> Attempt | None:
        """Choose a candidate, and send the request now if that is possible; see `Router.start`."""
        ordered = self._chooser.choose_now(request)
        if ordered is None:
            return None
        runner, candidate = self._runner, ordered[0]
        # The process that lends slots has to be asked for one.
        if runner.ledger.borrowed_slots is not None and needs_slot(candidate):
            return None
        self._policy.begun(request)
        others = ordered[1:] if self._second_attempts else ()
        attempt = Attempt(runner, request, candidate, number=1, others=others, holds_slot=False)
        starter, outgoing = self._starters[candidate.dialect], request
        if others or attempt.trace is not None:
            outgoing = request_for_candidate(attempt)
        call = None if starter is None else starter.prepare(outgoing, candidate)
        connection = None if call is None else call.pool.take_idle()
        # Booked at once, so that the next choice counts this attempt.
        attempt.begin()
        runner.ledger.count_request(attempt.began)
        if call is not None and connection is not None:
            if candidate.in_flight:
                runner.discover_slots(attempt)
            attempt.reply = connection.begin(call.head, call.body, call.pool.batch)
        return attempt

    def answer_if_complete(self, first: Attempt) -> Answer | None:
        """Return the answer, if it has come in one piece and only needs to be passed on."""
        starter, reply = self._starters[first.candidate.dialect], first.reply
        if starter is None or reply is None:
            return None
        answer = starter.answer_if_complete(first.candidate, reply)
        if answer is None or len(answer.first) > self._max_answer_bytes:
            return None
        return answer
