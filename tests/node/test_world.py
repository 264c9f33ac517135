"""World of a node's router: what attempts show of other nodes reaches the registry, unless it is known already."""

import math
import random
import time

import pytest

from node.agent import Agent
from node.observe.metrics import Metrics
from node.world import LATELY, NodeWorld
from registry.catalog import Signed
from registry.members.liveness import FRESH, Evidence, Presence
from registry.mesh.memory import MemoryMesh, MemoryNet
from registry.records import PeerId, Record, Service, Version
from registry.service import Registry
from registry.settings import RegistrySettings
from registry.store.memory import MemoryStore
from router.errors import WorkerStale, WorkerUnreachable
from router.outcome import Outcome
from router.select.candidates import Candidate
from tests.strategies import IDENTITIES

HERE, THERE = IDENTITIES[:2]
LLAMA = Service("p", "llama")
OUTCOMES = {
    "an answer": (None, [Evidence.ANSWERED]),
    "no connection": (WorkerUnreachable("no route"), [Evidence.FAILED]),
    "a failure of the worker": (WorkerStale("gone"), []),
}


class Watched(Registry):
    """A registry that notes what it is shown."""

    def __init__(self) -> None:
        mesh = MemoryMesh(HERE.peer, MemoryNet(), bootstrap=())
        super().__init__(
            HERE,
            RegistrySettings(),
            store=MemoryStore(),
            mesh=mesh,
            epoch=1,
            now=time.monotonic,
            random=random.random,
        )
        self.shown: list[Evidence] = []
        self.refreshed = 0

    def observe(self, node, evidence) -> None:
        """Note the evidence."""
        self.shown.append(evidence)

    def refresh_record(self, node) -> None:
        """Count the call."""
        self.refreshed += 1


def world_at(now: float, registry: Registry) -> NodeWorld:
    agent = Agent(registry, MemoryStore())
    return NodeWorld(registry, agent, Metrics(), Quiet(), lambda: now)


class Quiet:
    """Links over which nothing has come for `seconds`."""

    def __init__(self, seconds: float = math.inf) -> None:
        self.seconds = seconds

    def has_heard(self, _: PeerId, within: float) -> bool:
        """Return whether something has come."""
        return self.seconds <= within


@pytest.mark.parametrize(
    ("seconds", "silent"), [(math.inf, True), (LATELY + 1, True), (0.5, False)]
)
def test_a_node_whose_bytes_arrive_is_not_silent_though_its_answer_to_a_probe_is_late(
    seconds: float, silent: bool
) -> None:
    class Unanswered(Watched):
        def is_silent(self, node: PeerId) -> bool:
            return node == THERE.peer

    registry = Unanswered()
    world = NodeWorld(
        registry, Agent(registry, MemoryStore()), Metrics(), Quiet(seconds), lambda: 0.0
    )
    assert world.is_silent(THERE.peer) is silent


def heard_at(now: float) -> Watched:
    registry = Watched()
    record = Record(THERE.peer, Version(1, 0), services=(LLAMA,))
    registry.replica.merge_record(Signed(record, b"frame"), heard_at=now, now=now)
    registry.replica.observe(THERE.peer, Evidence.ANSWERED, now)
    return registry


@pytest.mark.parametrize(("error", "shown"), OUTCOMES.values(), ids=OUTCOMES)
def test_what_an_attempt_shows_of_a_node_that_was_not_heard_just_now_is_passed_on(error, shown):
    registry = heard_at(100.0)
    world = world_at(100.0 + 2 * FRESH, registry)
    world.observe(Outcome(Candidate(THERE.peer, LLAMA), error, 0.1))
    assert registry.shown == shown
    assert registry.refreshed == isinstance(error, WorkerStale)


def test_an_answer_of_a_node_that_was_heard_just_now_is_no_news_but_a_failure_is():
    registry = heard_at(100.0)
    world = world_at(100.0 + FRESH / 2, registry)
    world.observe(Outcome(Candidate(THERE.peer, LLAMA), None, 0.1))
    assert registry.shown == []
    world.observe(Outcome(Candidate(THERE.peer, LLAMA), WorkerUnreachable("no route"), 0.1))
    assert registry.shown == [Evidence.FAILED]


def test_a_node_is_seen_as_the_registry_sees_it():
    registry = heard_at(100.0)
    world = world_at(130.0, registry)
    assert [world.presence_of(identity.peer) for identity in IDENTITIES[:3]] == [
        Presence.ALIVE,
        Presence.ALIVE,
        Presence.LOST,
    ]
    assert world.absence_of(THERE.peer) == 30.0
    assert world.absence_of(IDENTITIES[2].peer) == float("inf")
