"""Choice of candidates for a request, in order, with the slot that is already held.

It reads the ledger and asks the policy.
"""

import asyncio
from bisect import bisect
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain, starmap
from typing import Protocol

from registry.bounded import put_newest
from registry.catalog import Catalog, Offer
from registry.clock import RandomSource
from registry.members.liveness import Presence
from registry.records import display_name
from router.errors import NobodyServes, NoCapacity
from router.ledger import Ledger
from router.requests import ANYWHERE, Kind, Request
from router.select.candidates import (
    Candidate,
    CandidateSet,
    Excluded,
    NameOffers,
    OfferedReplica,
    Reason,
    objection,
    objection_to_own,
    sort_replicas,
)
from router.select.fitness import MediaNeeds
from router.select.nobody import no_candidate_error
from router.select.policy import Policy, order_candidates
from router.select.rendezvous import conversation_key, hash_key, hash_replica
from router.select.weights import candidates_to_query, longest_useful_wait
from router.state.concurrency import BoundedWorkers
from router.state.prefix_index import ReplicaAnswer
from router.state.readiness import RESTART
from router.workers import Workers
from router.world import World

SAMPLE_SIZE = 12
"""Size of the sample where a model has many replicas: three draws among this many are as good as among all."""

MANY = 2 * SAMPLE_SIZE
"""Most replicas of a model that are all considered; of more, only a sample is."""

ENOUGH = 3
"""Trusted replicas that a sample must contain; else all replicas are considered."""

MAX_EXCLUSIONS = 1_000
"""Requests whose excluded replicas are remembered."""

MAX_EXCLUDED = 12
"""Excluded replicas that are remembered for each of them."""

MAX_TABLES = 1_024
"""Models with a table of replicas; beyond that, the oldest table is evicted."""

MAX_OFFERS = 65_536
"""Offers of all these models, about 500 bytes each; beyond that, the oldest are evicted. A model with more is kept alone."""


class ReplicaAsker(Protocol):
    """Client that asks other nodes about their replicas."""

    async def ask(self, request: Request, candidate: Candidate) -> ReplicaAnswer | None:
        """Return the answer of a candidate's node, `None` if it does not come in time."""


