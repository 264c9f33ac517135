"""Attempt: one try at one candidate.

It is sent to its candidate, watched until the first byte, and recorded in the ledger from its start to its end.
"""

import logging
from abc import ABC, abstractmethod
from collections.abc import Coroutine
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any, Protocol

from yarl import URL

from registry.clock import Clock
from registry.values import value_class
from router.answer import Answer
from router.errors import WorkerError
from router.http.reply import Reply
from router.ledger import Ledger
from router.outcome import Outcome
from router.requests import Request
from router.select.candidates import Candidate
from router.state.in_flight import Occupancy, Tally
from router.state.stuck import WorkerActivity
from router.trace import AttemptTrace

log = logging.getLogger("modelvine.attempts")


@value_class
class Routed:
    """An answer that has begun, its candidate, the number of workers tried, and the candidates that would have been next.

    Code that passes on an event stream of a local worker counts its events in `tally`.
    """

    answer: Answer
    candidate: Candidate
    attempts: int
    tally: Tally | None
    others: tuple[Candidate, ...] = ()


class AttemptContext(ABC):
    """What attempts need of their router: it sends them and takes in their outcomes."""

    def __init__(self, ledger: Ledger, now: Clock) -> None:
        self.ledger = ledger
        """The ledger that attempts are recorded in."""
        self.now = now
        """The ledger's clock."""

    @abstractmethod
    def send(self, attempt: "Attempt") -> AbstractAsyncContextManager[Answer]:
        """Send the request to the candidate; the result enters at the first byte, or raises a `WorkerError`."""

    @abstractmethod
    def observe(self, outcome: Outcome) -> None:
        """Take in how an attempt went."""


class Attempt:
    """One attempt at a request. Enter it once, for its answer; exiting early cancels it at the worker.

    `number` counts from one. `others` are the candidates that could be asked instead, `holds_slot` says that its slot is taken
    already. `reply` is the pending response if the request was sent already, see `Router.start`.

    At the start, the ledger stores in it what it needs at the end: the `occupancy` of the replica, how many seconds that was
    `occupied_before` so far, and as `worker_activity` the local worker whose first byte is awaited.
    """

    __slots__ = (
        "_answer_context",
        "_booked",
        "_context",
        "answer",
        "began",
        "candidate",
        "holds_slot",
        "number",
        "occupancy",
        "occupied_before",
        "others",
        "reply",
        "request",
        "trace",
        "worker_activity",
    )

    _answer_context: AbstractAsyncContextManager[Answer]
    worker_activity: WorkerActivity
    began: float
    occupancy: Occupancy
    occupied_before: float

    def __init__(
        self,
        context: AttemptContext,
        request: Request,
        candidate: Candidate,
        *,
        number: int,
        others: tuple[Candidate, ...],
        holds_slot: bool,
    ) -> None:
        self._context = context
        self._booked = False
        self.answer: Answer | None = None
        self.request = request
        self.candidate = candidate
        self.number = number
        self.others = others
        self.holds_slot = holds_slot
        self.reply: Reply | None = None
        self.trace: AttemptTrace | None = None
        if request.trace is not None:
            self.trace = request.trace.add_attempt(request, candidate, others, number)

    def begin(self) -> None:
        """Record the start of the attempt: its slot is taken from now on."""
        self._booked = True
        self.began = self._context.now()
        if self.trace is not None:
            self.trace.began = self.began
        self._context.ledger.record_start(self)

    def record_answer(self, answer: Answer) -> Routed:
        """Record the start of the answer, and return it."""
        self.answer = answer
        now = self._context.now()
        if self.trace is not None:
            self.trace.record_first_byte(str(answer.route), answer.status, now)
        tally = self._context.ledger.record_first_byte(self, answer, now)
        return Routed(answer, self.candidate, self.number, tally, self.others)

    async def __aenter__(self) -> Routed:
        if not self._booked:
            self.begin()
        try:
            self._answer_context = self._context.send(self)
            answer = await self._answer_context.__aenter__()
        except BaseException as error:
            self.end(error)
            raise
        return self.record_answer(answer)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool | None:
        try:
            return await self._answer_context.__aexit__(kind, error, trace)
        finally:
            self.end(error)

    def end(self, exception: BaseException | None = None) -> None:
        """Record the end of the attempt: it was answered, failed with an error, or its caller left."""
        error = None if exception is None else self._mark_error(exception)
        context, answer, now = self._context, self.answer, self._context.now()
        failure = error if answer is None else answer.broken
        if failure is not None:
            self._log(failure)
        if self.trace is not None:
            self.trace.record_end(failure, answer.usage if answer else None, now)
        context.ledger.record_end(self, failure, now)
        seconds, request_id = now - self.began, self.request.id
        if failure is not None:
            circuit = context.ledger.condition(self.candidate).circuit
            context.observe(
                Outcome(self.candidate, failure, seconds, request=request_id, circuit=circuit)
            )
        elif answer is not None:
            # A caller that left before the first byte has shown nothing about the worker.
            context.observe(
                Outcome(self.candidate, None, seconds, exception is not error, request_id)
            )

    def _mark_error(self, exception: BaseException) -> WorkerError | None:
        """Return the error that it failed with, marked with its number and worker; `None` if its caller left."""
        if not isinstance(exception, WorkerError):
            return None
        exception.attempts, exception.at = self.number, self._worker_address
        exception.deaths += self.request.deaths
        return exception

    def _log(self, error: WorkerError) -> None:
        """Log which worker failed and why, for the operator."""
        log.log(
            logging.WARNING if error.blames_worker else logging.INFO,
            "request=%s attempt=%d failed at %s: %s: %s",
            self.request.id,
            self.number,
            self._worker_address,
            type(error).__name__,
            error,
        )

    @property
    def _worker_address(self) -> str:
        worker = self.candidate.worker
        # A worker's path and query may hold a key.
        return str(URL(worker.api).origin()) if worker else self.candidate.node


class Attempts(Protocol):
    """Maker of the attempts at a request."""

    async def begin(self, request: Request, first: Attempt | None = None) -> tuple[Attempt, Routed]:
        """Return the first attempt that is answered, entered; the caller has to exit it.

        `first` is the first attempt, if it was made already.
        """


class AnsweredRequest:
    """A request that is being answered: exiting it exits its attempt."""

    __slots__ = ("_attempt", "_attempts", "_first", "_request")

    _attempt: Attempt

    def __init__(
        self,
        attempts: "Attempts",
        request: Request,
        first: Attempt | None = None,
    ) -> None:
        self._attempts = attempts
        self._request = request
        self._first = first

    async def __aenter__(self) -> Routed:
        self._attempt, routed = await self._attempts.begin(self._request, self._first)
        return routed

    def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> Coroutine[Any, Any, bool | None]:
        return self._attempt.__aexit__(kind, error, trace)
