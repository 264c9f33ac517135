"""Laws of the candidates for a request."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import pytest

from registry.catalog import Catalog, Signed
from registry.members.liveness import Presence
from registry.records import Ability, Load, ModelType, PeerId, Record, Service, Version
from router.requests import ANYWHERE, Kind, Pin, Request
from router.select.candidates import (
    Candidate,
    CandidateSet,
    NameOffers,
    OfferedReplica,
    Reason,
    sort_replicas,
)
from router.state.remote_load import Reported
from router.translate.verbatim import TGI, Verbatim
from router.workers import Worker, Workers

OWN, FAR, OTHER = PeerId("own"), PeerId("far"), PeerId("other")
SERVICE = Service("p", "m")


def catalog(*offers: tuple[PeerId, Service]) -> Catalog:
    records = {
        node: Record(node, Version(1, 0), services=tuple(s for n, s in offers if n == node))
        for node, _ in offers
    }
    return Catalog().merge(Signed(record, node.encode()) for node, record in records.items())


@dataclass
class Said:
    """Stub of the node's knowledge with the given values."""

    in_flight: Mapping[tuple[PeerId, Service], int]
    reports: Mapping[tuple[PeerId, Service], Reported]
    ejected: tuple[PeerId, ...]
    waits: Mapping[PeerId, float]
    allowances: Mapping[PeerId, int]

    def candidates(self, request: Request, replicas: Iterable[OfferedReplica]) -> list[Candidate]:
        return [self.row(*replica.key, replica.worker) for replica in replicas]

    def row(self, node: PeerId, service: Service, worker: Worker | None) -> Candidate:
        return Candidate(
            node,
            service,
            worker,
            self.in_flight.get((node, service), 0),
            ejected=node in self.ejected,
            report=None if worker else self.reports.get((node, service)),
            pause=self.waits.get(node, 0.0),
        )

    def allowance(self, candidate: Candidate) -> float:
        return self.allowances.get(candidate.node, 99)

    def reserved_slots(self, worker: Worker) -> int:
        return 1 if worker.capacity > 1 else 0


def find(
    *offers: tuple[PeerId, Service],
    own: tuple[Worker, ...] = (),
    model: str = "m",
    pin: Pin = ANYWHERE,
    own_only: bool = False,
    presence: dict[PeerId, Presence] | None = None,
    in_flight: dict[tuple[PeerId, Service], int] | None = None,
    reported: dict[tuple[PeerId, Service], Reported] | None = None,
    ejected: tuple[PeerId, ...] = (),
    pauses: dict[PeerId, float] | None = None,
    draining: bool = False,
    allowance: dict[PeerId, int] | None = None,
    kind: Kind = Kind.CHAT,
    body: bytes = b"",
    needs: str | None = None,
) -> CandidateSet:
    as_is = None if needs is None else Verbatim(TGI, "generate", b"{}", needs)
    here = Workers.of(own).by_name.get(model, ())
    return sort_replicas(
        Request(
            "r", kind, model, body, "application/json", pin=pin, own_only=own_only, verbatim=as_is
        ),
        NameOffers(OWN, kind, here, catalog(*offers).offers.get(model, ())),
        presence=lambda node: (presence or {}).get(node, Presence.ALIVE),
        ledger=Said(in_flight or {}, reported or {}, ejected, pauses or {}, allowance or {}),
        draining=draining,
    )


def reasons(found: CandidateSet) -> list[Reason]:
    assert found.eligible == ()
    return [excluded.reason for excluded in found.excluded]


def test_own_workers_and_other_nodes_are_candidates_alike() -> None:
    worker = Worker(SERVICE, "http://w")
    found = find((FAR, SERVICE), (OWN, SERVICE), own=(worker,), in_flight={(FAR, SERVICE): 3})
    assert set(found.eligible) == {
        Candidate(OWN, SERVICE, worker),
        Candidate(FAR, SERVICE, in_flight=3),
    }
    assert {candidate.dialect for candidate in found.eligible} == {"openai_http", "peer"}


