"""Who could answer this request, and who could not, with the reason. Pure: values in, values out."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import field
from enum import StrEnum
from functools import cached_property, lru_cache
from typing import Any, Protocol

from registry.catalog import Offer
from registry.members.liveness import Presence
from registry.records import ModelType, PeerId, Service
from registry.values import changed, value_class
from router.requests import ANYWHERE, Kind, Request
from router.select.fitness import Length, MediaNeeds, Types, says_inputs
from router.state.remote_load import Reported
from router.state.service_time import NOTHING_BEFORE, Before, ServiceTime
from router.translate.verbatim import takes
from router.workers import Worker


@value_class
class Candidate:
    """One replica that could answer. `worker` is set for this machine's own; `in_flight` counts requests from here.

    Whether the node of a `suspect` one answers is in doubt; if it is `unreachable` as well, it lives, but not for us. An
    `ejected` one failed lately, time and again: it is a last resort rather than nobody. One that is `held_back` is new here and
    has as many of our requests as it may have for now; for a `tight` one the request is probably too long.
    `report` is what its node said of it last, `None` when that is unknown; it is never set for this machine's own, whose
    requests all pass here. It asked to be left alone for another `told` seconds. `time` is how long its answers to such requests
    take, `None` until its node has said so. `before` is what it has read of this very conversation.
    """

    node: PeerId
    service: Service
    worker: Worker | None = None
    in_flight: int = 0
    suspect: bool = False
    unreachable: bool = False
    ejected: bool = False
    held_back: bool = False
    tight: bool = False
    report: Reported | None = None
    told: float = 0.0
    time: ServiceTime | None = None
    before: Before = NOTHING_BEFORE
    key: tuple[PeerId, Service] = field(init=False, repr=False, compare=False)
    """What in-flight counts and outcomes are kept by."""
    address: str = field(init=False, repr=False, compare=False)
    """What its circuit is kept by: the worker's URL, or the replica at its node."""
    dialect: str = field(init=False, repr=False, compare=False)
    """The module name of the dialect that speaks to it: a peer is a worker whose dialect is ours."""
    rank: int = field(init=False, repr=False, compare=False)
    """After whom it comes, whatever the load: 0 is trusted, 1 held back or tight, 2 in doubt, 3 ejected, 4 out of reach."""

    def __post_init__(self) -> None:
        # A value is frozen to the type checker, not to itself.
        made: Any = self
        service, worker = self.service, self.worker
        made.key = self.node, service
        made.address = _at_peer(self.node, service) if worker is None else worker.api
        made.dialect = "peer" if worker is None else worker.dialect
        doubt = 3 if self.ejected else 2 if self.suspect else int(self.held_back or self.tight)
        made.rank = 4 if self.unreachable else doubt

    @property
    def expected(self) -> float:
        """How many requests are thought to be there now: ours, and what was reported of others'."""
        return self.in_flight + self.report.others if self.report else self.in_flight

    @property
    def slots(self) -> int:
        """How many requests it takes at one time: what it was registered with or its node reported, 0 when not known."""
        if self.worker is not None:
            return self.worker.capacity
        return self.report.load.slots if self.report else 0

    @property
    def cached(self) -> float:
        """How many kilobytes of the request are thought to be in its cache, so that it need not read them."""
        return self.before.held(self.time.holds) if self.time else 0.0

    @property
    def has_room(self) -> bool:
        """Whether one more request would find a slot, as far as is known."""
        return not self.slots or self.expected < self.slots

    @property
    def place(self) -> str:
        """What fails as one: the worker's process, or the other machine."""
        return self.worker.api if self.worker is not None else self.node


@lru_cache(maxsize=4_096)
def _at_peer(node: PeerId, service: Service) -> str:
    return f"{node}/{service.project}/{service.model}/{service.typed_cid}"


class Reason(StrEnum):
    """Why a replica may not answer a request."""

    LOST = "its node is lost"
    LEFT = "its node has left"
    DRAINING = "its node is draining"
    PINNED = "the caller requested another"
    HOP = "a forwarded request stays on this node"
    FULL = "all its slots are in use"
    TOLD = "it requested a pause"
    OTHER_TYPE = "it serves another type of request"
    SHORT = "its context is too short"
    UNSEEING = "its model does not accept this input"
    WORDLESS = "its worker does not support a parameter"


@value_class
class Excluded:
    """A replica that may not answer, and why; `seconds` until it may, where that is known.

    `detail` are the figures behind it, for people.
    """

    candidate: Candidate
    reason: Reason
    seconds: float = 0.0
    detail: str = ""


@value_class
class Field:
    """Everybody who offers the name: those who may answer, and those who may not."""

    eligible: tuple[Candidate, ...]
    excluded: tuple[Excluded, ...]