class ReplicaTables:
    """Tables of other nodes' replicas by model, to draw from. A table is rebuilt when its model's replicas have changed."""

    def __init__(self) -> None:
        self._tables: dict[str, tuple[Sequence[Offer], list[Offer], list[int]]] = {}

    def draw(
        self, model: str, offers: Sequence[Offer], random: RandomSource, key: bytes = b""
    ) -> list[Offer]:
        """Draw `SAMPLE_SIZE` distinct offers of at least twice as many.

        With a key, half of them are its successors on a hash ring, the same on every node.
        """
        cached, table, marks = self._tables.get(model, (None, [], []))
        if cached is not offers:
            table = sorted(offers, key=lambda o: hash_replica(o.node, o.service))
            marks = [hash_replica(offer.node, offer.service) for offer in table]
            put_newest(self._tables, model, (offers, table, marks), limit=MAX_TABLES)
        drawn: set[int] = set()
        if key:
            first = bisect(marks, hash_key(key))
            drawn.update((first + n) % len(table) for n in range(SAMPLE_SIZE // 2))
        while len(drawn) < SAMPLE_SIZE:
            drawn.add(int(random() * len(table)))
        return [table[index] for index in drawn]


class NameOffersCache:
    """Cache of the replicas that offer a name to a kind of request, rebuilt when the name's workers or offers change."""

    def __init__(
        self, world: World, bounded_workers: BoundedWorkers, *, max_offers: int = MAX_OFFERS
    ) -> None:
        """`bounded_workers` returns this machine's workers with their known slots."""
        self._world = world
        self._own = world.own
        self._bounded_workers = bounded_workers
        self._max_offers = max_offers
        self._catalog: Catalog | None = None
        self._workers: Workers | None = None
        self._cached: dict[tuple[str, Kind], NameOffers] = {}
        self._offer_count = 0
        """Number of offers in all of them."""
        self._valid: dict[tuple[str, Kind], NameOffers] = {}
        """Entries that were compared with the current snapshots."""

    def offers_for(self, request: Request) -> NameOffers:
        """Return the replicas that offer the requested name."""
        catalog, workers = self._world.catalog, self._bounded_workers()
        if catalog is not self._catalog or workers is not self._workers:
            self._catalog, self._workers = catalog, workers
            self._valid.clear()
        key = request.model, request.kind
        return self._valid.get(key) or self._refresh(key, catalog, workers)

    def _refresh(self, key: tuple[str, Kind], catalog: Catalog, workers: Workers) -> NameOffers:
        name, kind = key
        here, offers = workers.by_name.get(name, ()), catalog.offers.get(name, ())
        cached = self._cached.get(key)
        if cached is None or cached.workers is not here or cached.offers is not offers:
            self._forget(key)
            cached = NameOffers(self._own, kind, here, offers)
            if not (here or offers):
                # Not cached: callers may ask for any name.
                return cached
            self._cached[key] = cached
            self._offer_count += len(offers)
            while len(self._cached) > (MAX_TABLES if self._offer_count <= self._max_offers else 1):
                self._forget(next(iter(self._cached)))
        self._valid[key] = cached
        return cached

    def _forget(self, key: tuple[str, Kind]) -> None:
        self._valid.pop(key, None)
        if (removed := self._cached.pop(key, None)) is not None:
            self._offer_count -= len(removed.offers)


class Exclusions:
    """Replicas that the newest choices excluded, and why, by request and by model.

    A choice finds them in any case. For a request that is held or tries several names, more than one choice is made; the last
    choice of each name counts.
    """

    def __init__(self, *, limit: int = MAX_EXCLUSIONS) -> None:
        self._limit = limit
        self._excluded: dict[str, dict[str, tuple[Excluded, ...]]] = {}

    def record(self, request: Request, excluded: tuple[Excluded, ...]) -> None:
        """Record the replicas that a choice excluded."""
        by_model = self._excluded.pop(request.id, None)
        if by_model is None:
            if not excluded:
                return
            by_model = {}
        by_model[request.model] = excluded[:MAX_EXCLUDED]
        put_newest(self._excluded, request.id, by_model, limit=self._limit)

    def excluded_for(self, id_: str) -> list[Excluded]:
        """Return the replicas that were excluded when this request was routed, none if that is not remembered."""
        return [*chain.from_iterable(self._excluded.get(id_, {}).values())]


@dataclass(frozen=True, slots=True)
class RoutingExplanation:
    """The candidates for a request in the order of trying, and the replicas excluded, with reasons."""

    ordered: tuple[Candidate, ...]
    excluded: tuple[Excluded, ...]


class Chooser:
    """Choice of candidates for each request, from a snapshot of all that is known at that moment."""

    def __init__(
        self,
        ledger: Ledger,
        *,
        world: World,
        policy: Policy,
        random: RandomSource,
        replica_asker: ReplicaAsker | None = None,
    ) -> None:
        self._ledger = ledger
        self._replica_asker = replica_asker
        self._world = world
        self._policy = policy
        self._random = random
        self._tables = ReplicaTables()
        self.exclusions = Exclusions()
        self._own = world.own
        self._name_offers = NameOffersCache(world, ledger.workers)

    def explain(self, request: Request) -> RoutingExplanation:
        """Return where a request would be sent now, and why not to other replicas; takes no slot."""
        candidates = self.find_candidates(request)
        ordered = order_candidates(self._policy, request, candidates.eligible, self._random)
        return RoutingExplanation(tuple(ordered), candidates.excluded)

    def choose_now(self, request: Request) -> tuple[Candidate, ...] | None:
        """Return the candidates in order, `None` if that needs a wait or a query; if they are used, call the policy's `begun`."""
        offered = self._name_offers.offers_for(request)
        if (replica := offered.only_replica) and (
            candidate := self._only_candidate(request, offered, replica)
        ):
            return (candidate,)
        candidates, _ = self._sort_sample(request, offered)
        eligible = candidates.eligible
        if candidates.excluded or not eligible or any(c.ejected for c in eligible):
            return None
        if len(eligible) == 1:
            return eligible
        if self._replica_asker and self._policy.compares and candidates_to_query(request, eligible):
            return None
        return tuple(order_candidates(self._policy, request, eligible, self._random))

    async def choose(self, request: Request) -> tuple[list[Candidate], bool]:
        """Return the candidates in order, and whether a slot of the first is held already; raise a `RouterError` if none."""
        candidates, sample = self._sort_sample(request, self._name_offers.offers_for(request))
        if (
            self._replica_asker
            and len(candidates.eligible) > 1
            and await self._query_nodes(request, candidates)
        ):
            candidates = self.find_candidates(request, sample)
        self.exclusions.record(request, candidates.excluded)
        full = self.full_candidates(candidates) if candidates.excluded else []
        if not full and candidates.eligible and all(map(self._is_gone, candidates.eligible)):
            raise self._gone_error(request, candidates.eligible)
        # Waiting for a slot of a healthy replica is better than trying one that failed repeatedly.
        if candidates.eligible and not (full and all(c.ejected for c in candidates.eligible)):
            ordered = list(
                order_candidates(self._policy, request, candidates.eligible, self._random)
            )
            self._policy.begun(request)
            if self._ledger.borrowed_slots is None:
                for candidate in full:
                    if patient := longest_useful_wait(request, candidate, ordered):
                        limited = replace(request, waits=False, patience=patient)
                        with suppress(NoCapacity):
                            return await self.wait_for_slot(limited, [candidate])
                return ordered, False
            remaining, holds_slot = await self._ledger.borrowed_slots.take_first_slot(
                request, ordered
            )
            if remaining:
                return remaining, holds_slot
            full += ordered
        if not full:
            names = chain(self._ledger.workers().by_name, self._world.catalog.offers)
            raise no_candidate_error(request, candidates.excluded, names)
        return await self.wait_for_slot(request, full)

    async def _query_nodes(self, request: Request, candidates: CandidateSet) -> bool:
        """Ask a few nodes about their replicas, if that is worth the time; return whether anything was learnt."""
        if self._replica_asker is None or not self._policy.compares:
            return False
        likely = candidates_to_query(request, candidates.eligible)
        queried = [c for c in likely if c.worker is None and not c.rank]
        if not queried:
            return False
        self._ledger.events["replica_questions"] += len(queried)
        answers = await asyncio.gather(*(self._replica_asker.ask(request, c) for c in queried))
        for candidate, answer in zip(queried, answers, strict=True):
            if answer is not None:
                self._ledger.record_replica_answer(request, candidate, answer)
        return any(answers)

    def may_return(self, request: Request) -> bool:
        """Return whether an absent replica is worth waiting for, under any of the requested names."""
        for name in (request.model, *request.fallbacks):
            candidates = self.find_candidates(replace(request, model=name))
            if any(map(self._ledger.may_return, candidates.eligible)):
                return True
            if any(self._may_return_soon(e) for e in candidates.excluded):
                return True
        return False

    def _may_return_soon(self, excluded: Excluded) -> bool:
        match excluded.reason:
            case Reason.LOST | Reason.LEFT:
                return self._world.absence_of(excluded.candidate.node) < RESTART
            case Reason.DRAINING:
                return True
            case _:
                return False

    def _is_gone(self, candidate: Candidate) -> bool:
        """Return whether a candidate has been absent for so long that only one request at a time tries it."""
        return candidate.ejected and not self._ledger.may_return(candidate)

    def _gone_error(self, request: Request, candidates: Sequence[Candidate]) -> NobodyServes:
        message = f"{display_name(request.model)} is known, but none of its workers has answered for some time"
        seconds = min(self._ledger.condition(c).retry_in for c in candidates)
        return NobodyServes(message, retry_after=max(1.0, seconds))

    def full_candidates(self, candidates: CandidateSet) -> list[Candidate]:
        """Return the candidates excluded only for lack of a slot; only the healthy ones if there are any."""
        full = [e.candidate for e in candidates.excluded if e.reason is Reason.FULL]
        return [c for c in full if not c.ejected] or full

    async def wait_for_slot(
        self, request: Request, full: Sequence[Candidate]
    ) -> tuple[list[Candidate], bool]:
        """Wait for a slot of one of these candidates; return that candidate, and that its slot is held."""
        service = await self._ledger.waiting.wait_for_slot(request, full)
        worker = self._ledger.workers().by_key.get(service.key)
        if worker is None or worker.service != service:
            self._ledger.release(service)
            raise NobodyServes(
                f"{display_name(request.model)} was unregistered while this request waited"
            )
        replica = OfferedReplica(Candidate(self._own, service, worker))
        return self._ledger.candidates(request, [replica]), True

    def _only_candidate(
        self, request: Request, offered: NameOffers, replica: OfferedReplica
    ) -> Candidate | None:
        """Return the only candidate, `None` if there is an objection to it that `candidates` has to name."""
        [candidate] = self._ledger.candidates(request, (replica,))
        restricted = request.verbatim is not None or request.pin is not ANYWHERE
        reason: Reason | None = None
        if replica.worker is None:
            if request.own_only or self._world.presence_of(candidate.node) is not Presence.ALIVE:
                return None
            if restricted:
                reason = objection(request, candidate, None)
        elif (draining := self._world.draining) or restricted or offered.has_limit:
            reason = objection_to_own(request, candidate, None, self._ledger, draining=draining)
        if reason or candidate.pause or candidate.ejected:
            return None
        lacks_media = offered.inputs_known and MediaNeeds(request).missing(candidate.service)
        return None if lacks_media else candidate

    def _sort_sample(
        self, request: Request, offered: NameOffers
    ) -> tuple[CandidateSet, Sequence[Offer] | None]:
        """Sort a sample of many replicas, and return the sample; sort all if there are few, all matter, or few are healthy."""
        offers = offered.offers
        if len(offers) <= MANY or not self._policy.samples:
            return self._sort_replicas(request, offered), None
        if request.own_only or request.pin != ANYWHERE:
            return self._sort_replicas(request, offered), None
        drawn = self._tables.draw(request.model, offers, self._random, conversation_key(request))
        if request.prefixes.goes_on or request.background:
            read = self._ledger.replicas_that_read(request)
            drawn += [o for o in starmap(Offer, read) if o in offers and o not in drawn]
        candidates = self._sort_replicas(request, offered, drawn)
        if sum(not c.rank for c in candidates.eligible) < ENOUGH:
            return self._sort_replicas(request, offered), None
        return candidates, drawn

    def find_candidates(
        self, request: Request, among: Iterable[Offer] | None = None
    ) -> CandidateSet:
        """Return the replicas that may answer a request, and the excluded; of other nodes only those in `among`, if given."""
        return self._sort_replicas(request, self._name_offers.offers_for(request), among)

    def _sort_replicas(
        self, request: Request, offered: NameOffers, among: Iterable[Offer] | None = None
    ) -> CandidateSet:
        world = self._world
        return sort_replicas(
            request,
            offered,
            presence=world.presence_of,
            ledger=self._ledger,
            draining=world.draining,
            among=among,
        )
