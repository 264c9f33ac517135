"""Views of replicas where links are cut and nodes are dead: each settles on the truth, stays there, and comes back.

The replicas run under a virtual clock, with the real rounds of probes. Packets pass from one node to another or not; a question
or a dial needs both directions. Frames travel along connections, so no node hears what a cut keeps from all others too.
"""

from collections.abc import Collection, Iterator
from itertools import permutations

from hypothesis import given, settings
from hypothesis import strategies as st

from registry.effects import Effect, Probe, Publish
from registry.members.liveness import Evidence, Status
from registry.members.probe import CloseConnection, Found, NoteEvidence, OwnProbe, ProbeStep
from registry.records import PeerId, Standing
from registry.replica import Replica
from registry.settings import RegistrySettings
from tests.strategies import IDENTITIES

SETTINGS = RegistrySettings()
STEP = 0.25
SETTLED = 25.0
"""Seconds within which every node has settled on a view, even of a death out of its reach."""

BACK = 10.0
"""Seconds after healing within which every node reaches every other: an eighth of the time that it was cut, and a try."""

Cuts = Collection[tuple[int, int]]


class Mesh:
    """Nodes, which of them are dead, and between which of them nothing passes."""

    def __init__(self, count: int, seed: int) -> None:
        self.now = 100.0
        self.dead: frozenset[int] = frozenset()
        self.cuts: Cuts = ()
        self._chances = _chances(seed)
        self.nodes = [
            Replica(identity, SETTINGS, epoch=1, jitter=lambda: next(self._chances))
            for identity in IDENTITIES[:count]
        ]
        # A connection as one end sees it: the other end may not hear of its close.
        self.links = set(permutations(range(count), 2))
        for one in self.nodes:
            one.announce(self.now, standing=Standing.SERVING)
        for one, other in permutations(self.nodes, 2):
            one.merge_record(other.catalog.held[other.peer], heard_at=self.now, now=self.now)
            one.observe(other.peer, Evidence.LINKED, self.now)

    def carries(self, one: int, other: int) -> bool:
        alive = self.dead.isdisjoint((one, other))
        return alive and (one, other) not in self.cuts and (other, one) not in self.cuts

    def run(self, seconds: float) -> None:
        for _ in range(int(seconds / STEP)):
            self.now += STEP
            for number, node in enumerate(self.nodes):
                if number not in self.dead:
                    self._perform(number, node.tick(self.now))
                    self._redial(number)

    def view(self) -> dict[tuple[int, int], Status]:
        return {
            (one, other): self.nodes[one].member_health()[self.nodes[other].peer].contact
            for one, other in permutations(range(len(self.nodes)), 2)
            if one not in self.dead
        }

    def _perform(self, number: int, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Publish(frame):
                    for other in self._hears(number):
                        self._perform(other, self.nodes[other].receive(frame, self.now))
                case Probe(node):
                    self._probe(number, self._number(node))

    def _hears(self, author: int) -> set[int]:
        reached, hops = {author}, [author]
        for via in hops:
            for other in range(len(self.nodes)):
                linked = {(via, other), (other, via)} <= self.links and self.carries(via, other)
                if other not in reached and linked:
                    reached.add(other)
                    hops.append(other)
        return reached - {author}

    def _probe(self, number: int, other: int) -> None:
        node, peer = self.nodes[number], self.nodes[other].peer
        connected = {self.nodes[b].peer: 0.05 for a, b in sorted(self.links) if a == number}
        steps, result = node.members.probe_round(peer, connected), Found()
        try:
            step = next(steps)
            while True:
                match step:
                    case ProbeStep(own_probe, intermediaries):
                        result = self._attempt(number, other, own_probe, intermediaries)
                    case NoteEvidence(evidence):
                        node.observe(peer, evidence, self.now)
                    case CloseConnection():
                        self._unlink(number, other)
                step = steps.send(result)
        except StopIteration:
            node.members.end_probe(peer, self.now)

    def _attempt(
        self, number: int, other: int, own_probe: OwnProbe, intermediaries: Collection[PeerId]
    ) -> Found:
        node, peer = self.nodes[number], self.nodes[other].peer
        if own_probe is OwnProbe.DIAL and self.carries(number, other):
            self._link(number, other)
        if (other, number) not in self.links and self.carries(number, other):
            # The other end has closed the connection meanwhile: what is sent comes back as a reset.
            self._unlink(number, other)
            own_probe = OwnProbe.NOTHING
        reached = own_probe is not OwnProbe.NOTHING and self.carries(number, other)
        if reached:
            node.observe(peer, Evidence.ANSWERED, self.now)
            self.nodes[other].observe(node.peer, Evidence.ASKED, self.now)
        proven = False
        for intermediary in map(self._number, intermediaries):
            linked = (intermediary, other) in self.links
            if linked and self.carries(number, intermediary) and self.carries(intermediary, other):
                node.note_proof(peer, self.nodes[intermediary].peer, self.now, asked_at=self.now)
                proven = True
        return Found(reached, proven)

    def _redial(self, number: int) -> None:
        # As the mesh does for a node that lacks connections, and the service compares records over each new one.
        for other in range(len(self.nodes)):
            lacking = (number, other) not in self.links and other != number
            if lacking and self.carries(number, other) and next(self._chances) < STEP / 10:
                self._link(number, other)
                self._probe(number, other)

    def _link(self, one: int, other: int) -> None:
        for a, b in ((one, other), (other, one)):
            self.links.add((a, b))
            self.nodes[a].observe(self.nodes[b].peer, Evidence.LINKED, self.now)

    def _unlink(self, one: int, other: int) -> None:
        for a, b in ((one, other), (other, one)):
            if a == one or self.carries(one, other):
                self.links.discard((a, b))
                self.nodes[a].observe(self.nodes[b].peer, Evidence.PARTED, self.now)

    def _number(self, peer: PeerId) -> int:
        return next(n for n, node in enumerate(self.nodes) if node.peer == peer)


def _chances(seed: int) -> Iterator[float]:
    while True:
        seed = (seed * 1_103_515_245 + 12_345) % 2**31
        yield seed / 2**31


def truth(mesh: Mesh, one: int, other: int) -> Status:
    """Return how a node should see another: as living if a node that both reach can tell so."""
    if other in mesh.dead:
        return Status.LOST
    if mesh.carries(one, other):
        return Status.ALIVE
    others = range(len(mesh.nodes))
    proven = any(mesh.carries(one, n) and mesh.carries(n, other) for n in others)
    return Status.UNREACHABLE if proven else Status.LOST


pairs = st.sampled_from([*permutations(range(5), 2)])


@settings(deadline=None, max_examples=max(10, settings().max_examples // 2))
@given(
    cuts=st.sets(pairs, max_size=2),
    dead=st.sets(st.integers(0, 4), max_size=1),
    seed=st.integers(1, 2**31 - 1),
)
def test_every_node_settles_on_the_truth_stays_there_and_is_back_soon_after_the_cut_heals(
    cuts: set[tuple[int, int]], dead: set[int], seed: int
) -> None:
    mesh = Mesh(5, seed)
    mesh.run(5.0)
    assert set(mesh.view().values()) == {Status.ALIVE}
    mesh.cuts, mesh.dead = cuts, frozenset(dead)
    mesh.run(SETTLED)
    expected = {pair: truth(mesh, *pair) for pair in mesh.view()}
    for _ in range(80):
        mesh.run(0.5)
        assert mesh.view() == expected
    mesh.cuts, mesh.dead = (), frozenset()
    mesh.run(BACK + SETTLED if dead else BACK)
    assert set(mesh.view().values()) == {Status.ALIVE}


def test_the_two_ends_of_a_cut_link_change_their_view_once_and_no_other_node_does() -> None:
    mesh = Mesh(5, 1)
    mesh.run(5.0)
    before, changes = mesh.view(), []
    mesh.cuts = {(0, 1)}
    for _ in range(240):
        mesh.run(STEP)
        changes += [pair for pair, contact in mesh.view().items() if before[pair] is not contact]
        before = mesh.view()
    assert sorted(changes) == [(0, 1), (1, 0)]
