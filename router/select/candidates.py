"""Candidates for a request, and the replicas that may not answer it, with the reason. Pure: values in, values out."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import field
from enum import StrEnum
from functools import lru_cache
from typing import Any, Protocol

from registry.catalog import Offer
from registry.members.liveness import Presence
from registry.records import ModelType, PeerId, Service
from registry.values import replace_fields, value_class
from router.requests import ANYWHERE, Kind, Request
from router.select.fitness import MediaNeeds, RequestLength, Types, has_known_inputs
from router.state.remote_load import Reported
from router.state.service_time import NOTHING_BEFORE, ReadPrefix, ServiceTime
from router.translate.verbatim import accepts
from router.workers import Worker


@value_class
class Candidate:
    """One replica that could answer. `worker` is set for this machine's own; `in_flight` counts requests from here.

    It is in doubt whether the node of a `suspect` one answers; if it is also `unreachable`, it lives, but cannot be reached from
    here. An `ejected` one failed repeatedly of late: it is a last resort. A `held_back` one is in slow start and has as many
    of this node's requests as it may have for now; for a `tight` one, the request is probably too long.
    `report` is what its node last reported of it, `None` if unknown; it is never set for this machine's own, whose requests all
    pass through here. `pause` is the pause in seconds that it requested and that is left. `time` is how long its answers to such
    requests take, `None` until its node has reported it. `before` is what it has read of this very conversation.
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
    pause: float = 0.0
    time: ServiceTime | None = None
    before: ReadPrefix = NOTHING_BEFORE
    address: str = field(default="", repr=False, compare=False)
    """Key of its circuit: the worker's URL, or the replica at its node. Made of these if it is not given."""
    dialect: str = field(default="", repr=False, compare=False)
    """The module name of the dialect that speaks to it; a replica at another node is reached by the dialect `peer`."""
    rank: int = field(default=0, init=False, repr=False, compare=False)
    """Its group in the order, whatever the load: 0 is trusted, 1 held back or tight, 2 in doubt, 3 ejected, 4 unreachable."""

    def __post_init__(self) -> None:
        # A value is frozen for the type checker only.
        mutable: Any = self
        if not self.address:
            worker = self.worker
            mutable.dialect = "peer" if worker is None else worker.dialect
            mutable.address = worker.api if worker else _address_at(self.node, self.service)
        rank = 3 if self.ejected else 2 if self.suspect else int(self.held_back or self.tight)
        if rank or self.unreachable:
            mutable.rank = 4 if self.unreachable else rank

    @property
    def key(self) -> tuple[PeerId, Service]:
        """Key of in-flight counts and outcomes."""
        return self.node, self.service

    @property
    def expected_requests(self) -> float:
        """Estimated number of requests there now: this node's, and those reported of other nodes."""
        return self.in_flight + self.report.requests_of_others if self.report else self.in_flight

    @property
    def slots(self) -> int:
        """Number of requests that it takes at one time, as registered or as its node reported; 0 if unknown."""
        if self.worker is not None:
            return self.worker.capacity
        return self.report.load.slots if self.report else 0

    @property
    def cached_kilobytes(self) -> float:
        """Estimated kilobytes of the request in its cache, so that it need not read them."""
        return self.before.held(self.time.holds) if self.time else 0.0

    @property
    def has_room(self) -> bool:
        """Whether one more request would find a slot, as far as is known."""
        return not self.slots or self.expected_requests < self.slots

    @property
    def place(self) -> str:
        """Its failure domain: the worker's process, or the other machine."""
        return self.worker.api if self.worker is not None else self.node


@lru_cache(maxsize=4_096)
def _address_at(node: PeerId, service: Service) -> str:
    return f"{node}/{service.project}/{service.model}/{service.typed_cid}"


