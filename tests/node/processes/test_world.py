"""A helper's view of the world is what it was told last; it reports every failure, and an answer now and then."""

from types import SimpleNamespace

import pytest

from node.processes.protocol import (
    EvidenceShown,
    NodeForgotten,
    NodeSeen,
    NodeSilent,
    RecordStale,
    ToFirst,
    Unreadable,
    WorkersHeld,
)
from node.processes.world import MAX_NODES, PAUSE, EvidenceReporter, WorldView
from registry import wire
from registry.members.liveness import Evidence, Presence
from registry.records import Heartbeat, PeerId, Reach, Record, Service, Standing, Version
from registry.settings import RegistrySettings
from registry.signing import Identity
from router.errors import WorkerError, WorkerFailed, WorkerStale, WorkerTimeout, WorkerUnreachable
from router.outcome import Outcome
from router.select.candidates import Candidate
from router.workers import Worker

OWN, THEM = Identity(bytes(32)), Identity(bytes([1]) * 32)
SERVICE = Service("p", "m")


@pytest.fixture
def view() -> WorldView:
    return WorldView(OWN.peer, RegistrySettings(deny=("12D3KooWdenied",)))


def frame(identity: Identity = THEM, sequence: int = 1, **fields) -> bytes:
    return wire.encode_record(Record(identity.peer, Version(1, sequence), **fields), identity).frame


def test_a_node_that_is_seen_is_offered_and_one_that_is_forgotten_is_not(view: WorldView) -> None:
    seen = NodeSeen(THEM.peer, Presence.ALIVE, frame(services=(SERVICE,)))
    assert view.apply(seen) == {THEM.peer}
    assert [offer.node for offer in view.catalog.offers["m"]] == [THEM.peer]
    assert view.presence(THEM.peer) is Presence.ALIVE
    assert view.apply(NodeForgotten(THEM.peer)) == {THEM.peer}
    assert (view.presence(THEM.peer), view.catalog.reach_of(THEM.peer)) == (Presence.LOST, None)
    assert "m" not in view.catalog.offers


def test_a_change_of_presence_needs_no_record(view: WorldView) -> None:
    view.apply(NodeSeen(THEM.peer, Presence.ALIVE, frame(reach=Reach(links=("127.0.0.1:9",)))))
    view.apply(NodeSeen(THEM.peer, Presence.SUSPECT))
    assert view.presence(THEM.peer) is Presence.SUSPECT
    assert view.catalog.reach_of(THEM.peer) == Reach(links=("127.0.0.1:9",))


def test_a_node_drains_when_its_own_record_says_so(view: WorldView) -> None:
    assert not view.draining()
    view.apply(NodeSeen(OWN.peer, Presence.ALIVE, frame(OWN)))
    assert not view.draining()
    view.apply(NodeSeen(OWN.peer, Presence.ALIVE, frame(OWN, 2, standing=Standing.DRAINING)))
    assert view.draining()


def test_workers_are_those_of_the_last_table(view: WorldView) -> None:
    assert view.apply(WorkersHeld((Worker(SERVICE, "http://127.0.0.1:1"),))) == frozenset()
    assert [worker.service for worker in view.workers] == [SERVICE]
    view.apply(WorkersHeld(()))
    assert not len(view.workers)


def test_a_silent_node_may_become_heard_again(view: WorldView) -> None:
    view.apply(NodeSilent(THEM.peer, silent=True))
    assert view.is_silent(THEM.peer)
    view.apply(NodeSilent(THEM.peer, silent=False))
    assert not view.is_silent(THEM.peer)


def test_a_denied_peer_is_not_admitted(view: WorldView) -> None:
    assert view.admits(THEM.peer)
    assert not view.admits(PeerId("12D3KooWdenied"))


def test_a_frame_with_a_wrong_signature_or_without_a_record_is_refused(view: WorldView) -> None:
    forged = bytearray(frame())
    forged[-1] ^= 1
    beat = wire.encode_heartbeat(Heartbeat(THEM.peer, Version(1, 1), 1), THEM)
    for data in (bytes(forged), b"\x01", beat):
        with pytest.raises(Unreadable):
            view.apply(NodeSeen(THEM.peer, Presence.ALIVE, data))


class World:
    def __init__(self) -> None:
        self.now = 0.0
        self.said: list[ToFirst] = []
        self.evidence = EvidenceReporter(
            OWN.peer, SimpleNamespace(send=self.said.append), lambda: self.now
        )

    def saw(self, error: WorkerError | None = None, node: PeerId = THEM.peer) -> None:
        self.evidence.observe(Outcome(Candidate(node, Service("p", "m")), error, 0.1))


def test_answers_in_a_row_are_reported_once_in_a_while() -> None:
    world = World()
    for world.now in (0.0, PAUSE / 2, PAUSE, PAUSE * 1.2):
        world.saw()
    assert world.said == [EvidenceShown(THEM.peer, Evidence.ANSWERED)] * 2


def test_every_failure_to_reach_a_node_is_reported_and_so_is_the_next_answer() -> None:
    world = World()
    world.saw()
    world.saw(WorkerUnreachable("no"))
    world.saw(WorkerTimeout("connection", 2))
    world.saw()
    ends = [Evidence.ANSWERED, Evidence.FAILED, Evidence.FAILED, Evidence.ANSWERED]
    assert world.said == [EvidenceShown(THEM.peer, evidence) for evidence in ends]


def test_a_failing_worker_is_no_evidence_about_its_node_and_our_own_node_is_not_reported() -> None:
    world = World()
    world.saw(WorkerFailed("no"))
    world.saw(node=OWN.peer)
    world.saw(WorkerUnreachable("no"), node=OWN.peer)
    assert world.said == []


def test_a_node_that_no_longer_serves_a_model_is_reported_as_stale() -> None:
    world = World()
    world.saw(WorkerStale("gone"))
    assert world.said == [RecordStale(THEM.peer)]


def test_no_more_nodes_are_remembered_than_the_bound_allows() -> None:
    world = World()
    for number in range(MAX_NODES + 1):
        world.saw(node=PeerId(f"n{number}"))
    world.saw(node=PeerId("n1"))
    assert len(world.said) == MAX_NODES + 2
