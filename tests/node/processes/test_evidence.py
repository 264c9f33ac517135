"""What a helper reports of other nodes: every failure, and an answer now and then."""

from node.processes.protocol import EvidenceShown, Said, Stale
from node.processes.world import MAX_NODES, PAUSE, Witness
from registry.members.liveness import Evidence
from registry.records import PeerId, Service
from router.errors import WorkerError, WorkerFailed, WorkerStale, WorkerTimeout, WorkerUnreachable
from router.outcome import Outcome
from router.select.candidates import Candidate

OWN, THEM = PeerId("own"), PeerId("them")


class World:
    def __init__(self) -> None:
        self.now = 0.0
        self.said: list[Said] = []
        self.witness = Witness(OWN, self.said.append, lambda: self.now)

    def saw(self, error: WorkerError | None = None, node: PeerId = THEM) -> None:
        self.witness.observe(Outcome(Candidate(node, Service("p", "m")), error, 0.1))


def test_answers_in_a_row_are_reported_once_in_a_while() -> None:
    world = World()
    for world.now in (0.0, PAUSE / 2, PAUSE, PAUSE * 1.2):
        world.saw()
    assert world.said == [EvidenceShown(THEM, Evidence.ANSWERED)] * 2


def test_every_failure_to_reach_a_node_is_reported_and_so_is_the_next_answer() -> None:
    world = World()
    world.saw()
    world.saw(WorkerUnreachable("no"))
    world.saw(WorkerTimeout("connection", 2))
    world.saw()
    ends = [Evidence.ANSWERED, Evidence.FAILED, Evidence.FAILED, Evidence.ANSWERED]
    assert world.said == [EvidenceShown(THEM, evidence) for evidence in ends]


def test_a_failing_worker_is_no_evidence_about_its_node_and_our_own_node_is_not_reported() -> None:
    world = World()
    world.saw(WorkerFailed("no"))
    world.saw(node=OWN)
    world.saw(WorkerUnreachable("no"), node=OWN)
    assert world.said == []


def test_a_node_that_no_longer_serves_a_model_is_reported_as_stale() -> None:
    world = World()
    world.saw(WorkerStale("gone"))
    assert world.said == [Stale(THEM)]


def test_no_more_nodes_are_remembered_than_the_bound_allows() -> None:
    world = World()
    for number in range(MAX_NODES + 1):
        world.saw(node=PeerId(f"n{number}"))
    world.saw(node=PeerId("n1"))
    assert len(world.said) == MAX_NODES + 2
