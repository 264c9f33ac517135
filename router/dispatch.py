"""Dispatch of a request to the first candidate that answers."""

import logging
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from typing import Any

from registry.clock import Clock, RandomSource
from registry.members.liveness import Presence
from registry.records import Load, PeerId, Record, Service, service_type_name
from registry.task_group import BackgroundTasks
from router.answer import Answer
from router.attempt import AnsweredRequest, Attempt, Routed
from router.attempt_runner import AttemptRunner, FirstAttempts
from router.choice import Chooser, ReplicaAsker, RoutingExplanation
from router.dialects import Dialect
from router.errors import (
    NobodyServes,
    RouterError,
    WorkerBusy,
    WorkerDied,
    WorkerError,
)
from router.first_byte_timeout import FirstByteWaits
from router.hedge import Hedger
from router.hold import HeldRequests
from router.ledger import Ledger
from router.openai.prefixes import Prefixes
from router.requests import SERVICES, Kind, Request
from router.select.attempts import (
    Failure,
    Tries,
    count_deaths,
    iterate_candidates,
    iterate_names,
)
from router.select.candidates import Candidate, Reason
from router.select.fitness import serves
from router.select.policy import Policy
from router.select.weights import expectations
from router.settings import RouterSettings
from router.shared_slots import Lender, LentSlots
from router.slot_discovery import SlotDiscovery
from router.slot_wait import LingeringSlots
from router.state.circuit import Condition
from router.state.prefix_index import Read
from router.state.readiness import is_not_ready
from router.state.service_time import ServiceTime
from router.stuck_check import CandidateLiveness, StuckCheck
from router.worker_description import WorkerDescription
from router.workers import Worker
from router.world import World

log = logging.getLogger("modelvine.router")

_GONE = frozenset({Presence.LOST, Presence.LEFT})

GREETED = 5.0
"""Seconds for which an answer is sufficient proof that a worker lives."""

Failed = tuple[Attempt, Failure]  # the attempt, and how it failed