class Reason(StrEnum):
    """Why a replica may not answer a request."""

    LOST = "its node is lost"
    LEFT = "its node has left"
    DRAINING = "its node is draining"
    PINNED = "the caller requested another"
    HOP = "a forwarded request stays on this node"
    FULL = "all its slots are in use"
    PAUSED = "it requested a pause"
    OTHER_TYPE = "it serves another type of request"
    SHORT = "its context is too short"
    UNSEEING = "its model does not accept this input"
    WORDLESS = "its worker does not support a parameter"


@value_class
class Excluded:
    """A replica that may not answer, and why; `seconds` until it may, if known.

    `detail` are the figures behind it, for people.
    """

    candidate: Candidate
    reason: Reason
    seconds: float = 0.0
    detail: str = ""


@value_class
class CandidateSet:
    """All replicas that offer the name: those that may answer, and those that may not."""

    eligible: tuple[Candidate, ...]
    excluded: tuple[Excluded, ...]


class OfferedReplica:
    """Replica that offers a name: the part of a candidate that lasts as long as the catalog and the table of workers.

    `unfit` is why it may answer no request of a kind, if that is so.
    """

    __slots__ = ("address", "dialect", "key", "unfit", "worker")

    def __init__(self, candidate: Candidate, unfit: Reason | None = None) -> None:
        self.key, self.address, self.dialect = candidate.key, candidate.address, candidate.dialect
        self.worker, self.unfit = candidate.worker, unfit

    def as_candidate(
        self, in_flight: int, report: Reported | None, time: ServiceTime | None, before: ReadPrefix
    ) -> Candidate:
        """Return it as a trusted candidate with this load."""
        node, service = self.key
        return Candidate(
            node,
            service,
            self.worker,
            in_flight,
            report=report,
            time=time,
            before=before,
            address=self.address,
            dialect=self.dialect,
        )


class NameOffers:
    """All replicas that offer a name to requests of one kind, as the catalog and the table of workers alone show.

    `has_limit` says that one of this machine's has slots, `same_context` that all have the same context, known or not,
    and `inputs_known` that the inputs of some replica's model are known.
    """

    def __init__(
        self, own: PeerId, kind: Kind, workers: Sequence[Worker], offers: Sequence[Offer]
    ) -> None:
        self.workers = workers
        self.offers = offers
        self._own = own
        self._types = Types(kind, self._services)
        self._peer_replicas: dict[tuple[PeerId, Service], OfferedReplica] = {}
        self._all_replicas: list[OfferedReplica] | None = None
        self._own_replicas = [self._replica(own, worker.service, worker) for worker in workers]
        # The catalog also offers what this machine serves.
        few = self.all_replicas if len(workers) + len(offers) <= 2 else []
        self.only_replica = few[0] if len(few) == 1 and few[0].unfit is None else None
        """The replica, if there is only one, and it serves such requests."""
        self.has_limit = any(worker.capacity for worker in workers)
        services = [service for _, service in self._services()]
        self.same_context = len({service.context for service in services}) < 2
        self.inputs_known = any(map(has_known_inputs, services))

    @property
    def all_replicas(self) -> list[OfferedReplica]:
        """All replicas, this machine's first."""
        if self._all_replicas is None:
            self._all_replicas = self.replicas_among(self.offers)
        return self._all_replicas

    def replicas_among(self, offers: Iterable[Offer]) -> list[OfferedReplica]:
        """Return the replicas of this machine, and of other nodes those that are among these offers."""
        cached, replicas = self._peer_replicas, [*self._own_replicas]
        for offer in offers:
            if offer.node != self._own:
                key = offer.node, offer.service
                if key not in cached:
                    cached[key] = self._replica(*key)
                replicas.append(cached[key])
        return replicas

    def _replica(
        self, node: PeerId, service: Service, worker: Worker | None = None
    ) -> OfferedReplica:
        unfit = None if self._types.fits(node, service) else Reason.OTHER_TYPE
        return OfferedReplica(Candidate(node, service, worker), unfit)

    def _services(self) -> Iterator[tuple[PeerId, Service]]:
        yield from ((self._own, worker.service) for worker in self.workers)
        yield from ((offer.node, offer.service) for offer in self.offers)


