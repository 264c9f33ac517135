"""Choice of candidates for a request, in order, with the slot that is already held.

Reads the ledger, and asks the policy.
"""

import asyncio
from bisect import bisect
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain, starmap
from operator import attrgetter
from typing import Protocol

from registry.catalog import Catalog, Offer
from registry.clock import Chance
from registry.members.liveness import Presence
from router.errors import NobodyServes, NoCapacity
from router.ledger import Ledger
from router.policies import Policy, in_order
from router.requests import ANYWHERE, Kind, Request
from router.select.candidates import (
    Candidate,
    Excluded,
    Field,
    NameOffers,
    OfferedReplica,
    Reason,
    against_ours,
    candidates,
    unwanted,
)
from router.select.fitness import MediaNeeds
from router.select.nobody import nobody
from router.select.rendezvous import key_of, mark, spread
from router.select.weights import patience, worth_asking
from router.state.concurrency import BoundedWorkers
from router.state.prefix_index import ReplicaAnswer
from router.state.readiness import RESTART
from router.workers import Workers
from router.world import World

LOOKED_AT = 12
"""Replicas that are looked at where there are many: three draws among as many are as good as among all."""

MANY = 2 * LOOKED_AT
"""Replicas up to which all of them are looked at."""

ENOUGH = 3
"""Those of them that have to be well; else all are looked at."""

MAX_EXCLUSIONS = 1_000
"""Requests of which it is remembered who was left out."""

MAX_EXCLUDED = 12
"""Replicas that are remembered of one of them."""

MAX_TABLES = 1_024
"""Models whose replicas stand in a table; the one that was made first makes room."""

MAX_OFFERS = 65_536
"""Offers of all these models, about 500 bytes each, beyond which those made first make room; a model with more stands alone."""


_EJECTED = attrgetter("ejected")


class ReplicaAsker(Protocol):
    """Whoever asks other nodes about their replicas."""

    async def ask(self, request: Request, candidate: Candidate) -> ReplicaAnswer | None:
        """Return what a candidate's node says, `None` where it does not in time."""