class Router:
    """The router as the rest of the node sees it. Everything it reads is a snapshot taken when it is needed."""

    def __init__(  # noqa: PLR0913 (built in one place)
        self,
        world: World,
        dialects: Mapping[str, Dialect],
        policy: Policy,
        settings: RouterSettings,
        clock: Clock,
        *,
        random: RandomSource,
        tasks: BackgroundTasks,
        lender: Lender | None = None,
        lingering: LingeringSlots | None = None,
        replica_asker: ReplicaAsker | None = None,
    ) -> None:
        """`tasks` runs background tasks. `lender` gives out slots that another process manages."""
        self._world = world
        self.dialects = dialects
        self._policy = policy
        self._lingering = lingering
        self._settings = settings
        self._now = clock
        self._ledger = Ledger(
            world, settings, now=clock, random=random, lender=lender, lingering=lingering
        )
        self.lent_slots = LentSlots(self._ledger, own=world.own)
        self._chooser = Chooser(
            self._ledger, world=world, policy=policy, random=random, replica_asker=replica_asker
        )
        self._stuck_check = StuckCheck(self._ledger.stuck, dialects, clock, tasks)
        self._runner = AttemptRunner(
            self._ledger,
            clock,
            world=world,
            dialects=dialects,
            waits=FirstByteWaits(CandidateLiveness(self._stuck_check, world)),
            discovery=SlotDiscovery(dialects, self._ledger.limits, clock, tasks),
        )
        # Borrowed slots are not spent on answers that may be thrown away.
        hedges = settings.hedge and not self._ledger.borrowed_slots
        self._hedger = Hedger(self._runner) if hedges else None
        self._first_attempts = FirstAttempts(self._runner, self._chooser, policy, settings)
        self._held_requests = HeldRequests(
            settings, self._ledger.events, clock, world, self._chooser
        )
        self.exclusions = self._chooser.exclusions
        self.in_flight = self._ledger.in_flight
        self.reports = self._ledger.reports
        self.events = self._ledger.events

    def answer(
        self, request: Request, first: Attempt | None = None
    ) -> AbstractAsyncContextManager[Routed]:
        """Return a context manager that enters when the first byte of an answer is there, or raises a `RouterError`.

        `first` is what `start` returned, if anything. Exiting early cancels the request at its worker. Reading `answer.rest` may
        raise `AnswerBroken`.
        """
        return AnsweredRequest(self, request, first)

    def start(self, request: Request) -> Attempt | None:
        """Choose a candidate, and send the request now if that needs no wait: a connection is idle, or can be shared.

        The attempt then has a `reply`. It is booked: pass it to `answer`, or end it. Return `None` if the choice takes time
        or finds no candidate, and for requests with fallbacks or second attempts.
        """
        if request.fallbacks or self._hedger:
            return None
        return self._first_attempts.start(request)

    def answer_if_complete(self, first: Attempt) -> Answer | None:
        """Return the answer to what `start` sent, if it has come in one piece and only needs to be passed on."""
        return self._first_attempts.answer_if_complete(first)

    def find_nodes(self, text: str) -> tuple[Record, ...]:
        """Return the nodes that an id, its beginning or a name may mean; lost and left ones only if there are no others."""
        records = self._world.catalog.find_records(text)
        present = tuple(r for r in records if self._world.presence_of(r.node) not in _GONE)
        return present or records

    def explain(self, request: Request) -> RoutingExplanation:
        """Return where the request would be sent now, and why not to other replicas; sends nothing."""
        return self._chooser.explain(request)

    def explain_candidate(
        self, request: Request, candidate: Candidate, candidates: Sequence[Candidate]
    ) -> tuple[str, Mapping[str, float]]:
        """Describe briefly what speaks for one of these candidates, and return the figures behind it."""
        policy, arguments = self._policy, (request, candidate, candidates)
        return policy.why(*arguments), {**expectations(*arguments), **policy.figures(*arguments)}

    def busy_loads(self) -> dict[Service, Load]:
        """Return the load of this machine's workers that have requests, from any node."""
        return self._ledger.busy_loads()

    def load_of(self, worker: Worker) -> Load:
        """Return the load of one worker of this machine."""
        return self._ledger.load_of(worker)

    def service_time(self, worker: Worker, kind: Kind) -> ServiceTime | None:
        """Return how long answers of one worker of this machine take, `None` until it has answered such a request."""
        return self._ledger.times.own_service_time(worker.service, kind)

    def worker_of(self, project: str, model: str, cid: str, kind: Kind) -> Worker | None:
        """Return the worker of this machine that answers this kind of request for a replica, if any."""
        workers = self._ledger.workers().by_name.get(model, ())
        matching = (w for w in workers if (w.service.project, w.service.cid) == (project, cid))
        return next((w for w in matching if serves(w.service, kind)), None)

    def prefix_read_by(self, worker: Worker, prefixes: Prefixes) -> Read | None:
        """Return how much of a conversation a worker of this machine has read, `None` if nothing."""
        read, _ = self._ledger.times.prefix_index.find_readers(prefixes, self._now())
        return read.get((self._world.own, worker.service))

    def borrowed_slots(self) -> Mapping[Service, int]:
        """Return how many slots of each worker this process has borrowed from another process of its node."""
        return self._ledger.borrowed_slots.held if self._ledger.borrowed_slots else {}

    def record_loads(self, node: PeerId, loads: Mapping[Service, Load]) -> None:
        """Take in the load that another node reports for its replicas."""
        self._ledger.record_loads(node, loads)

    def forget(self, node: PeerId) -> None:
        """Forget what a node reported, and the slow start of its replicas: it is lost, or has left."""
        self._ledger.forget(node)

    def allowance(self, candidate: Candidate) -> float:
        """Return how many of this node's requests a candidate may have at one time during slow start."""
        return self._ledger.allowance(candidate)

    @property
    def attempts_in_flight(self) -> int:
        """Number of attempts in flight that a caller still waits for."""
        return self.in_flight.total() - (self._lingering.kept_count if self._lingering else 0)

    @property
    def held_count(self) -> int:
        """Number of requests that wait for a worker to be ready."""
        return self._held_requests.held_count

    def has_learnt_limit(self, service: Service) -> bool:
        """Return whether a worker of this machine has a bound that was learnt, not registered."""
        worker = self._ledger.workers().by_key.get(service.key)
        has_limit = worker is not None and worker.capacity > 0
        return worker is not None and has_limit and self._ledger.should_learn_limit(worker)

    def condition(self, candidate: Candidate) -> Condition:
        """Describe the circuit of a candidate; it does not show that a worker has stopped, see `is_stopped`."""
        return self._ledger.condition(candidate)

    def is_stopped(self, candidate: Candidate) -> bool:
        """Return whether a candidate is a worker of this machine that no longer answers anything."""
        return self._ledger.is_stopped(candidate)

    def health_of(self, worker: Worker) -> str:
        """Describe the health of a worker of this machine: `ok`, or what is wrong."""
        return self._ledger.health_of(worker)

    def services(self, kind: Kind) -> list[tuple[PeerId, Service]]:
        """Return the replicas that offer a kind of service, this machine's first, including those that are absent now."""
        name, own = service_type_name(SERVICES[kind]), self._world.own
        offers = self._world.catalog.offers.get(name, ())
        remote = [(o.node, o.service) for o in offers if o.node != own]
        return [*((own, w.service) for w in self._ledger.workers().by_name.get(name, ())), *remote]

    async def check_alive(self, worker: Worker) -> bool:
        """Return whether a worker of this machine answers: it did so recently, is at work on a request, or answers a probe."""
        health, by_key = self._ledger.health_table, self._ledger.workers().by_key
        busy = (by_key.get(s.key) for n, s in self.in_flight if n == self._world.own)
        at_work = any(w is not None and w.api == worker.api for w in busy)
        if at_work or health.answered_recently(worker.api, self._now(), GREETED):
            return True
        answers = await self._stuck_check.alive(worker)
        health.record_probe(worker.api, self._now(), answers=answers)
        return answers

    async def describe(self, worker: Worker) -> WorkerDescription | None:
        """Ask a worker of this machine to describe itself; return `None` if it does not do so now; raise `WorkerFailed`."""
        description = await self.dialects[worker.dialect].describe(worker)
        if description is not None and description != WorkerDescription():
            self._ledger.health_table.record_probe(worker.api, self._now(), answers=True)
        return description

    async def begin(self, request: Request, first: Attempt | None = None) -> tuple[Attempt, Routed]:
        """Return the first attempt that is answered, entered; the caller has to exit it.

        `first` is the first attempt, if `start` has made it.
        """
        began = self._now() if first is None else first.began
        if first is None:
            self._ledger.count_request(began)
            entered = await self._attempt_or_hold(request, began)
        else:
            try:
                entered = first, await first.__aenter__()
            except WorkerError as error:
                failed = first, Failure(error, self._now() - began)
                entered = await self._attempt_or_hold(request, began, failed)
        now = self._now()
        self._held_requests.readiness.record_ready(entered[0].request.model, now)
        if request.aim:
            self.events["aims_met"] += now - began <= request.aim
            self.events["aims_missed"] += now - began > request.aim
        return entered

    async def _attempt_or_hold(
        self, request: Request, began: float, failed: Failed | None = None
    ) -> tuple[Attempt, Routed]:
        """Try one candidate after the other, starting after the first if that `failed`; if none is ready, wait until one is."""
        try:
            return await self._try_names(request, failed)
        except (NobodyServes, WorkerError) as error:
            if not is_not_ready(error):
                raise
            if not request.holds:
                error.hopeful = self._held_requests.may_be_ready_soon(request, error)
                raise
            return await self._held_requests.until_ready(request, error, began, self._try_names)

    def _try_names(
        self, request: Request, failed: Failed | None = None
    ) -> Coroutine[Any, Any, tuple[Attempt, Routed]]:
        if request.fallbacks:
            return self._try_fallbacks(request)
        return self._try_name(request, 0, failed)

    async def _try_fallbacks(self, request: Request) -> tuple[Attempt, Routed]:
        names, attempts, deaths = iterate_names(request), 0, request.deaths
        current = next(names)
        while True:
            try:
                return await self._try_name(current, attempts)
            except RouterError as error:
                last_error = error
            # An error without attempts of its own takes over the counts so far.
            attempts = last_error.attempts = last_error.attempts or attempts
            deaths = last_error.deaths = last_error.deaths or deaths
            current = replace(names.send(last_error), deaths=deaths)
            if not self._may_retry(None, last_error):
                raise last_error

    async def _try_name(
        self, request: Request, attempts_before: int, failed: Failed | None = None
    ) -> tuple[Attempt, Routed]:
        """Try the candidates of one name, after `attempts_before`; if all fail, wait for a slot of one that is only full."""
        first, failure = failed or (None, None)
        died: set[tuple[PeerId, Service]] = set()
        try:
            if first is None:
                choice = await self._chooser.choose(request)
            else:
                choice = [first.candidate, *first.others], False
            return await self._try_candidates(request, choice, attempts_before, died, failure)
        except WorkerError as error:
            candidates = self._chooser.find_candidates(request)
            full = [c for c in self._chooser.full_candidates(candidates) if c.key not in died]
            if full and error.elsewhere and not (request.is_once_only and error.sent):
                current = replace(request, deaths=error.deaths)
                choice = await self._chooser.wait_for_slot(current, full)
                return await self._try_candidates(current, choice, error.attempts, died)
            if isinstance(error, WorkerBusy):
                pauses = (e.seconds for e in candidates.excluded if e.reason is Reason.PAUSED)
                error.retry_after = min((error.retry_after, *pauses))
            raise

    async def _try_candidates(
        self,
        request: Request,
        choice: tuple[list[Candidate], bool],
        attempts_before: int,
        died: set[tuple[PeerId, Service]],
        failure: Failure | None = None,
    ) -> tuple[Attempt, Routed]:
        """Try candidates in order, after the first if that had a `failure`; add to `died` those that die before they answer."""
        began = self._now() - (failure.elapsed if failure else 0.0)
        (candidate, *remaining), holds_slot = choice
        attempts = 1
        tries: Tries | None = None
        while True:
            if failure is not None:
                request = count_deaths(request, failure.error)
                if isinstance(failure.error, WorkerDied):
                    died.add(candidate.key)
                tries = tries or self._start_tries(
                    [candidate, *remaining], once=request.is_once_only
                )
                candidate, attempts, holds_slot = tries.send(failure), attempts + 1, False
                remaining.remove(candidate)
            try:
                if self._ledger.borrowed_slots and not holds_slot:
                    holds_slot = await self._ledger.borrowed_slots.take_slot(request, candidate)
                elif attempts > 1 and self._ledger.is_full(candidate):
                    # It had room when it was chosen; now this request has to wait its turn like the others.
                    raise WorkerBusy("all slots of this worker are in use", retry_after=1.0)
                others = remaining if attempts < self._settings.attempts else ()
                attempt = Attempt(
                    self._runner,
                    request,
                    candidate,
                    number=attempts_before + attempts,
                    others=tuple(others),
                    holds_slot=holds_slot,
                )
                if self._hedger is not None:
                    return await self._hedger.enter(attempt)
                return attempt, await attempt.__aenter__()
            except WorkerError as error:
                failure = Failure(error, self._now() - began)

    def _start_tries(self, ordered: Sequence[Candidate], *, once: bool) -> Tries:
        """Return the generator of the candidates to try after the first of these, which is being tried."""
        settings = self._settings
        tries = iterate_candidates(
            ordered,
            at_most=settings.attempts,
            within=settings.total_timeout,
            afford=self._may_retry,
            once=once,
        )
        next(tries)
        return tries

    def _may_retry(self, candidate: Candidate | None, error: RouterError) -> bool:
        affordable = self._ledger.try_charge_retry(candidate, error)
        if not affordable:
            log.warning("a failure is not retried, because router.retry_share is spent: %s", error)
        return affordable