def test_the_reported_load_of_a_replica_counts_with_its_age() -> None:
    report = Reported(Load(7, first=0.5), ours=2, age=0.0)
    found = find(
        (FAR, SERVICE), (OTHER, SERVICE), reported={(FAR, SERVICE): report},
        in_flight={(FAR, SERVICE): 1, (OTHER, SERVICE): 1},
    )  # fmt: skip
    known, unknown = sorted(found.eligible, key=lambda candidate: candidate.node)
    assert (known.report, known.expected_requests) == (report, 6.0)
    assert (unknown.report, unknown.expected_requests) == (None, 1)


def test_reports_about_own_workers_are_ignored() -> None:
    report = Reported(Load(7), ours=0, age=0.0)
    worker = Worker(SERVICE, "http://w")
    found = find(own=(worker,), reported={(OWN, SERVICE): report}, in_flight={(OWN, SERVICE): 2})
    assert [candidate.expected_requests for candidate in found.eligible] == [2]


def test_a_name_with_its_project_finds_that_project_only() -> None:
    found = find((FAR, SERVICE), (OTHER, Service("q", "m")), model="q/m")
    assert [candidate.node for candidate in found.eligible] == [OTHER]


def test_the_replicas_of_a_name_are_listed_once() -> None:
    # Also as machine code, which makes a property of a `cached_property`.
    offered = NameOffers(OWN, Kind.CHAT, (), catalog((FAR, SERVICE), (OTHER, SERVICE)).offers["m"])
    assert len(offered.all_replicas) == 2
    assert offered.all_replicas is offered.all_replicas


def test_a_name_that_no_node_offers_has_no_candidates() -> None:
    assert find((FAR, SERVICE), model="x") == CandidateSet((), ())


@pytest.mark.parametrize(
    ("presence", "reason"),
    [
        (Presence.LOST, Reason.LOST),
        (Presence.LEFT, Reason.LEFT),
        (Presence.DRAINING, Reason.DRAINING),
    ],
)
def test_lost_left_and_draining_nodes_are_excluded(presence: Presence, reason: Reason) -> None:
    assert reasons(find((FAR, SERVICE), presence={FAR: presence})) == [reason]


def test_a_suspect_node_is_a_candidate_and_marked() -> None:
    [candidate] = find((FAR, SERVICE), presence={FAR: Presence.SUSPECT}).eligible
    assert candidate.suspect
    assert not candidate.unreachable


def test_an_unreachable_node_that_is_alive_is_a_candidate_and_marked_twice() -> None:
    [candidate] = find((FAR, SERVICE), presence={FAR: Presence.UNREACHABLE}).eligible
    assert candidate.suspect
    assert candidate.unreachable


@pytest.mark.parametrize("pin", [Pin(project="q"), Pin(cid="1"), Pin(node=OTHER)])
def test_a_pin_excludes_all_other_candidates_here_and_elsewhere(pin: Pin) -> None:
    found = find((FAR, SERVICE), own=(Worker(SERVICE, "http://w"),), pin=pin)
    assert reasons(found) == [Reason.PINNED, Reason.PINNED]


@pytest.mark.parametrize("pin", [Pin(project="p"), Pin(cid=""), Pin(node=FAR)])
def test_a_pin_admits_the_candidate_that_it_names(pin: Pin) -> None:
    assert [candidate.node for candidate in find((FAR, SERVICE), pin=pin).eligible] == [FAR]


def test_a_forwarded_request_stays_at_the_node() -> None:
    worker = Worker(SERVICE, "http://w")
    found = find((FAR, SERVICE), own=(worker,), own_only=True)
    assert found.eligible == (Candidate(OWN, SERVICE, worker),)
    assert [excluded.reason for excluded in found.excluded] == [Reason.HOP]