class Tables:
    """Replicas of other nodes by model, in tables to draw from. One is made anew where its model's replicas have changed."""

    def __init__(self) -> None:
        self._tables: dict[str, tuple[Sequence[Offer], list[Offer], list[int]]] = {}

    def draw(
        self, model: str, offers: Sequence[Offer], random: Chance, key: bytes = b""
    ) -> list[Offer]:
        """Draw as many as are looked at, none twice, of at least twice as many.

        With a key half of them are those that come after it on a ring, on every node alike.
        """
        made, table, marks = self._tables.get(model, (None, [], []))
        if made is not offers:
            if len(self._tables) >= MAX_TABLES:
                del self._tables[next(iter(self._tables))]
            table = sorted(offers, key=lambda o: mark(o.node, o.service))
            marks = [mark(offer.node, offer.service) for offer in table]
            self._tables[model] = offers, table, marks
        drawn: set[int] = set()
        if key:
            first = bisect(marks, spread(key))
            drawn.update((first + n) % len(table) for n in range(LOOKED_AT // 2))
        while len(drawn) < LOOKED_AT:
            drawn.add(int(random() * len(table)))
        return [table[place] for place in drawn]


class OfferedNames:
    """Who offers which name to which kind of request, made anew where a name's workers or offers have changed."""

    def __init__(
        self, world: World, bounded: BoundedWorkers, *, most_offers: int = MAX_OFFERS
    ) -> None:
        """`bounded` are the workers of this machine, with the slots that are known of them."""
        self._world = world
        self._own = world.own
        self._bounded = bounded
        self._most_offers = most_offers
        self._catalog: Catalog | None = None
        self._workers: Workers | None = None
        self._made: dict[tuple[str, Kind], NameOffers] = {}
        self._offers = 0
        """How many offers those have, all of them together."""
        self._valid: dict[tuple[str, Kind], NameOffers] = {}
        """Those that were compared with these very snapshots."""

    def of(self, request: Request) -> NameOffers:
        """Return who offers the name that is asked for."""
        catalog, workers = self._world.catalog, self._bounded()
        if catalog is not self._catalog or workers is not self._workers:
            self._catalog, self._workers = catalog, workers
            self._valid.clear()
        key = request.model, request.kind
        return self._valid.get(key) or self._compare(key, catalog, workers)

    def _compare(self, key: tuple[str, Kind], catalog: Catalog, workers: Workers) -> NameOffers:
        name, kind = key
        here, offers = workers.by_name.get(name, ()), catalog.offers.get(name, ())
        found = self._made.get(key)
        if found is None or found.workers is not here or found.offers is not offers:
            self._forget(key)
            found = NameOffers(self._own, kind, here, offers)
            if not (here or offers):
                # Anybody may ask for any name.
                return found
            self._made[key] = found
            self._offers += len(offers)
            while len(self._made) > (MAX_TABLES if self._offers <= self._most_offers else 1):
                self._forget(next(iter(self._made)))
        self._valid[key] = found
        return found

    def _forget(self, key: tuple[str, Kind]) -> None:
        self._valid.pop(key, None)
        if (gone := self._made.pop(key, None)) is not None:
            self._offers -= len(gone.offers)


class Exclusions:
    """Who was left out of the newest choices, and why: what a choice has made anyway, kept by request and by model.

    A request that is held or tries several names is chosen for more than once; the last choice of each name counts.
    """

    def __init__(self, *, most: int = MAX_EXCLUSIONS) -> None:
        self._most = most
        self._found: dict[str, dict[str, tuple[Excluded, ...]]] = {}

    def note(self, request: Request, excluded: tuple[Excluded, ...]) -> None:
        """Take in who was left out of a choice."""
        found = self._found.pop(request.id, None)
        if found is None:
            if not excluded:
                return
            found = {}
            if len(self._found) >= self._most:
                del self._found[next(iter(self._found))]
        found[request.model] = excluded[:MAX_EXCLUDED]
        self._found[request.id] = found

    def of(self, id_: str) -> list[Excluded]:
        """Return who was left out when this request was routed, nobody where that is not remembered."""
        return [*chain.from_iterable(self._found.get(id_, {}).values())]


@dataclass(frozen=True, slots=True)
class Explained:
    """Whom a request would be sent to, in this order, and who may not answer it."""

    ordered: tuple[Candidate, ...]
    excluded: tuple[Excluded, ...]


class Choosing:
    """The choice for each request, from a snapshot of all that is known when it is made."""

    def __init__(
        self,
        ledger: Ledger,
        *,
        world: World,
        policy: Policy,
        random: Chance,
        questions: ReplicaAsker | None = None,
    ) -> None:
        self._ledger = ledger
        self._questions = questions
        self._world = world
        self._policy = policy
        self._random = random
        self._tables = Tables()
        self.exclusions = Exclusions()
        self._own = world.own
        self._names = OfferedNames(world, ledger.workers)

    def explain(self, request: Request) -> Explained:
        """Say whom a request would be put to now, and why not to others; takes no slot."""
        field = self.field(request)
        ordered = in_order(self._policy, request, field.eligible, self._random)
        return Explained(tuple(ordered), field.excluded)

    def at_once(self, request: Request) -> tuple[Candidate, ...] | None:
        """Return whom to try where nothing has to be waited for or asked; tell the policy where they are asked."""
        offered = self._names.of(request)
        if (lone := offered.lone) and (found := self._alone(request, offered, lone)):
            return (found,)
        field, _ = self._look(request, offered)
        eligible = field.eligible
        if field.excluded or not eligible or any(map(_EJECTED, eligible)):
            return None
        if len(eligible) == 1:
            return eligible
        if self._questions and self._policy.compares and worth_asking(request, eligible):
            return None
        return tuple(in_order(self._policy, request, eligible, self._random))

    async def ordered(self, request: Request) -> tuple[list[Candidate], bool]:
        """Return whom to try, and whether a slot of the first is taken already: it had to be waited for."""
        field, among = self._look(request, self._names.of(request))
        if self._questions and len(field.eligible) > 1 and await self._asked(request, field):
            field = self.field(request, among)
        self.exclusions.note(request, field.excluded)
        full = self.only_full(field) if field.excluded else []
        if not full and field.eligible and all(map(self._is_gone, field.eligible)):
            raise self._gone(request, field.eligible)
        # Rather a slot of one that is well than one that failed time and again.
        if field.eligible and not (full and all(c.ejected for c in field.eligible)):
            ordered = list(in_order(self._policy, request, field.eligible, self._random))
            self._policy.begun(request)
            if self._ledger.lent is None:
                for candidate in full:
                    if patient := patience(request, candidate, ordered):
                        asked = replace(request, waits=False, patience=patient)
                        with suppress(NoCapacity):
                            return await self.slot(asked, [candidate])
                return ordered, False
            left, holds_slot = await self._ledger.lent.secure(request, ordered)
            if left:
                return left, holds_slot
            full += ordered
        if not full:
            names = chain(self._ledger.workers().by_name, self._world.catalog.offers)
            raise nobody(request, field.excluded, names)
        return await self.slot(request, full)

    async def _asked(self, request: Request, field: Field) -> bool:
        """Ask a few nodes about their replicas, where that is worth its time; say whether anything was learnt."""
        if self._questions is None or not self._policy.compares:
            return False
        likely = worth_asking(request, field.eligible)
        asked = [c for c in likely if c.worker is None and not c.rank]
        if not asked:
            return False
        self._ledger.events["replica_questions"] += len(asked)
        answers = await asyncio.gather(*(self._questions.ask(request, c) for c in asked))
        for candidate, told in zip(asked, answers, strict=True):
            if told is not None:
                self._ledger.learn_of(request, candidate, told)
        return any(answers)

    def may_return(self, request: Request) -> bool:
        """Say whether anybody who is not there is worth waiting for, by any of the names that are asked for."""
        for name in (request.model, *request.fallbacks):
            field = self.field(replace(request, model=name))
            if any(map(self._ledger.may_return, field.eligible)):
                return True
            if any(self._may_be_back(e) for e in field.excluded):
                return True
        return False

    def _may_be_back(self, one: Excluded) -> bool:
        match one.reason:
            case Reason.LOST | Reason.LEFT:
                return self._world.absence_of(one.candidate.node) < RESTART
            case Reason.DRAINING:
                return True
            case _:
                return False

    def _is_gone(self, candidate: Candidate) -> bool:
        """Say whether a candidate has not been there for so long that only one request at a time tries."""
        return candidate.ejected and not self._ledger.may_return(candidate)

    def _gone(self, request: Request, candidates: Sequence[Candidate]) -> NobodyServes:
        words = f"{request.model!r} is known, but none of its workers has answered for some time"
        seconds = min(self._ledger.condition(c).retry_in for c in candidates)
        return NobodyServes(words, retry_after=max(1.0, seconds))

    def only_full(self, field: Field) -> list[Candidate]:
        """Return who is left out for want of a slot only, those that are well if there are any."""
        full = [e.candidate for e in field.excluded if e.reason is Reason.FULL]
        return [c for c in full if not c.ejected] or full

    async def slot(
        self, request: Request, full: Sequence[Candidate]
    ) -> tuple[list[Candidate], bool]:
        """Wait for a slot of one of these, and return whose it is, and that it is taken."""
        service = await self._ledger.waiting.turn(request, full)
        worker = self._ledger.workers().by_key.get(service.key)
        if worker is None or worker.service != service:
            self._ledger.release(service)
            raise NobodyServes(f"{request.model!r} was unregistered while this request waited")
        replica = OfferedReplica(Candidate(self._own, service, worker))
        return self._ledger.rows(request, [replica]), True

    def _alone(
        self, request: Request, offered: NameOffers, lone: OfferedReplica
    ) -> Candidate | None:
        """Return the only candidate that there is, `None` where something speaks against it that `candidates` has to name."""
        [candidate] = self._ledger.rows(request, (lone,))
        choosy = request.verbatim is not None or request.pin is not ANYWHERE
        reason: Reason | None = None
        if lone.worker is None:
            if request.own_only or self._world.presence_of(candidate.node) is not Presence.ALIVE:
                return None
            if choosy:
                reason = unwanted(request, candidate, None)
        elif (draining := self._world.draining) or choosy or offered.bounded:
            reason = against_ours(request, candidate, None, self._ledger, draining=draining)
        if reason or candidate.told or candidate.ejected:
            return None
        unseeing = offered.inputs and MediaNeeds(request).missing(candidate.service)
        return None if unseeing else candidate

    def _look(self, request: Request, offered: NameOffers) -> tuple[Field, Sequence[Offer] | None]:
        """Look at a few of many replicas, and return which; at all where there are not many, all matter, or few are well."""
        offers = offered.offers
        if len(offers) <= MANY or not self._policy.samples:
            return self._sort(request, offered), None
        if request.own_only or request.pin != ANYWHERE:
            return self._sort(request, offered), None
        drawn = self._tables.draw(request.model, offers, self._random, key_of(request))
        if request.prefixes.goes_on or request.background:
            read = self._ledger.read_by(request)
            drawn += [o for o in starmap(Offer, read) if o in offers and o not in drawn]
        field = self._sort(request, offered, drawn)
        if sum(not c.rank for c in field.eligible) < ENOUGH:
            return self._sort(request, offered), None
        return field, drawn

    def field(self, request: Request, among: Iterable[Offer] | None = None) -> Field:
        """Say who could answer a request, and who could not; of other nodes only `among`, where that is given."""
        return self._sort(request, self._names.of(request), among)

    def _sort(
        self, request: Request, offered: NameOffers, among: Iterable[Offer] | None = None
    ) -> Field:
        world = self._world
        return candidates(
            request,
            offered,
            presence=world.presence_of,
            known=self._ledger,
            draining=world.draining,
            among=among,
        )