class OfferedReplica:
    """One that offers a name: what stays of a candidate while the catalog and the table of workers do.

    `unfit` is why no request of a kind is for it, if that is so.
    """

    __slots__ = ("address", "key", "unfit", "worker")

    def __init__(self, one: Candidate, unfit: Reason | None = None) -> None:
        self.key, self.address, self.worker, self.unfit = one.key, one.address, one.worker, unfit

    def seen(
        self, in_flight: int, report: Reported | None, time: ServiceTime | None, before: Before
    ) -> Candidate:
        """Return it as a candidate with this load, trusted."""
        node, service = self.key
        return Candidate(
            node, service, self.worker, in_flight, report=report, time=time, before=before
        )


class NameOffers:
    """Everybody who offers a name to requests of one kind: what follows from the catalog and the table of workers alone.

    `bounded` says that one of this machine's has slots, `alike` that all have the same context, known or not, and `inputs` that
    somebody's model says what it takes.
    """

    def __init__(
        self, own: PeerId, kind: Kind, workers: Sequence[Worker], offers: Sequence[Offer]
    ) -> None:
        self.workers = workers
        self.offers = offers
        self._own = own
        self._types = Types(kind, self._names)
        self._found: dict[tuple[PeerId, Service], OfferedReplica] = {}
        self._here = [self._replica(own, worker.service, worker) for worker in workers]
        self.bounded = any(worker.capacity for worker in workers)
        services = [service for _, service in self._names()]
        self.alike = len({service.context for service in services}) < 2
        self.inputs = any(map(says_inputs, services))

    @cached_property
    def everybody(self) -> list[OfferedReplica]:
        """All of them, this machine's first."""
        return self.among(self.offers)

    @cached_property
    def lone(self) -> OfferedReplica | None:
        """The only one that there is, if it serves such requests."""
        # What this machine serves, its catalog offers as well.
        replicas = self.everybody if len(self.workers) + len(self.offers) <= 2 else ()
        return replicas[0] if len(replicas) == 1 and replicas[0].unfit is None else None

    def among(self, offers: Iterable[Offer]) -> list[OfferedReplica]:
        """Return those of this machine, and of other nodes those that are among these."""
        found, replicas = self._found, [*self._here]
        for offer in offers:
            if offer.node != self._own:
                key = offer.node, offer.service
                if key not in found:
                    found[key] = self._replica(*key)
                replicas.append(found[key])
        return replicas

    def _replica(
        self, node: PeerId, service: Service, worker: Worker | None = None
    ) -> OfferedReplica:
        unfit = None if self._types.fits(node, service) else Reason.OTHER_TYPE
        return OfferedReplica(Candidate(node, service, worker), unfit)

    def _names(self) -> Iterator[tuple[PeerId, Service]]:
        yield from ((self._own, worker.service) for worker in self.workers)
        yield from ((offer.node, offer.service) for offer in self.offers)


class Known(Protocol):
    """What this node knows of replicas now."""

    def rows(self, request: Request, replicas: Iterable[OfferedReplica]) -> list[Candidate]:
        """Return all that is known of each: its load, its circuit, and how long it asked to be left alone."""

    def allowance(self, candidate: Candidate) -> float:
        """Return how many of our requests one may have at one time, while it is new here."""

    def kept_free(self, worker: Worker) -> int:
        """Return how many slots of a worker of ours no background request may take now."""


def candidates(
    request: Request,
    offered: NameOffers,
    *,
    presence: Callable[[PeerId], Presence],
    known: Known,
    draining: bool = False,
    among: Iterable[Offer] | None = None,
) -> Field:
    """Sort everybody who offers `request.model` into eligible and excluded; of other nodes only `among`, where that is given."""
    eligible: list[Candidate] = []
    excluded: list[Excluded] = []
    media = MediaNeeds(request) if offered.inputs else None
    # Nearly all requests are for whoever serves the model.
    choosy = request.verbatim is not None or request.pin is not ANYWHERE
    careful, wary = choosy or draining or offered.bounded, choosy or request.own_only
    replicas = offered.everybody if among is None else offered.among(among)
    for replica, candidate in zip(replicas, known.rows(request, replicas), strict=True):
        reason = replica.unfit
        if replica.worker is None:
            seen = presence(candidate.node)
            if wary or seen is not Presence.ALIVE:
                reason = _against_theirs(request, candidate, reason, seen)
                _sort(_doubted(candidate, seen), reason, media, eligible, excluded)
                continue
        elif careful:
            reason = against_ours(request, candidate, reason, known, draining=draining)
        if reason or media or candidate.told:
            _sort(candidate, reason, media, eligible, excluded)
        else:
            eligible.append(candidate)
    if not offered.alike and _unlike(eligible, excluded):
        eligible, short = _long_enough(eligible, excluded, Length(request))
        excluded += short
    return Field(begin_gently(eligible, known.allowance), tuple(excluded))


