"""Ledger of replicas: requests in flight at each, its load and its health.

Attempts write to it, and the choice of candidates reads it. Slots of this machine's workers are taken and given back here.

`EVENTS` names the counted events; `/metrics` shows all of them, including those that have not happened yet.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from registry.clock import Clock, RandomSource, duration
from registry.records import Load, PeerId, Service
from registry.values import replace_fields
from router.answer import Answer
from router.answer_times import AnswerTimes, ReadBefore
from router.errors import RouterError, WorkerBusy, WorkerError, WorkerRejected, WorkerUnable
from router.openai.prefixes import NONE
from router.requests import Request
from router.select.attempts import RetryBudget
from router.select.candidates import Candidate, OfferedReplica
from router.settings import RouterSettings
from router.shared_slots import BorrowedSlots, Lender
from router.slot_wait import LingeringSlots, SlotWaits
from router.state.circuit import TRIP, CircuitBreakers, Condition, RetryAfter, Sign
from router.state.concurrency import BoundedWorkers, Limits
from router.state.in_flight import InFlight, LocalLoads, Occupancy, Tally
from router.state.prefix_index import ReplicaAnswer
from router.state.readiness import HealthTable
from router.state.remote_load import Report, Reports
from router.state.service_time import NOTHING_BEFORE
from router.state.slow_start import SlowStart
from router.state.stuck import StuckWorkers
from router.workers import Worker
from router.world import World

if TYPE_CHECKING:
    from router.attempt import Attempt

EVENTS: Mapping[str, str] = {
    "retries_refused": "failures without a retry, because the retry budget (`router.retry_share`) was spent",
    "hedged": "requests that were also sent to a second worker, because the first was slower than usual (`router.hedge`)",
    "hedges_won": "hedged requests that the second worker answered first",
    "held": "requests that waited for a worker to be ready",
    "held_in_vain": "held requests that reached `router.ready_timeout`",
    "holds_refused": "requests that did not wait for a worker to be ready, because too many waited",
    "replica_questions": "queries to other nodes about a replica's load and how much of a conversation it has read",
    "cache_found": "such queries that found a part of the conversation",
    "aims_met": "responses whose first byte met the caller's target (`x-modelvine-ttft-ms`)",
    "aims_missed": "responses whose first byte missed it",
}
"""Every event with what it counts."""


KEPT_FREE = 10.0
"""Seconds after a foreground request for which one slot of its worker is kept free of background requests."""

LONGEST_SLOT_WAIT = 5.0
"""Longest requested pause in seconds that shows a lack of slots; a longer one comes from a limit of another kind."""


class Ledger:
    """State of all replicas at one router. What it returns is as of the moment of the call."""

    def __init__(
        self,
        world: World,
        settings: RouterSettings,
        *,
        now: Clock,
        random: RandomSource,
        lender: Lender | None = None,
        lingering: LingeringSlots | None = None,
    ) -> None:
        """`lender` gives out the slots of this machine's workers, if another process manages them.

        `lingering` knows which slots stay taken after their requests are over.
        """
        self._own = world.own
        self._lingering = lingering
        self._cancelled_requests = {} if lingering is None else lingering.noted
        self.limits = Limits()
        self.workers = BoundedWorkers(world, self.limits)
        self._now = now
        self.in_flight = InFlight()
        self.occupancies = self.in_flight.occupancies
        self.reports = Reports()
        self.times = AnswerTimes()
        self.stuck = StuckWorkers()
        self.borrowed_slots = None if lender is None else BorrowedSlots(lender, self)
        self.waiting = self.borrowed_slots or SlotWaits(settings, self)
        self.events: Counter[str] = Counter(dict.fromkeys(EVENTS, 0))
        self._budget = RetryBudget(settings.retry_share)
        self._local_loads = LocalLoads()
        self.circuits = CircuitBreakers(random)
        self.retry_after = RetryAfter()
        self.slow_start = SlowStart()
        self.health_table = HealthTable()

    def candidates(self, request: Request, replicas: Iterable[OfferedReplica]) -> list[Candidate]:
        """Return replicas as candidates, with all that is known of them now."""
        now, kind, rows = self._now(), request.kind, []
        occupancies, failing = self.occupancies, self.circuits.failing
        # Most requests are no conversation that a replica could have read.
        read = None if request.prefixes is NONE else ReadBefore(self.times, request, now)
        for replica in replicas:
            key, worker, silent = replica.key, replica.worker, False
            if worker is None:
                node, service = key
                report = self.reports.newest(node, service, now)
                time = self.times.reported_times.newest(node, (service, kind))
                if (observed := self.times.observed.get((node, service, kind))) is not None:
                    report, time = observed.choose_figures(report, time)
            else:
                report, time = None, self.times.own_service_time(worker.service, kind)
                silent = self.stuck.is_silent(worker.api)
            before = NOTHING_BEFORE if read is None else read.cached_prefix(key)
            occupancy = occupancies.get(key)
            row = replica.as_candidate(occupancy.count if occupancy else 0, report, time, before)
            # Nearly all are healthy and have requested no pause.
            if silent or replica.address in failing or self.retry_after.paused_until:
                row = self._with_health(row, now, silent=silent)
            rows.append(row)
        return rows

    def _with_health(self, row: Candidate, now: float, *, silent: bool) -> Candidate:
        pause = self.retry_after.seconds_left(row.address, now)
        ejected = silent or not self.circuits.admits(row.address, now)
        return replace_fields(row, pause=pause, ejected=ejected) if pause or ejected else row

    def busy_loads(self) -> dict[Service, Load]:
        """Return the load of this machine's workers that have requests, from any node."""
        counts = {service: n for (node, service), n in self.in_flight.items() if node == self._own}
        if not counts:
            return {}
        return self._local_loads.loads(
            self.workers(), counts, self.waiting.queue_lengths(), self._now()
        )

    def load_of(self, worker: Worker) -> Load:
        """Return the load of one worker of this machine."""
        service = worker.service
        count = self.in_flight[self._own, service]
        queued = self.waiting.queue_lengths().get(service, 0) if self.waiting.claims else 0
        return self._local_loads.load(
            service, in_flight=count, queued=queued, slots=worker.capacity
        )

    def record_loads(self, node: PeerId, loads: Mapping[Service, Load]) -> None:
        """Take in the load that another node reports for its replicas."""
        now = self._now()
        for service, load in loads.items():
            own_requests = self.in_flight[node, service]
            self.reports.record(node, service, Report(load, own_requests, now))

    def replicas_that_read(self, request: Request) -> Iterable[tuple[PeerId, Service]]:
        """Return the replicas known to have read part of a request's conversation."""
        return self.times.replicas_that_read(request, self._now())

    def record_replica_answer(
        self, request: Request, candidate: Candidate, answer: ReplicaAnswer
    ) -> None:
        """Take in what a candidate's node reports: its load, its service time, and how much of a conversation it has read."""
        self.times.record_replica_answer(request, candidate, answer, self._now())
        self.events["cache_found"] += answer.read is not None
        if answer.load is not None:
            self.record_loads(candidate.node, {candidate.service: answer.load})

    def forget(self, node: PeerId) -> None:
        """Forget what a node reported, and the slow start of its replicas: it is lost, or has left."""
        self.reports.forget(node)
        self.times.reported_times.forget(node)
        self.slow_start.forget(node)

    def allowance(self, candidate: Candidate) -> float:
        """Return how many of this node's requests a candidate may have at one time during slow start."""
        return self.slow_start.allowance(candidate.node, candidate.service, self._now())

    def condition(self, candidate: Candidate) -> Condition:
        """Describe the circuit of a candidate; it does not show that a worker has stopped, see `is_stopped`."""
        return self.circuits.condition(candidate.address, self._now())

    def should_learn_limit(self, worker: Worker) -> bool:
        """Return whether a worker's bound is to be learnt: none was registered, and all its requests pass through here.

        A process that borrows slots sees only part of them, and what it learnt would bind no other process.
        """
        return self.borrowed_slots is None and self.workers.should_learn_limit(worker)

    def health_of(self, worker: Worker) -> str:
        """Describe the health of a worker of this machine for people: `ok`, or what is wrong."""
        candidate, now = Candidate(self._own, worker.service, worker), self._now()
        if self.is_stopped(candidate):
            return "silent: it has requests, but sends nothing"
        health = self.health_table.health_of(worker.api, now)
        failures = self.condition(candidate).failures
        if not health.known:
            return "no requests yet"
        if not health.answers:
            return f"no answer for {duration(health.silent)}" if health.ever else "never answered"
        return "ok" if failures < TRIP else f"{failures} failures in a row"

    def may_return(self, candidate: Candidate) -> bool:
        """Return whether an absent candidate is worth waiting for."""
        now = self._now()
        # A process that borrows slots does not probe: a worker that never answered it may never have answered at all.
        if (
            self.borrowed_slots
            and candidate.worker
            and not self.health_table.health_of(candidate.address, now).ever
        ):
            return False
        return self.health_table.may_return(candidate.address, now)

    def is_stopped(self, candidate: Candidate) -> bool:
        """Return whether a candidate is a worker of this machine that no longer answers anything."""
        return candidate.worker is not None and self.stuck.is_silent(candidate.worker.api)

    def release(self, service: Service) -> None:
        """Hand a slot of a local worker to the next waiting request, or free it."""
        occupancy = self.occupancies[self._own, service]
        if not self._hand_over(service, occupancy):
            occupancy.change(-1, self._now())

    def reserved_slots(self, worker: Worker) -> int:
        """Return how many slots of a local worker no background request may take now."""
        last_foreground_at = self._local_loads.tallies[worker.service].last_foreground_at
        return int(worker.capacity > 1 and self._now() - last_foreground_at < KEPT_FREE)

    def record_foreground_request(self, service: Service) -> None:
        """Note that a foreground request goes to a local worker."""
        self._local_loads.tallies[service].last_foreground_at = self._now()

    def is_full(self, candidate: Candidate) -> bool:
        """Return whether a candidate is a worker of this machine without a free slot."""
        worker = candidate.worker
        return worker is not None and 0 < worker.capacity <= self.in_flight[candidate.key]

    def count_slot(self, service: Service) -> None:
        """Note that a slot of a local worker is taken."""
        self.occupancies[self._own, service].change(1, self._now())

    def count_request(self, now: float) -> None:
        """Count a new request in the retry budget."""
        self._budget.count_request(now)

    def try_charge_retry(self, candidate: Candidate | None, error: RouterError) -> bool:
        """Return whether another attempt may follow this failure, of `candidate` if known; if so, charge the retry budget."""
        # A request that no worker has begun costs the workers nothing when it is retried.
        if not isinstance(error, WorkerError) or not error.sent:
            return True
        place, under_way = "", 0
        if candidate is not None:
            place, under_way = candidate.place, 1 + self._count_in_flight(candidate)
        if self._budget.try_spend(place, under_way, self._now()):
            return True
        self.events["retries_refused"] += 1
        return False

    def try_charge_hedge(self) -> bool:
        """Return whether a second worker may be asked while the first is at work; if so, charge the retry budget."""
        if not self._budget.try_spend("", 0, self._now()):
            return False
        self.events["hedged"] += 1
        return True

    def record_start(self, attempt: "Attempt") -> None:
        """Begin an attempt. A request that waited for a slot already holds it."""
        candidate, now = attempt.candidate, attempt.began
        occupancy = attempt.occupancy = self.occupancies[candidate.key]
        occupancy.change(0 if attempt.holds_slot else 1, now)
        attempt.occupied_before = occupancy.seconds
        if self.circuits.failing:
            self.circuits.record_request(candidate.address, now)
        if occupancy.noted != self.slow_start.losses:
            self.slow_start.record_request(candidate.node, candidate.service, now)
            occupancy.noted = self.slow_start.losses
        if candidate.worker is not None:
            attempt.worker_activity = self.stuck.record_request(candidate.worker.api, now)

    def record_first_byte(self, attempt: "Attempt", answer: Answer, now: float) -> Tally | None:
        """Record the first byte of an attempt; return the tally of a local worker's events, `None` for another node."""
        candidate, request = attempt.candidate, attempt.request
        if request.prefixes is not NONE:
            self.times.prefix_index.record_read(candidate.key, request.prefixes, now)
        if self.circuits.failing:
            self.circuits.record_sign(candidate.address, Sign.BEGUN, now)
        self.health_table.record_answer(candidate.address, now)
        worker = candidate.worker
        if worker is None:
            self._record_report(attempt, answer, now)
            return None
        seconds = now - attempt.began
        attempt.worker_activity.record_first_byte(seconds, now)
        tally = self._local_loads.tallies[candidate.service]
        tally.first_byte_seconds = seconds
        if not request.background:
            tally.last_foreground_at = now
        if answer.streamed:
            self.times.record_first_byte(attempt, worker, now)
        return tally

    def record_end(self, attempt: "Attempt", error: WorkerError | None, now: float) -> None:
        """Record the end of an attempt: it failed, before or after its answer began, was answered, or its caller left."""
        candidate, answer, occupancy = attempt.candidate, attempt.answer, attempt.occupancy
        worker = candidate.worker
        if worker is None:
            if answer is not None:
                report = self.reports.newest(*candidate.key, now)
                self.times.record_peer_answer(attempt, answer, report, now)
            occupancy.change(-1, now)
        else:
            if answer is None:
                attempt.worker_activity.record_no_answer()
            else:
                self.waiting.record_slot_time(attempt.request.model, now - attempt.began)
                self.times.record_answer(attempt, worker, answer, now)
            # If no bound was ever learnt, there is none that an answer could raise.
            if error is not None or (answer is not None and self.limits.changes):
                self._learn_limit(worker, occupancy, error, now)
            claimed = self._cancelled_requests or self.waiting.claims
            if not (claimed and self._keeps_slot(candidate.service, occupancy)):
                occupancy.change(-1, now)
        if error is None and answer is not None and self.slow_start.newcomers:
            self.slow_start.record_answer(candidate.node, candidate.service)
        if error is not None or self.circuits.failing:
            self._record_health(candidate, answer, error, now)

    def _record_report(self, attempt: "Attempt", answer: Answer, now: float) -> None:
        """Take in what another node reports of its worker in the headers of an answer."""
        node, service = attempt.candidate.key
        if answer.load is not None:
            self.reports.record(node, service, Report(answer.load, attempt.occupancy.count, now))
        if answer.service_time is not None:
            self.times.reported_times.record(
                node, (service, attempt.request.kind), answer.service_time
            )

    def _count_in_flight(self, candidate: Candidate) -> int:
        if candidate.worker is not None:
            return self.in_flight[candidate.key]
        return sum(n for (node, _), n in self.in_flight.items() if node == candidate.node)

    def _keeps_slot(self, service: Service, occupancy: Occupancy) -> bool:
        """Return whether the slot of an ended request stays taken: its worker works on, or another request waited for it."""
        lingers = self._lingering is not None and self._lingering.keep_slot(service, self)
        return lingers or self._hand_over(service, occupancy)

    def _hand_over(self, service: Service, occupancy: Occupancy) -> bool:
        """Hand a slot that would come free to the next waiting request; return whether there was one."""
        worker = self.workers().by_key.get(service.key)
        # Second attempts may exceed the worker's slots; they leave none to hand on.
        beyond, spare = False, True
        if worker is not None and worker.capacity:
            beyond = worker.capacity < occupancy.count
            spare = occupancy.count + self.reserved_slots(worker) <= worker.capacity
        return self.waiting.hand_over(service, beyond=beyond, background=spare)

    def _learn_limit(
        self, worker: Worker, occupancy: Occupancy, error: WorkerError | None, now: float
    ) -> None:
        """Take in what the end of an attempt shows about how many requests a local worker takes at one time."""
        if not self.should_learn_limit(worker):
            return
        service = worker.service
        match error:
            case WorkerBusy() if error.retry_after <= LONGEST_SLOT_WAIT:
                self.limits.record_refusal(service, occupancy.count, now)
            case None if self.limits.record_answer(service, occupancy.count, now):
                # One slot more: for the next waiting request, if any.
                if self.waiting.hand_over(service, beyond=False):
                    occupancy.change(1, now)

    def _record_health(
        self, candidate: Candidate, answer: Answer | None, error: WorkerError | None, now: float
    ) -> None:
        """Take in what the end of an attempt shows about its address."""
        if answer is None and error is not None:
            self.health_table.record_error(candidate.address, error, now)
        match error:
            case None:
                sign = Sign.NOTHING if answer is None else Sign.ANSWERED
            case WorkerBusy(named=True, retry_after=seconds):
                self.retry_after.record(candidate.address, seconds, now)
                sign = Sign.ANSWERED
            case WorkerUnable():
                # The worker was not even asked, or another node reports this of its worker.
                sign = Sign.NOTHING
            case WorkerBusy() | WorkerRejected():
                sign = Sign.ANSWERED
            case _:
                # A peer that no longer serves the model fails too, until our catalog knows it.
                sign = Sign.FAILED
        self.circuits.record_sign(candidate.address, sign, now)
        if sign is Sign.FAILED and not self.circuits.admits(candidate.address, now):
            self.slow_start.forget_replica(candidate.node, candidate.service)
