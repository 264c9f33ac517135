"""Who could answer this request, and who could not, with the reason. Pure: values in, values out."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import field
from enum import StrEnum
from functools import lru_cache, partial
from typing import Protocol

from registry.catalog import Catalog, Offer
from registry.members.liveness import Presence
from registry.records import ModelType, PeerId, Service
from registry.values import changed, value_class
from router.requests import ANYWHERE, Request
from router.select.fitness import Length, MediaNeeds, Types
from router.state.remote_load import Reported
from router.state.service_time import NOTHING_BEFORE, Before, ServiceTime
from router.translate.verbatim import takes
from router.workers import Worker, Workers


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

    def __post_init__(self) -> None:
        service = self.service
        object.__setattr__(self, "key", (self.node, service))
        api = self.worker.api if self.worker is not None else _at_peer(self.node, service)
        object.__setattr__(self, "address", api)

    @property
    def expected(self) -> float:
        """How many requests are thought to be there now: ours, and what was reported of others'."""
        return self.in_flight + self.report.others if self.report else self.in_flight

    @property
    def rank(self) -> int:
        """After whom it comes, whatever the load: 0 is trusted, 1 held back or tight, 2 in doubt, 3 ejected, 4 out of reach."""
        if self.unreachable:
            return 4
        return 3 if self.ejected else 2 if self.suspect else int(self.held_back or self.tight)

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

    @property
    def dialect(self) -> str:
        """The module name of the dialect that speaks to it: a peer is a worker whose dialect is ours."""
        return self.worker.dialect if self.worker else "peer"


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


class Known(Protocol):
    """What this node knows of replicas at one moment."""

    def row(
        self,
        node: PeerId,
        service: Service,
        worker: Worker | None = None,
        *,
        suspect: bool = False,
        unreachable: bool = False,
    ) -> Candidate:
        """Return all that is known of one: its load, its circuit, and how long it asked to be left alone."""

    def allowance(self, candidate: Candidate) -> float:
        """Return how many of our requests one may have at one time, while it is new here."""

    def kept_free(self, worker: Worker) -> int:
        """Return how many slots of a worker of ours no background request may take now."""


def candidates(
    request: Request,
    *,
    own: PeerId,
    catalog: Catalog,
    workers: Workers,
    presence: Callable[[PeerId], Presence],
    known: Known,
    draining: bool = False,
    among: Iterable[Offer] | None = None,
) -> Field:
    """Sort everybody who offers `request.model` into eligible and excluded; of other nodes only `among`, where that is given."""
    eligible: list[Candidate] = []
    excluded: list[Excluded] = []
    media = MediaNeeds(request)
    here, offers = workers.by_name.get(request.model, ()), catalog.offers.get(request.model, ())
    types = Types(request.kind, partial(_everybody, own, here, offers))
    for worker in here:
        ours = known.row(own, worker.service, worker)
        reason = _unwanted(request, ours, types)
        # A peer may still have us in its catalog while we drain; what it sends on is told to go elsewhere.
        if reason is None and draining:
            reason = Reason.DRAINING
        if reason is None and worker.capacity:
            taken = ours.in_flight + (known.kept_free(worker) if request.background else 0)
            reason = Reason.FULL if taken >= worker.capacity else None
        _sort(ours, reason, media, eligible, excluded)
    for offer in offers if among is None else among:
        if offer.node == own:
            continue
        seen, suspect, unreachable = presence(offer.node), False, False
        alive = seen is Presence.ALIVE
        if not alive:
            unreachable = seen is Presence.UNREACHABLE
            suspect = unreachable or seen is Presence.SUSPECT
        theirs = known.row(offer.node, offer.service, suspect=suspect, unreachable=unreachable)
        reason = Reason.HOP if request.own_only else _unwanted(request, theirs, types)
        if reason is None and not alive:
            reason = _ABSENT.get(seen)
        _sort(theirs, reason, media, eligible, excluded)
    if _unlike(eligible, excluded):
        eligible, short = _long_enough(eligible, excluded, Length(request))
        excluded += short
    return Field(begin_gently(eligible, known.allowance), tuple(excluded))


def _sort(
    candidate: Candidate,
    reason: Reason | None,
    media: MediaNeeds,
    eligible: list[Candidate],
    excluded: list[Excluded],
) -> None:
    """Add a candidate to those who may answer, or to those who may not; `reason` is why it may not, as far as is known yet."""
    if reason is not None and reason is not Reason.FULL:
        excluded.append(Excluded(candidate, reason, detail=_served(candidate, reason)))
    elif missing := media.missing(candidate.service):
        excluded.append(Excluded(candidate, Reason.UNSEEING, detail=missing))
    elif candidate.told:
        excluded.append(Excluded(candidate, Reason.TOLD, candidate.told))
    elif reason is not None:
        excluded.append(Excluded(candidate, reason))
    else:
        eligible.append(candidate)


def _everybody(
    own: PeerId, here: Iterable[Worker], offers: Iterable[Offer]
) -> Iterator[tuple[PeerId, Service]]:
    yield from ((own, worker.service) for worker in here)
    yield from ((offer.node, offer.service) for offer in offers)


def _served(candidate: Candidate, reason: Reason) -> str:
    return candidate.service.type.name.lower() if reason is Reason.OTHER_TYPE else ""


def _unlike(eligible: Sequence[Candidate], excluded: Sequence[Excluded]) -> bool:
    """Say whether it can make a difference how long the request is: not where all have the same context, known or not."""
    if len(eligible) + len(excluded) < 2:
        return False
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


def _unwanted(request: Request, candidate: Candidate, types: Types) -> Reason | None:
    if request.pin is not ANYWHERE and not _meant(request, candidate):
        return Reason.PINNED
    service, said = candidate.service, request.verbatim
    if not types.fits(candidate.node, service):
        return Reason.OTHER_TYPE
    wordless = said is not None and said.needs and not takes(said, service)
    return Reason.WORDLESS if wordless else None


def _meant(request: Request, candidate: Candidate) -> bool:
    pin = request.pin
    return (
        pin.node in (None, candidate.node)
        and pin.project in ("", candidate.service.project)
        and (pin.cid in (None, candidate.service.cid) or _by_older(request, candidate.service))
        and pin.but != candidate.key
    )