def test_a_full_worker_is_excluded_and_one_of_unknown_capacity_is_never_full() -> None:
    full = Worker(SERVICE, "http://w", capacity=2)
    assert reasons(find(own=(full,), in_flight={(OWN, SERVICE): 2})) == [Reason.FULL]
    assert find(own=(full,), in_flight={(OWN, SERVICE): 1}).eligible
    unknown = Worker(SERVICE, "http://w")
    assert find(own=(unknown,), in_flight={(OWN, SERVICE): 99}).eligible


def test_a_replica_that_asked_for_a_pause_is_excluded_and_not_waited_for() -> None:
    found = find((FAR, SERVICE), (OTHER, SERVICE), pauses={FAR: 3.5})
    assert [candidate.node for candidate in found.eligible] == [OTHER]
    assert [(e.reason, e.seconds) for e in found.excluded] == [(Reason.PAUSED, 3.5)]
    full = Worker(SERVICE, "http://w", capacity=1)
    assert reasons(find(own=(full,), in_flight={(OWN, SERVICE): 1}, pauses={OWN: 1.0})) == [
        Reason.PAUSED
    ]


def test_a_draining_node_excludes_its_own_workers() -> None:
    found = find((FAR, SERVICE), own=(Worker(SERVICE, "http://w"),), draining=True)
    assert [candidate.node for candidate in found.eligible] == [FAR]
    assert [excluded.reason for excluded in found.excluded] == [Reason.DRAINING]


def test_an_ejected_replica_ranks_last_but_for_unreachable_ones() -> None:
    found = find((FAR, SERVICE), (OTHER, SERVICE), ejected=(FAR,))
    assert {c.node: c.rank for c in found.eligible} == {FAR: 3, OTHER: 0}
    beyond = find((FAR, SERVICE), ejected=(FAR,), presence={FAR: Presence.UNREACHABLE})
    assert beyond.eligible[0].rank == 4


def test_the_address_of_a_circuit_is_the_workers_url_or_the_replica_at_its_node() -> None:
    worker = Worker(SERVICE, "http://127.0.0.1:1")
    addresses = {c.address for c in find((FAR, SERVICE), own=(worker,)).eligible}
    assert addresses == {"http://127.0.0.1:1", "far/p/m/#0"}


ONE_KIND = int(Ability.OWN_PATH)
DRAW = Service("p", "m", type=ModelType.IMAGE, abilities=ONE_KIND)
EDIT = Service("p", "m", type=ModelType.IMAGE_EDIT, abilities=ONE_KIND)


def served(kind: Kind, *services: Service) -> set[Service]:
    """Return the services that may answer such a request, the same here and at another node."""
    workers = tuple(Worker(service, "http://127.0.0.1:1/own") for service in services)
    here, there = find(own=workers, kind=kind), find(*((FAR, s) for s in services), kind=kind)
    found = {c.service for c in here.eligible}
    assert found == {c.service for c in there.eligible}
    assert {e.reason for e in here.excluded} <= {Reason.OTHER_TYPE}
    return found


def test_the_kind_of_the_request_chooses_among_the_types_of_one_replica() -> None:
    for abilities in (0, ONE_KIND):
        draw, edit, text = (
            replace(service, abilities=abilities) for service in (DRAW, EDIT, SERVICE)
        )
        assert served(Kind.IMAGE, draw, edit, text) == {draw}
        assert served(Kind.IMAGE_EDIT, draw, edit, text) == {edit}
        assert served(Kind.CHAT, draw, edit, text) == {text}
        assert served(Kind.COMPLETION, draw, edit, text) == {text}
        assert served(Kind.EMBEDDING, draw, edit, text) == (set() if abilities else {text})


def test_the_type_of_another_replica_excludes_no_candidate() -> None:
    draw, edit = (replace(s, abilities=0) for s in (DRAW, replace(EDIT, cid="2")))
    assert served(Kind.IMAGE, draw, edit) == {draw, edit}
    found = find((FAR, draw), (OTHER, replace(edit, cid="")), kind=Kind.IMAGE)
    assert {c.node for c in found.eligible} == {FAR, OTHER}