class LedgerView(Protocol):
    """What this node knows of replicas now."""

    def candidates(self, request: Request, replicas: Iterable[OfferedReplica]) -> list[Candidate]:
        """Return all that is known of each: its load, its circuit, and the pause that it requested."""

    def allowance(self, candidate: Candidate) -> float:
        """Return how many of this node's requests a candidate may have at one time during slow start."""

    def reserved_slots(self, worker: Worker) -> int:
        """Return how many slots of a local worker no background request may take now."""


def sort_replicas(
    request: Request,
    offered: NameOffers,
    *,
    presence: Callable[[PeerId], Presence],
    ledger: LedgerView,
    draining: bool = False,
    among: Iterable[Offer] | None = None,
) -> CandidateSet:
    """Sort the replicas that offer `request.model` into eligible and excluded; of other nodes only those in `among`, if given."""
    eligible: list[Candidate] = []
    excluded: list[Excluded] = []
    media = MediaNeeds(request) if offered.inputs_known else None
    # Nearly all requests are for any replica that serves the model.
    restricted = request.verbatim is not None or request.pin is not ANYWHERE
    checks_own = restricted or draining or offered.has_limit
    checks_peers = restricted or request.own_only
    replicas = offered.all_replicas if among is None else offered.replicas_among(among)
    for replica, candidate in zip(replicas, ledger.candidates(request, replicas), strict=True):
        reason = replica.unfit
        if replica.worker is None:
            seen = presence(candidate.node)
            if checks_peers or seen is not Presence.ALIVE:
                reason = _objection_to_peer(request, candidate, reason, seen)
                _add_candidate(_with_doubt(candidate, seen), reason, media, eligible, excluded)
                continue
        elif checks_own:
            reason = objection_to_own(request, candidate, reason, ledger, draining=draining)
        if reason or media or candidate.pause:
            _add_candidate(candidate, reason, media, eligible, excluded)
        else:
            eligible.append(candidate)
    if not offered.same_context and _contexts_differ(eligible, excluded):
        eligible, short = _exclude_too_short(eligible, excluded, RequestLength(request))
        excluded += short
    return CandidateSet(hold_back_newcomers(eligible, ledger.allowance), tuple(excluded))


def _add_candidate(
    candidate: Candidate,
    reason: Reason | None,
    media: MediaNeeds | None,
    eligible: list[Candidate],
    excluded: list[Excluded],
) -> None:
    """Add a candidate to the eligible or to the excluded; `reason` is the objection found so far, if any."""
    if reason is not None and reason is not Reason.FULL:
        served = candidate.service.type.name.lower() if reason is Reason.OTHER_TYPE else ""
        excluded.append(Excluded(candidate, reason, detail=served))
    elif media and (missing := media.missing(candidate.service)):
        excluded.append(Excluded(candidate, Reason.UNSEEING, detail=missing))
    elif candidate.pause:
        excluded.append(Excluded(candidate, Reason.PAUSED, candidate.pause))
    elif reason is not None:
        excluded.append(Excluded(candidate, reason))
    else:
        eligible.append(candidate)


def _contexts_differ(eligible: Sequence[Candidate], excluded: Sequence[Excluded]) -> bool:
    """Return whether the length of the request can matter: not if all have the same context, known or not."""
    contexts = {c.service.context for c in eligible}
    contexts.update(e.candidate.service.context for e in excluded if e.reason in _FOR_NOW)
    return bool(eligible) and len(contexts) > 1


