"""Ledger of replicas: requests in flight at each, its load and its health.

Attempts write into it, the choice of whom to ask reads it. Slots of this machine's workers are taken and given back here.

`EVENTS` names what is counted; `/metrics` shows all of them, also those that have not happened yet.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from registry.clock import Chance, Clock
from registry.records import Load, PeerId, Service
from registry.values import changed
from router.answer import Answer
from router.answer_times import AnswerTimes, ReadBefore
from router.errors import RouterError, WorkerBusy, WorkerError, WorkerRejected, WorkerUnable
from router.openai.prefixes import NONE
from router.requests import Request
from router.select.attempts import Budget
from router.select.candidates import Candidate, OfferedReplica
from router.settings import RouterSettings
from router.slot_lending import Lender, Lent
from router.slot_wait import Lingering, SlotWaits
from router.state.circuit import TRIP, Condition, Health, RetryAfter, Sign
from router.state.concurrency import BoundedWorkers, Limits
from router.state.in_flight import InFlight, Occupancy
from router.state.local_load import Meter, Tally
from router.state.prefix_index import ReplicaAnswer
from router.state.readiness import Vitals
from router.state.remote_load import Report, Reports
from router.state.service_time import NOTHING_BEFORE
from router.state.slow_start import Warming
from router.state.stuck import Silence
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
"""Seconds after an answer to somebody who waits for it, in which one slot of its worker is kept free of background requests."""

LONGEST_SLOT_WAIT = 5.0
"""Seconds: who wants to be left alone for longer has no lack of slots but a limit of another kind."""


class Ledger:
    """The books of one router. What it says is as of the moment in which it is asked."""

    def __init__(
        self,
        world: World,
        settings: RouterSettings,
        *,
        now: Clock,
        random: Chance,
        lender: Lender | None = None,
        lingering: Lingering | None = None,
    ) -> None:
        """`lender` gives out the slots of this machine's workers, where that is another process's work.

        `lingering` knows whose slots stay taken after their requests are over.
        """
        self._own = world.own
        self._lingering = lingering
        self._lingers = {} if lingering is None else lingering.noted
        self.limits = Limits()
        self.workers = BoundedWorkers(world, self.limits)
        self._now = now
        self.in_flight = InFlight()
        self.occupancies = self.in_flight.occupancies
        self.reports = Reports()
        self.times = AnswerTimes()
        self.silence = Silence()
        self.lent = None if lender is None else Lent(lender, self)
        self.waiting = self.lent or SlotWaits(settings, self)
        self.events: Counter[str] = Counter(dict.fromkeys(EVENTS, 0))
        self._budget = Budget(settings.retry_share)
        self._meter = Meter()
        self.health = Health(random)
        self.retry_after = RetryAfter()
        self.warming = Warming()
        self.vitals = Vitals()

    def rows(self, request: Request, replicas: Iterable[OfferedReplica]) -> list[Candidate]:
        """Return all that is known of replicas now, to the choice of whom to ask."""
        now, kind, rows = self._now(), request.kind, []
        occupancies, failing = self.occupancies, self.health.failing
        # Most requests are no conversation that anybody could have read.
        read = None if request.prefixes is NONE else ReadBefore(self.times, request, now)
        for replica in replicas:
            key, worker, silent = replica.key, replica.worker, False
            if worker is None:
                node, service = key
                report = self.reports.of(node, service, now)
                time = self.times.told.of(node, (service, kind))
            else:
                report, time = None, self.times.of_own(worker.service, kind)
                silent = self.silence.silent(worker.api)
            before = NOTHING_BEFORE if read is None else read.of(key)
            there = occupancies.get(key)
            row = replica.seen(there.count if there else 0, report, time, before)
            # Nearly all are well and have said nothing.
            if silent or replica.address in failing or self.retry_after.told_by:
                row = self._doubted(row, now, silent=silent)
            rows.append(row)
        return rows

    def _doubted(self, row: Candidate, now: float, *, silent: bool) -> Candidate:
        told = self.retry_after.left(row.address, now)
        ejected = silent or not self.health.admits(row.address, now)
        return changed(row, told=told, ejected=ejected) if told or ejected else row

    def busy(self) -> dict[Service, Load]:
        """Say how busy the workers of this machine are that have requests, whoever sent them."""
        ours = {service: n for (node, service), n in self.in_flight.items() if node == self._own}
        if not ours:
            return {}
        return self._meter.loads(self.workers(), ours, self.waiting.lengths(), self._now())

    def load_of(self, worker: Worker) -> Load:
        """Say how busy one worker of this machine is."""
        service = worker.service
        count = self.in_flight[self._own, service]
        queued = self.waiting.lengths().get(service, 0) if self.waiting.claims else 0
        return self._meter.load(service, in_flight=count, queued=queued, slots=worker.capacity)

    def hear(self, node: PeerId, loads: Mapping[Service, Load]) -> None:
        """Take in how busy another node says that its replicas are."""
        now = self._now()
        for service, load in loads.items():
            ours = self.in_flight[node, service]
            self.reports.hear(node, service, Report(load, ours, now))

    def read_by(self, request: Request) -> Iterable[tuple[PeerId, Service]]:
        """Return who is known to have read of a request's conversation."""
        return self.times.read_by(request, self._now())

    def learn_of(self, request: Request, candidate: Candidate, told: ReplicaAnswer) -> None:
        """Take in what the node of a candidate says of it, and of what it has read of a conversation."""
        self.times.hear(request, candidate, told, self._now())
        self.events["cache_found"] += told.read is not None
        if told.load is not None:
            self.hear(candidate.node, {candidate.service: told.load})

    def forget(self, node: PeerId) -> None:
        """Forget what a node said, and how far it was trusted with load: it is lost, or has left."""
        self.reports.forget(node)
        self.times.told.forget(node)
        self.warming.forget(node)

    def allowance(self, candidate: Candidate) -> float:
        """Return how many of our requests a candidate may have at one time, while it is new here."""
        return self.warming.allowance(candidate.node, candidate.service, self._now())

    def condition(self, candidate: Candidate) -> Condition:
        """Describe the circuit of a candidate; a worker that has stopped has none that would say so, see `stopped`."""
        return self.health.condition(candidate.address, self._now())

    def learns(self, worker: Worker) -> bool:
        """Say whether a bound of a worker is to be learnt: nobody registered one, and all its requests pass here.

        A process that borrows slots sees a part of them only, and what it learnt would bind nobody else.
        """
        return self.lent is None and self.workers.learns(worker)

    def health_of(self, worker: Worker) -> str:
        """Say how a worker of this machine is, for people: `ok`, or what is the matter."""
        candidate, now = Candidate(self._own, worker.service, worker), self._now()
        if self.stopped(candidate):
            return "silent: it has requests, but sends nothing"
        life, failures = self.vitals.life(worker.api, now), self.condition(candidate).failures
        if not life.known:
            return "no requests yet"
        if not life.answers:
            return f"no answer for {life.silent:.0f} s" if life.ever else "never answered"
        return "ok" if failures < TRIP else f"{failures} failures in a row"

    def may_return(self, candidate: Candidate) -> bool:
        """Say whether a candidate that is not there is worth waiting for."""
        now = self._now()
        # A process that borrows slots probes nobody: who never answered it may never have answered anybody.
        if self.lent and candidate.worker and not self.vitals.life(candidate.address, now).ever:
            return False
        return self.vitals.may_return(candidate.address, now)

    def stopped(self, candidate: Candidate) -> bool:
        """Say whether a candidate is a worker of this machine that answers nothing any more."""
        return candidate.worker is not None and self.silence.silent(candidate.worker.api)

    def release(self, service: Service) -> None:
        """Hand a slot of our own to whoever is next, or give it back."""
        occupancy = self.occupancies[self._own, service]
        if not self._hand_over(service, occupancy):
            occupancy.change(-1, self._now())

    def kept_free(self, worker: Worker) -> int:
        """Return how many slots of a worker of ours no background request may take now."""
        asked = self._meter.tallies[worker.service].asked
        return int(worker.capacity > 1 and self._now() - asked < KEPT_FREE)

    def note_asked(self, service: Service) -> None:
        """Note that somebody who waits for an answer asks a worker of ours."""
        self._meter.tallies[service].asked = self._now()

    def is_full(self, candidate: Candidate) -> bool:
        """Say whether a candidate is a worker of this machine that has no slot free now."""
        worker = candidate.worker
        return worker is not None and 0 < worker.capacity <= self.in_flight[candidate.key]

    def count(self, service: Service) -> None:
        """Note that a slot of our own is taken."""
        self.occupancies[self._own, service].change(1, self._now())

    def asked(self) -> None:
        """A request came in."""
        self._budget.began(self._now())

    def afford(self, candidate: Candidate | None, error: RouterError) -> bool:
        """Say whether one more attempt may follow this failure, of this candidate where it is known, and take it as made."""
        # What was never begun costs the workers nothing when it is tried again.
        if not isinstance(error, WorkerError) or not error.sent:
            return True
        place, under_way = "", 0
        if candidate is not None:
            place, under_way = candidate.place, 1 + self._under_way(candidate)
        if self._budget.spend(place, under_way, self._now()):
            return True
        self.events["retries_refused"] += 1
        return False

    def afford_hedge(self) -> bool:
        """Say whether a second worker may be asked while the first is still at it, and take it as done."""
        if not self._budget.spend("", 0, self._now()):
            return False
        self.events["hedged"] += 1
        return True

    def began(self, attempt: "Attempt") -> None:
        """An attempt begins; whoever waited for a slot holds it already."""
        candidate, now = attempt.candidate, attempt.began
        occupancy = attempt.occupancy = self.occupancies[candidate.key]
        occupancy.change(0 if attempt.holds_slot else 1, now)
        attempt.occupied = occupancy.seconds
        if self.health.failing:
            self.health.began(candidate.address, now)
        if occupancy.noted != self.warming.losses:
            self.warming.began(candidate.node, candidate.service, now)
            occupancy.noted = self.warming.losses
        if candidate.worker is not None:
            attempt.asked = self.silence.began(candidate.worker.api, now)

    def begun(self, attempt: "Attempt", answer: Answer, now: float) -> Tally | None:
        """The first byte is there; return what counts the events of a worker of ours."""
        candidate, request = attempt.candidate, attempt.request
        if request.prefixes is not NONE:
            self.times.index.take(candidate.key, request.prefixes, now)
        if self.health.failing:
            self.health.show(candidate.address, Sign.BEGUN, now)
        self.vitals.answered(candidate.address, now)
        worker = candidate.worker
        if worker is None:
            self._heed(attempt, answer, now)
            return None
        seconds = now - attempt.began
        attempt.asked.answered(seconds, now)
        tally = self._meter.tallies[candidate.service]
        tally.first = seconds
        if not request.background:
            tally.asked = now
        if answer.streamed:
            self.times.began(attempt, worker, now)
        return tally

    def ended(self, attempt: "Attempt", failed: WorkerError | None, now: float) -> None:
        """An attempt is over: it failed, before or after its answer began, was answered, or its caller left."""
        candidate, answer, occupancy = attempt.candidate, attempt.answer, attempt.occupancy
        worker = candidate.worker
        if worker is None:
            occupancy.change(-1, now)
        else:
            if answer is None:
                attempt.asked.left()
            else:
                self.waiting.took(attempt.request.model, now - attempt.began)
                self.times.ended(attempt, worker, answer, now)
            # Where nothing was ever learnt there is no bound that an answer could raise.
            if failed is not None or (answer is not None and self.limits.changes):
                self._learn(worker, occupancy, failed, now)
            claimed = self._lingers or self.waiting.claims
            if not (claimed and self._keeps(candidate.service, occupancy)):
                occupancy.change(-1, now)
        if failed is None and answer is not None and self.warming.newcomers:
            self.warming.answered(candidate.node, candidate.service)
        if failed is not None or self.health.failing:
            self._judge(candidate, answer, failed, now)

    def _heed(self, attempt: "Attempt", answer: Answer, now: float) -> None:
        """Take in what another node says of its worker in the head of an answer."""
        node, service = attempt.candidate.key
        if answer.load is not None:
            self.reports.hear(node, service, Report(answer.load, attempt.occupancy.count, now))
        if answer.service_time is not None:
            self.times.told.hear(node, (service, attempt.request.kind), answer.service_time)

    def _under_way(self, candidate: Candidate) -> int:
        if candidate.worker is not None:
            return self.in_flight[candidate.key]
        return sum(n for (node, _), n in self.in_flight.items() if node == candidate.node)

    def _keeps(self, service: Service, occupancy: Occupancy) -> bool:
        """Say whether the slot of a request that is over stays taken: its worker goes on with it, or somebody waited for it."""
        lingers = self._lingering is not None and self._lingering.keeps(service, self)
        return lingers or self._hand_over(service, occupancy)

    def _hand_over(self, service: Service, occupancy: Occupancy) -> bool:
        """Hand a slot that would be free to whoever is next; return whether there was somebody."""
        worker = self.workers().by_key.get(service.key)
        # Second attempts may have come on top of what it takes at one time; theirs are no slots to hand on.
        beyond, spare = False, True
        if worker is not None and worker.capacity:
            beyond = worker.capacity < occupancy.count
            spare = occupancy.count + self.kept_free(worker) <= worker.capacity
        return self.waiting.hand_over(service, beyond=beyond, background=spare)

    def _learn(
        self, worker: Worker, occupancy: Occupancy, error: WorkerError | None, now: float
    ) -> None:
        """Take in what the end of an attempt shows about how many requests a worker of ours takes at one time."""
        if not self.learns(worker):
            return
        service = worker.service
        match error:
            case WorkerBusy() if error.retry_after <= LONGEST_SLOT_WAIT:
                self.limits.refused(service, occupancy.count, now)
            case None if self.limits.answered(service, occupancy.count, now):
                # One slot more: for whoever is next, if anybody waits.
                if self.waiting.hand_over(service, beyond=False):
                    occupancy.change(1, now)

    def _judge(
        self, candidate: Candidate, answer: Answer | None, failed: WorkerError | None, now: float
    ) -> None:
        """Take in what the end of an attempt shows about its address."""
        if answer is None and failed is not None:
            self.vitals.take(candidate.address, failed, now)
        match failed:
            case None:
                sign = Sign.NOTHING if answer is None else Sign.ANSWERED
            case WorkerBusy(named=True, retry_after=seconds):
                self.retry_after.told(candidate.address, seconds, now)
                sign = Sign.ANSWERED
            case WorkerUnable():
                # It was not even asked, or another node says so of its worker.
                sign = Sign.NOTHING
            case WorkerBusy() | WorkerRejected():
                sign = Sign.ANSWERED
            case _:
                # Whoever does not serve the model any more fails too, until our catalog knows it.
                sign = Sign.FAILED
        self.health.show(candidate.address, sign, now)
        if sign is Sign.FAILED and not self.health.admits(candidate.address, now):
            self.warming.lost(candidate.node, candidate.service)
