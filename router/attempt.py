"""Attempt: one try at one candidate.

It is put to its candidate, watched until the first byte, and booked from its start to its end.
"""

import logging
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from yarl import URL

from registry.members.liveness import Evidence
from router.dialects import Answer
from router.errors import WorkerAway, WorkerError, WorkerStale, WorkerTimeout, WorkerUnreachable
from router.ledger import Ledger
from router.requests import Request
from router.select.candidates import Candidate
from router.state.local_load import Tally

log = logging.getLogger("modelvine.attempts")


@dataclass(frozen=True, slots=True)
class Routed:
    """An answer that has begun, who gives it, and how many workers were tried for it.

    Who passes on an event stream of this machine's worker counts its events in `tally`.
    """

    answer: Answer
    candidate: Candidate
    attempts: int
    tally: Tally | None


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one attempt went; `error` is `None` when it answered. `seconds` last from its start to its very end."""

    candidate: Candidate
    error: WorkerError | None
    seconds: float

    @property
    def shows(self) -> Evidence | None:
        """What it shows about the node: the way there works, or does not. A failing worker shows nothing."""
        match self.error:
            case None:
                return Evidence.ANSWERED
            case WorkerUnreachable() | WorkerTimeout(phase="connection"):
                return Evidence.FAILED
            case _:
                return None

    @property
    def stale(self) -> bool:
        """Whether another node said that it does not serve the model any more: our catalog is behind."""
        return self.candidate.worker is None and isinstance(self.error, WorkerStale | WorkerAway)


@dataclass(frozen=True, slots=True)
class AttemptDesk:
    """Where attempts are put and booked: the same for all of them."""

    ledger: Ledger
    put: Callable[["Attempt"], AbstractAsyncContextManager[Answer]]
    """Puts the request to the candidate; its entry is the first byte, and raises a `WorkerError` until then."""
    observe: Callable[[Outcome], None]
    now: Callable[[], float]


class Attempt:
    """One attempt at a request. Enter once, with its answer; leaving early cancels it at the worker.

    `number` counts from one. `others` are who could be asked instead, `holds_slot` says that a slot was waited for.
    """

    __slots__ = (
        "_answer",
        "_began",
        "_desk",
        "_put",
        "candidate",
        "holds_slot",
        "number",
        "others",
        "request",
    )

    def __init__(
        self,
        desk: AttemptDesk,
        request: Request,
        candidate: Candidate,
        *,
        number: int,
        others: tuple[Candidate, ...],
        holds_slot: bool,
    ) -> None:
        self._desk = desk
        self._began = 0.0
        self._put: AbstractAsyncContextManager[Answer] | None = None
        self._answer: Answer | None = None
        self.request = request
        self.candidate = candidate
        self.number = number
        self.others = others
        self.holds_slot = holds_slot

    async def __aenter__(self) -> Routed:
        desk = self._desk
        self._began = desk.now()
        desk.ledger.began(self.candidate, holds_slot=self.holds_slot)
        try:
            self._put = desk.put(self)
            self._answer = answer = await self._put.__aenter__()
        except BaseException as error:
            self._ended(error)
            raise
        tally = desk.ledger.begun(self.candidate, answer, desk.now() - self._began)
        return Routed(answer, self.candidate, self.number, tally)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool | None:
        try:
            return await self._put.__aexit__(kind, error, trace) if self._put else None
        finally:
            self._ended(error)

    def _ended(self, left: BaseException | None) -> None:
        error = left if isinstance(left, WorkerError) else None
        if error is not None:
            error.attempts, error.at = self.number, self._at
            error.deaths += self.request.deaths
        desk, answer = self._desk, self._answer
        seconds = desk.now() - self._began
        if (failed := error if answer is None else answer.broken) is not None:
            self._log(failed)
        desk.ledger.ended(self.request, self.candidate, answer, error, seconds)
        # A caller who left before the first byte has shown nothing about the worker.
        if answer is not None or error is not None:
            broken = error if answer is None else answer.broken
            desk.observe(Outcome(self.candidate, broken, seconds))

    def _log(self, error: WorkerError) -> None:
        """Write down who failed and why, for the operator."""
        log.log(
            logging.WARNING if error.blames_worker else logging.INFO,
            "request=%s attempt=%d failed at %s: %s: %s",
            self.request.id,
            self.number,
            self._at,
            type(error).__name__,
            error,
        )

    @property
    def _at(self) -> str:
        worker = self.candidate.worker
        # A worker's path and query may hold a key.
        return str(URL(worker.api).origin()) if worker else self.candidate.node


class Answering:
    """A request that is being answered: left when its attempt is."""

    __slots__ = ("_attempt", "_begun", "_request")

    def __init__(
        self,
        begun: Callable[[Request], Coroutine[Any, Any, tuple[Attempt, Routed]]],
        request: Request,
    ) -> None:
        self._begun = begun
        self._request = request
        self._attempt: Attempt | None = None

    async def __aenter__(self) -> Routed:
        self._attempt, routed = await self._begun(self._request)
        return routed

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool | None:
        return await self._attempt.__aexit__(kind, error, trace) if self._attempt else None
