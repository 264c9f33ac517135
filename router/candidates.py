"""Who could answer this request, and who could not, with the reason. Pure: values in, values out."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from registry.catalog import Catalog
from registry.liveness import Presence
from registry.records import PeerId, Service
from router.reports import Reported
from router.requests import Request
from router.workers import Worker, Workers


@dataclass(frozen=True, slots=True)
class Candidate:
    """One replica that could answer. `worker` is set for this machine's own; `in_flight` counts requests from here.

    Whether the node of a `suspect` one answers is in doubt; if it is `unreachable` as well, it lives, but not for us.
    `report` is what its node said of it last, `None` when that is unknown; it is never set for this machine's own, whose
    requests all pass here.
    """

    node: PeerId
    service: Service
    worker: Worker | None = None
    in_flight: int = 0
    suspect: bool = False
    unreachable: bool = False
    report: Reported | None = None

    @property
    def expected(self) -> float:
        """How many requests are thought to be there now: ours, and what was reported of others'."""
        return self.in_flight + self.report.others if self.report else self.in_flight

    @property
    def key(self) -> tuple[PeerId, Service]:
        """What in-flight counts and outcomes are kept by."""
        return self.node, self.service

    @property
    def dialect(self) -> str:
        """The module name of the dialect that speaks to it: a peer is a worker whose dialect is ours."""
        return self.worker.dialect if self.worker else "peer"


class Reason(StrEnum):
    """Why a replica may not answer a request."""

    LOST = "its node is lost"
    LEFT = "its node has left"
    DRAINING = "its node is draining"
    PINNED = "the caller asked for another"
    HOP = "a forwarded request stays on this node"
    FULL = "all its slots are taken"


@dataclass(frozen=True, slots=True)
class Excluded:
    """A replica that may not answer, and why."""

    candidate: Candidate
    reason: Reason


@dataclass(frozen=True, slots=True)
class Field:
    """Everybody who offers the name: those who may answer, and those who may not."""

    eligible: tuple[Candidate, ...]
    excluded: tuple[Excluded, ...]


def candidates(
    request: Request,
    *,
    own: PeerId,
    catalog: Catalog,
    workers: Workers,
    presence: Callable[[PeerId], Presence],
    in_flight: Mapping[tuple[PeerId, Service], int],
    reported: Callable[[PeerId, Service], Reported | None],
    draining: bool = False,
) -> Field:
    """Sort everybody who offers `request.model` into eligible and excluded."""
    eligible: list[Candidate] = []
    excluded: list[Excluded] = []

    def sort(candidate: Candidate, reason: Reason | None) -> None:
        if reason is None:
            eligible.append(candidate)
        else:
            excluded.append(Excluded(candidate, reason))

    for worker in workers.by_name.get(request.model, ()):
        key = own, worker.service
        ours = Candidate(own, worker.service, worker, in_flight.get(key, 0))
        full = bool(worker.capacity) and ours.in_flight >= worker.capacity
        reason = _unwanted(request, ours)
        # A peer may still have us in its catalog while we drain; what it sends on is told to go elsewhere.
        if reason is None and draining:
            reason = Reason.DRAINING
        sort(ours, reason or (Reason.FULL if full else None))
    for offer in catalog.offers.get(request.model, ()):
        if offer.node == own:
            continue
        seen = presence(offer.node)
        theirs = Candidate(
            offer.node,
            offer.service,
            in_flight=in_flight.get((offer.node, offer.service), 0),
            suspect=seen in _DOUBTED,
            unreachable=seen is Presence.UNREACHABLE,
            report=reported(offer.node, offer.service),
        )
        reason = Reason.HOP if request.own_only else _unwanted(request, theirs)
        sort(theirs, reason or _ABSENT.get(seen))
    return Field(tuple(eligible), tuple(excluded))


_DOUBTED = frozenset({Presence.SUSPECT, Presence.UNREACHABLE})

_ABSENT = {
    Presence.LOST: Reason.LOST,
    Presence.LEFT: Reason.LEFT,
    Presence.DRAINING: Reason.DRAINING,
}


def _unwanted(request: Request, candidate: Candidate) -> Reason | None:
    pin = request.pin
    wanted = (
        pin.node in (None, candidate.node)
        and pin.project in ("", candidate.service.project)
        and pin.cid in (None, candidate.service.cid)
    )
    return None if wanted else Reason.PINNED