def test_a_worker_registered_by_a_path_serves_only_the_kind_of_its_type() -> None:
    assert {kind for kind in Kind if served(kind, DRAW)} == {Kind.IMAGE}
    # There a completion is sent as a chat.
    text = replace(SERVICE, abilities=ONE_KIND)
    assert {kind for kind in Kind if served(kind, text)} == {Kind.CHAT, Kind.COMPLETION}


def test_a_replica_is_found_by_the_cid_that_an_older_node_uses_for_it() -> None:
    workers = (Worker(DRAW, "http://127.0.0.1:1/own"), Worker(EDIT, "http://127.0.0.1:1/own"))
    for cid, kind, expected in (
        ("", Kind.IMAGE_EDIT, {EDIT}),
        ("#2", Kind.IMAGE_EDIT, {EDIT}),
        ("#1", Kind.IMAGE_EDIT, {EDIT}),
        ("#2", Kind.IMAGE, {DRAW}),
        ("#16", Kind.IMAGE, set()),
        ("a#2", Kind.IMAGE, set()),
    ):
        found = find(own=workers, pin=Pin(cid=cid), kind=kind, own_only=True)
        assert {c.service for c in found.eligible} == expected


def held_back(found: CandidateSet) -> set[PeerId]:
    return {candidate.node for candidate in found.eligible if candidate.held_back}


def test_a_new_replica_at_its_allowance_ranks_after_those_with_room() -> None:
    offers = ((FAR, SERVICE), (OTHER, SERVICE))
    new = {FAR: 2}
    assert held_back(find(*offers, allowance=new, in_flight={(FAR, SERVICE): 1})) == set()
    enough = {(FAR, SERVICE): 2, (OTHER, SERVICE): 50}
    found = find(*offers, allowance=new, in_flight=enough)
    assert held_back(found) == {FAR}
    assert {c.node: c.rank for c in found.eligible} == {FAR: 1, OTHER: 0}


def test_no_replica_is_held_back_if_no_other_has_room() -> None:
    offers = ((FAR, SERVICE), (OTHER, SERVICE))
    enough = {(FAR, SERVICE): 2, (OTHER, SERVICE): 4}
    full = {(OTHER, SERVICE): Reported(Load(4, slots=4), ours=4, age=0.0)}
    both = {"allowance": {FAR: 2}, "in_flight": enough}
    assert held_back(find(*offers, **both, reported=full)) == set()
    assert held_back(find(*offers, **both, ejected=(OTHER,))) == set()
    assert held_back(find(*offers, **both, presence={OTHER: Presence.SUSPECT})) == set()
    assert held_back(find((FAR, SERVICE), **both)) == set()
    assert held_back(find(*offers, in_flight=enough, allowance={FAR: 2, OTHER: 4})) == set()


def test_a_replica_of_another_type_is_excluded() -> None:
    embedding = Service("p", "m", type=ModelType.EMBEDDING)
    offers = ((FAR, embedding), (OTHER, SERVICE))
    found = find(*offers)
    assert [c.node for c in found.eligible] == [OTHER]
    assert [e.reason for e in found.excluded] == [Reason.OTHER_TYPE]
    assert len(find(*offers, kind=Kind.EMBEDDING).eligible) == 2


def of_context(tokens: int) -> Service:
    return Service("p", "m", context=tokens)


THOUSAND = b'{"messages":[{"role":"user","content":"%b"}]}' % (b"word" * 2_000)
"""A request that needs at least a thousand tokens, and probably two thousand."""


def test_a_context_that_is_surely_too_short_excludes_a_replica_with_the_figures() -> None:
    found = find((FAR, of_context(999)), (OTHER, of_context(9_000)), body=THOUSAND)
    assert [c.node for c in found.eligible] == [OTHER]
    [excluded] = found.excluded
    assert (excluded.reason, excluded.detail) == (Reason.SHORT, "999 < about 1,000 tokens")