def _sort(
    candidate: Candidate,
    reason: Reason | None,
    media: MediaNeeds | None,
    eligible: list[Candidate],
    excluded: list[Excluded],
) -> None:
    """Add a candidate to those who may answer, or to those who may not; `reason` is why it may not, as far as is known yet."""
    if reason is not None and reason is not Reason.FULL:
        served = candidate.service.type.name.lower() if reason is Reason.OTHER_TYPE else ""
        excluded.append(Excluded(candidate, reason, detail=served))
    elif media and (missing := media.missing(candidate.service)):
        excluded.append(Excluded(candidate, Reason.UNSEEING, detail=missing))
    elif candidate.told:
        excluded.append(Excluded(candidate, Reason.TOLD, candidate.told))
    elif reason is not None:
        excluded.append(Excluded(candidate, reason))
    else:
        eligible.append(candidate)


def _unlike(eligible: Sequence[Candidate], excluded: Sequence[Excluded]) -> bool:
    """Say whether it can make a difference how long the request is: not where all have the same context, known or not."""
    contexts = {c.service.context for c in eligible}
    contexts.update(e.candidate.service.context for e in excluded if e.reason in _FOR_NOW)
    return bool(eligible) and len(contexts) > 1


def _long_enough(
    found: Sequence[Candidate], excluded: Sequence[Excluded], length: Length
) -> tuple[list[Candidate], list[Excluded]]:
    """Leave out whose context is surely too short; where everybody's is, leave the longest: the worker has the last word."""
    left = [
        changed(c, tight=True) if length.strains(c.service) else c
        for c in found
        if not length.beyond(c.service)
    ]
    # For who is only full now, a request can wait.
    later = any(e.reason in _FOR_NOW and not length.beyond(e.candidate.service) for e in excluded)
    if not left and not later:
        longest = max(c.service.context for c in found)
        left = [c for c in found if c.service.context == longest]
    kept = {c.key for c in left}
    return left, [_short(c, length) for c in found if c.key not in kept]


def _short(candidate: Candidate, length: Length) -> Excluded:
    detail = f"{candidate.service.context:,} < about {length.least:,} tokens"
    return Excluded(candidate, Reason.SHORT, detail=detail)


def begin_gently(
    found: Sequence[Candidate], allowance: Callable[[Candidate], float]
) -> tuple[Candidate, ...]:
    """Hold back who is new and has enough, as long as somebody else has room."""
    if len(found) < 2:
        # Nobody else could have room.
        return tuple(found)
    full = {c.key for c in found if c.in_flight and not c.ejected and c.in_flight >= allowance(c)}
    if not full or not any(c.has_room and not c.rank and c.key not in full for c in found):
        return tuple(found)
    return tuple([changed(c, held_back=True) if c.key in full else c for c in found])


_FOR_NOW = frozenset({Reason.FULL, Reason.TOLD})

_NUMBERS = frozenset(str(int(kind)) for kind in ModelType)
_ABSENT = {
    Presence.LOST: Reason.LOST,
    Presence.LEFT: Reason.LEFT,
    Presence.DRAINING: Reason.DRAINING,
}


def _by_older(request: Request, service: Service) -> bool:
    """Say whether an older node means this replica by a cid of one of its types: it may take any of them for the right one."""
    cid, mark, number = (request.pin.cid or "").rpartition("#")
    return bool(request.own_only and mark) and cid == service.cid and number in _NUMBERS


def against_ours(
    request: Request, ours: Candidate, unfit: Reason | None, known: Known, *, draining: bool
) -> Reason | None:
    """Say why a worker of this machine may not answer a request; `unfit` is why it never may."""
    if reason := unwanted(request, ours, unfit):
        return reason
    # A peer may still have us in its catalog while we drain; what it sends on is told to go elsewhere.
    if draining:
        return Reason.DRAINING
    if ours.worker is None or not ours.worker.capacity:
        return None
    taken = ours.in_flight + (known.kept_free(ours.worker) if request.background else 0)
    return Reason.FULL if taken >= ours.worker.capacity else None


def _against_theirs(
    request: Request, theirs: Candidate, unfit: Reason | None, seen: Presence
) -> Reason | None:
    if request.own_only:
        return Reason.HOP
    return unwanted(request, theirs, unfit) or _ABSENT.get(seen)


def _doubted(theirs: Candidate, seen: Presence) -> Candidate:
    if seen is Presence.UNREACHABLE:
        return changed(theirs, suspect=True, unreachable=True)
    return changed(theirs, suspect=True) if seen is Presence.SUSPECT else theirs


def unwanted(request: Request, candidate: Candidate, unfit: Reason | None) -> Reason | None:
    """Say why a candidate may not answer a request, wherever it is: it is not the one that is meant, or lacks the words."""
    if request.pin is not ANYWHERE and not _meant(request, candidate):
        return Reason.PINNED
    said = request.verbatim
    if unfit is None and said is not None and said.needs and not takes(said, candidate.service):
        return Reason.WORDLESS
    return unfit


def _meant(request: Request, candidate: Candidate) -> bool:
    pin = request.pin
    return (
        pin.node in (None, candidate.node)
        and pin.project in ("", candidate.service.project)
        and (pin.cid in (None, candidate.service.cid) or _by_older(request, candidate.service))
        and pin.but != candidate.key
    )
