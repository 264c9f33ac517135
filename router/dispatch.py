"""Sends a request to the first candidate that answers."""

from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import partial
from itertools import chain, islice
from typing import Any

from registry.catalog import Catalog
from registry.liveness import Presence
from registry.records import Load, PeerId, Service
from router.attempts import Failure, attempts
from router.candidates import Candidate, Excluded, Field, Known, Reason, candidates
from router.dialects import Answer, Dialect
from router.errors import (
    NobodyServes,
    RouterError,
    UnknownModel,
    WorkerBusy,
    WorkerError,
    WorkerFailed,
    WorkerRejected,
)
from router.health import Condition, Health, Sign
from router.meter import Meter, Tally
from router.policies import Policy, in_order
from router.reports import Report, Reports
from router.requests import Request
from router.settings import RouterSettings
from router.silence import Silence
from router.vigil import Vigil
from router.waiting import Waiting
from router.waits import Waits
from router.workers import Worker, Workers

_NAMES_COMPARED = 500
"""Names that are compared with one that nobody serves; comparing takes some 10 µs each, and anybody may ask."""

_CHARACTERS_COMPARED = 64

_NOT_MEANT = frozenset({Reason.PINNED, Reason.HOP})


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


@dataclass(frozen=True, slots=True)
class Explained:
    """Whom a request would be sent to, in this order, and who may not answer it."""

    ordered: tuple[Candidate, ...]
    excluded: tuple[Excluded, ...]