def test_a_replica_with_a_context_that_is_probably_too_short_ranks_after_others() -> None:
    found = find((FAR, of_context(1_500)), (OTHER, SERVICE), body=THOUSAND)
    assert {c.node: (c.tight, c.rank) for c in found.eligible} == {
        FAR: (True, 1),
        OTHER: (False, 0),
    }


def test_if_every_context_is_too_short_the_longest_is_tried() -> None:
    found = find((FAR, of_context(100)), (OTHER, of_context(500)), body=THOUSAND)
    assert [c.node for c in found.eligible] == [OTHER]
    assert [e.reason for e in found.excluded] == [Reason.SHORT]


def test_with_equal_contexts_the_length_of_a_request_is_not_computed() -> None:
    alike = (FAR, of_context(100)), (OTHER, of_context(100))
    assert len(find(*alike, body=b"no JSON, which would not be read").eligible) == 2
    assert len(find(*alike, body=THOUSAND).eligible) == 2


def test_a_request_waits_for_a_full_worker_rather_than_go_to_one_with_too_short_a_context() -> None:
    full = Worker(of_context(9_000), "http://w", capacity=1)
    found = find(
        (FAR, of_context(100)), own=(full,), in_flight={(OWN, full.service): 1}, body=THOUSAND
    )
    assert {e.reason for e in found.excluded} == {Reason.FULL, Reason.SHORT}
    assert not found.eligible


LOOK = b'{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"u"}}]}]}'
READS = Service("p", "m", abilities=Ability.TEXT_IN)
SEES = Service("p", "m", abilities=Ability.TEXT_IN | Ability.IMAGE_IN)


def test_a_model_known_to_take_no_images_is_excluded_for_an_image() -> None:
    found = find((FAR, READS), (OTHER, SEES), own=(Worker(SERVICE, "http://w"),), body=LOOK)
    assert {c.node for c in found.eligible} == {OTHER, OWN}
    [excluded] = found.excluded
    assert (excluded.candidate.node, excluded.reason, excluded.detail) == (
        FAR,
        Reason.UNSEEING,
        "image",
    )
    assert not find((FAR, READS), body=THOUSAND).excluded


def test_a_worker_without_the_protocol_that_a_field_needs_is_excluded() -> None:
    in_tgis = Service("p", "m", abilities=Ability.TGI)
    here = (Worker(replace(in_tgis, cid="1"), "http://w"), Worker(SERVICE, "http://w"))
    found = find((FAR, SERVICE), (OTHER, in_tgis), own=here, needs="watermark")
    assert {c.key for c in found.eligible} == {(OTHER, in_tgis), (OWN, here[0].service)}
    assert {(e.candidate.node, e.reason) for e in found.excluded} == {
        (FAR, Reason.WORDLESS),
        (OWN, Reason.WORDLESS),
    }
    # A verbatim body that no field needs excludes no candidate.
    assert not find((FAR, SERVICE), (OTHER, in_tgis), own=here, needs="").excluded


def test_a_full_worker_that_takes_no_images_is_not_waited_for_with_an_image() -> None:
    blind = Worker(READS, "http://w", capacity=1)
    found = find(own=(blind,), in_flight={(OWN, READS): 1}, body=LOOK)
    assert [e.reason for e in found.excluded] == [Reason.UNSEEING]


def test_a_replica_that_has_failed_this_request_is_excluded() -> None:
    found = find((FAR, SERVICE), (OTHER, SERVICE), pin=Pin(but=(FAR, SERVICE)))
    assert [candidate.node for candidate in found.eligible] == [OTHER]
    assert reasons(find((FAR, SERVICE), pin=Pin(but=(FAR, SERVICE)))) == [Reason.PINNED]