def _exclude_too_short(
    candidates: Sequence[Candidate], excluded: Sequence[Excluded], length: RequestLength
) -> tuple[list[Candidate], list[Excluded]]:
    """Exclude candidates whose context is surely too short; if all are, keep the longest: the worker has the last word."""
    fitting = [
        replace_fields(c, tight=True) if length.may_exceed_context(c.service) else c
        for c in candidates
        if not length.exceeds(c.service)
    ]
    # A request can wait for a replica that is only full now.
    later = any(e.reason in _FOR_NOW and not length.exceeds(e.candidate.service) for e in excluded)
    if not fitting and not later:
        longest = max(c.service.context for c in candidates)
        fitting = [c for c in candidates if c.service.context == longest]
    fitting_keys = {c.key for c in fitting}
    return fitting, [_too_short(c, length) for c in candidates if c.key not in fitting_keys]


def _too_short(candidate: Candidate, length: RequestLength) -> Excluded:
    detail = f"{candidate.service.context:,} < about {length.minimum_tokens:,} tokens"
    return Excluded(candidate, Reason.SHORT, detail=detail)


def hold_back_newcomers(
    found: Sequence[Candidate], allowance: Callable[[Candidate], float]
) -> tuple[Candidate, ...]:
    """Hold back candidates in slow start that have reached their allowance, as long as another has room."""
    if len(found) < 2:
        return tuple(found)  # no other candidate could have room
    full = {c.key for c in found if c.in_flight and not c.ejected and c.in_flight >= allowance(c)}
    if not full or not any(c.has_room and not c.rank and c.key not in full for c in found):
        return tuple(found)
    return tuple([replace_fields(c, held_back=True) if c.key in full else c for c in found])


_FOR_NOW = frozenset({Reason.FULL, Reason.PAUSED})

_NUMBERS = frozenset(str(int(kind)) for kind in ModelType)
_ABSENT = {
    Presence.LOST: Reason.LOST,
    Presence.LEFT: Reason.LEFT,
    Presence.DRAINING: Reason.DRAINING,
}


def _is_older_pin(request: Request, service: Service) -> bool:
    """Return whether an older node means this replica by a cid with one of its types: it may pick any of them."""
    cid, mark, number = (request.pin.cid or "").rpartition("#")
    return bool(request.own_only and mark) and cid == service.cid and number in _NUMBERS


def objection_to_own(
    request: Request, own: Candidate, unfit: Reason | None, ledger: LedgerView, *, draining: bool
) -> Reason | None:
    """Return why a worker of this machine may not answer a request, if so; `unfit` is why it never may."""
    if reason := objection(request, own, unfit):
        return reason
    # A peer's catalog may still have this node while it drains; what the peer forwards is told to go elsewhere.
    if draining:
        return Reason.DRAINING
    if own.worker is None or not own.worker.capacity:
        return None
    reserved = ledger.reserved_slots(own.worker) if request.background else 0
    return Reason.FULL if own.in_flight + reserved >= own.worker.capacity else None


def _objection_to_peer(
    request: Request, candidate: Candidate, unfit: Reason | None, presence: Presence
) -> Reason | None:
    if request.own_only:
        return Reason.HOP
    return objection(request, candidate, unfit) or _ABSENT.get(presence)


def _with_doubt(candidate: Candidate, presence: Presence) -> Candidate:
    if presence is Presence.UNREACHABLE:
        return replace_fields(candidate, suspect=True, unreachable=True)
    return replace_fields(candidate, suspect=True) if presence is Presence.SUSPECT else candidate


def objection(request: Request, candidate: Candidate, unfit: Reason | None) -> Reason | None:
    """Return why a candidate may not answer a request, wherever it is: it is not the one meant, or lacks a parameter."""
    if request.pin is not ANYWHERE and not _matches_pin(request, candidate):
        return Reason.PINNED
    verbatim = request.verbatim
    if unfit is not None or verbatim is None or not verbatim.needs:
        return unfit
    return None if accepts(verbatim, candidate.service) else Reason.WORDLESS


def _matches_pin(request: Request, candidate: Candidate) -> bool:
    pin = request.pin
    return (
        pin.node in (None, candidate.node)
        and pin.project in ("", candidate.service.project)
        and (pin.cid in (None, candidate.service.cid) or _is_older_pin(request, candidate.service))
        and pin.but != candidate.key
    )