class Router:
    """The router as the rest of the node sees it. Everything it reads is a snapshot taken when it is needed."""

    def __init__(  # noqa: PLR0913 (built in one place, by name)
        self,
        *,
        own: PeerId,
        catalog: Callable[[], Catalog],
        workers: Callable[[], Workers],
        presence: Callable[[PeerId], Presence],
        draining: Callable[[], bool],
        dialects: Mapping[str, Dialect],
        policy: Policy,
        settings: RouterSettings,
        now: Callable[[], float],
        random: Callable[[], float],
        observe: Callable[[Outcome], None],
        look: Callable[[PeerId], None],
        silent: Callable[[PeerId], bool],
        spawn: Callable[[Coroutine[Any, Any, None]], object],
    ) -> None:
        self._own = own
        self._catalog = catalog
        self._workers = workers
        self._presence = presence
        self._draining = draining
        self._dialects = dialects
        self._policy = policy
        self._settings = settings
        self._now = now
        self._random = random
        self._observe = observe
        self.in_flight: Counter[tuple[PeerId, Service]] = Counter()
        self.reports = Reports()
        self._meter = Meter()
        self._health = Health(random)
        self._waiting = Waiting(settings, release=self._free)
        self._silence = Silence()
        vigil = Vigil(self._silence, self._alive, now, spawn)
        self._waits = Waits(
            look=lambda c: vigil.look(c) if c.worker else look(c.node),
            silent=lambda c: self.stopped(c) if c.worker else silent(c.node),
            trusted=self._trusted,
        )

    @asynccontextmanager
    async def answer(self, request: Request) -> AsyncIterator[Routed]:
        """Enter with an answer whose first byte is there; raise a `RouterError` if nobody gives one.

        Leaving early cancels the request at its worker. Reading `answer.rest` may raise `AnswerBroken`.
        """
        began, tried = self._now(), 0
        left, held = await self._ordered(request)
        tries = attempts(
            left,
            at_most=self._settings.attempts,
            budget=self._settings.total_timeout,
        )
        candidate = next(tries)
        while True:
            tried += 1
            started = self._now()
            answer: Answer | None = None
            error: WorkerError | None = None
            # Whoever waited for a slot holds it already.
            self._count(candidate.key, 0 if held else 1)
            held = False
            self._health.began(candidate.address, started)
            if candidate.worker:
                self._silence.began(candidate.worker.api, started)
            left.remove(candidate)
            others = left if tried < self._settings.attempts else ()
            try:
                asked = (
                    replace(request, waits=False) if others and not candidate.worker else request
                )
                entering = self._dialect(candidate).answer(asked, candidate)
                watched = self._waits.watch(candidate, others, entering, elsewhere=request.own_only)
                async with watched as answer:
                    tally = self._note(candidate, answer, self._now() - started)
                    self._health.show(candidate.address, Sign.BEGUN, self._now())
                    self._policy.answered(request, candidate)
                    yield Routed(answer, candidate, tried, tally)
            except WorkerError as failed:
                error = failed
                error.attempts = tried
                if answer is not None:
                    raise
                failure = Failure(error, self._now() - began)
            else:
                return
            finally:
                if answer is not None and candidate.worker:
                    self._waiting.took(request.model, self._now() - started)
                self._leave(candidate)
                if candidate.worker and answer is None:
                    self._silence.ended(candidate.worker.api, self._now(), first_byte=None)
                self._judge(candidate, answer, error)
                # A caller who left before the first byte has shown nothing about the worker.
                if answer is not None or error is not None:
                    broken = error if answer is None else answer.broken
                    self._observe(Outcome(candidate, broken, self._now() - started))
            candidate = tries.send(failure)

    def explain(self, request: Request) -> Explained:
        """Say whom the request would be sent to now, and why not to others; sends nothing."""
        field = self._field(request)
        ordered = in_order(self._policy, request, field.eligible, self._random)
        return Explained(tuple(ordered), field.excluded)

    def why(
        self, request: Request, candidate: Candidate, among: Sequence[Candidate]
    ) -> tuple[str, Mapping[str, float]]:
        """Say in a few words what speaks for one of these candidates, and by which figures of the policy's own."""
        policy, asked = self._policy, (request, candidate, among)
        return policy.why(*asked), policy.figures(*asked)

    def busy(self) -> dict[Service, Load]:
        """Say how busy the workers of this machine are that have requests, whoever sent them."""
        ours = {service: n for (node, service), n in self.in_flight.items() if node == self._own}
        if not ours:
            return {}
        return self._meter.loads(self._workers(), ours, self._waiting.lengths(), self._now())

    def load_of(self, worker: Worker) -> Load:
        """Say how busy one worker of this machine is."""
        service = worker.service
        count = self.in_flight.get((self._own, service), 0)
        queued = self._waiting.lengths().get(service, 0)
        return self._meter.load(service, in_flight=count, queued=queued, slots=worker.capacity)

    def hear(self, node: PeerId, loads: Mapping[Service, Load]) -> None:
        """Take in how busy another node says that its replicas are."""
        now = self._now()
        for service, load in loads.items():
            ours = self.in_flight.get((node, service), 0)
            self.reports.hear(node, service, Report(load, ours, now))

    def condition(self, candidate: Candidate) -> Condition:
        """Describe the circuit of a candidate; a worker that has stopped has none that would say so, see `stopped`."""
        return self._health.condition(candidate.address, self._now())

    def _judge(
        self, candidate: Candidate, answer: Answer | None, error: WorkerError | None
    ) -> None:
        """Take in what the end of an attempt shows about its address."""
        match error if answer is None else answer.broken:
            case None:
                sign = Sign.NOTHING if answer is None else Sign.ANSWERED
            case WorkerBusy() | WorkerRejected():
                sign = Sign.ANSWERED
            case _:
                # Whoever does not serve the model any more fails too, until our catalog knows it.
                sign = Sign.FAILED
        self._health.show(candidate.address, sign, self._now())

    def _note(self, candidate: Candidate, answer: Answer, seconds: float) -> Tally | None:
        """Take in what the beginning of an answer tells about its worker's load."""
        if candidate.worker is None:
            if answer.load is not None:
                self.hear(candidate.node, {candidate.service: answer.load})
            return None
        self._silence.ended(candidate.worker.api, self._now(), first_byte=seconds)
        tally = self._meter.of(candidate.service)
        tally.first = seconds
        return tally

    def _count(self, key: tuple[PeerId, Service], change: int) -> None:
        left = self.in_flight[key] + change
        if left:
            self.in_flight[key] = left
        else:
            del self.in_flight[key]

    def _trusted(self, candidate: Candidate) -> bool:
        if candidate.worker is not None:
            return not self.stopped(candidate)
        return self._presence(candidate.node) is Presence.ALIVE

    def stopped(self, candidate: Candidate) -> bool:
        """Say whether a candidate is a worker of this machine that answers nothing any more."""
        return candidate.worker is not None and self._silence.silent(candidate.worker.api)

    async def _alive(self, worker: Worker) -> bool:
        dialect = self._dialects.get(worker.dialect)
        return dialect is not None and await dialect.alive(worker)

    def _admits(self, candidate: Candidate, now: float) -> bool:
        return self._health.admits(candidate.address, now) and not self.stopped(candidate)

    def _dialect(self, candidate: Candidate) -> Dialect:
        dialect = self._dialects.get(candidate.dialect)
        if dialect is None:
            raise WorkerFailed(f"this node speaks no dialect called {candidate.dialect!r}")
        return dialect

    async def _ordered(self, request: Request) -> tuple[list[Candidate], bool]:
        """Return whom to try, and whether a slot of the first is taken already: it had to be waited for."""
        field = self._field(request)
        if field.eligible:
            ordered = list(in_order(self._policy, request, field.eligible, self._random))
            self._policy.begun(request)
            return ordered, False
        full = [e.candidate for e in field.excluded if e.reason is Reason.FULL]
        if not full:
            raise self._nobody(request, field.excluded)
        service = await self._waiting.turn(request, full)
        worker = self._workers().by_key.get((service.project, service.model, service.cid))
        if worker is None or worker.service != service:
            self._free(service)
            raise NobodyServes(
                f"{request.model!r} was unregistered while this request waited for it"
            )
        return [Candidate(self._own, service, worker)], True

    def _leave(self, candidate: Candidate) -> None:
        if candidate.worker is None:
            self._count(candidate.key, -1)
        else:
            self._free(candidate.service)

    def _free(self, service: Service) -> None:
        """Hand a slot of our own to whoever is next, or give it back."""
        key = self._own, service
        worker = self._workers().by_key.get((service.project, service.model, service.cid))
        # Second attempts may have come on top of what it takes at one time; theirs are no slots to hand on.
        beyond = worker is not None and 0 < worker.capacity < self.in_flight[key]
        if beyond or not self._waiting.hand_over(service):
            self._count(key, -1)

    def _field(self, request: Request) -> Field:
        now = self._now()
        known = Known(
            self.in_flight,
            partial(self.reports.of, now=now),
            partial(self._admits, now=now),
        )
        return candidates(
            request,
            own=self._own,
            catalog=self._catalog(),
            workers=self._workers(),
            presence=self._presence,
            known=known,
            draining=self._draining(),
        )

    def _nobody(self, request: Request, excluded: Sequence[Excluded]) -> RouterError:
        # Whom the caller ruled out, and whom a second hop would reach, do not make a name known.
        reasons = Counter(e.reason for e in excluded if e.reason not in _NOT_MEANT)
        if not reasons:
            return UnknownModel(request.model, () if request.own_only else self._nearest(request))
        why = ", ".join(f"{reason} ({count})" for reason, count in reasons.items())
        return NobodyServes(f"{request.model!r} is known, but nobody serves it now: {why}")

    def _nearest(self, request: Request) -> Sequence[str]:
        asked = request.model[:_CHARACTERS_COMPARED]
        names = dict.fromkeys(chain(self._workers().by_name, self._catalog().offers))
        names.pop(request.model, None)
        alike = (name for name in names if name[:1].lower() == asked[:1].lower())
        return get_close_matches(asked, islice(alike, _NAMES_COMPARED), n=3)
