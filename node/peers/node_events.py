"""Events of nodes, for people: which nodes joined, were doubted, lost, drained or left; the last few hundred in memory."""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from registry.catalog import Catalog
from registry.clock import Clock
from registry.members.liveness import REASONS, MemberHealth, Presence
from registry.records import PeerId

MOST = 500
"""Events that are remembered."""


@dataclass(frozen=True, slots=True)
class NodeEvent:
    """Change of one node's presence; `at` is Unix time, `was` the presence before, empty where it was not known."""

    at: float
    node: PeerId
    name: str
    was: str
    now: str
    why: str


class WatchedPeers(Protocol):
    """The part of the registry that events need."""

    @property
    def catalog(self) -> Catalog:
        """The newest record of every node."""

    def presence(self, node: PeerId) -> Presence:
        """Return the presence of a node, as seen from here."""

    def health_of(self, node: PeerId) -> MemberHealth | None:
        """Return what is known of a node's liveness, `None` for this node itself."""


class NodeEvents:
    """The latest changes of nodes' presence."""

    def __init__(self, peers: WatchedPeers, wall: Clock, *, most: int = MOST) -> None:
        """`wall` returns Unix time."""
        self._peers = peers
        self._wall = wall
        self._known: dict[PeerId, Presence] = {}
        self.events: deque[NodeEvent] = deque(maxlen=most)
        """The newest last."""
        self.count = 0
        """How many there were since the start."""
        self.changes = 0
        """Number of calls of `changed`; a display compares it to see whether anything is new."""

    def changed(self, nodes: Iterable[PeerId]) -> None:
        """Note that the records or presences of nodes changed."""
        self.changes += 1
        for node in nodes:
            held = self._peers.catalog.held.get(node)
            if held is None:
                # The node is forgotten; that it was lost or left is recorded here already.
                self._known.pop(node, None)
                continue
            presence, was = self._peers.presence(node), self._known.get(node)
            if presence is was:
                continue
            self._known[node] = presence
            pulse = self._peers.health_of(node)
            why = REASONS[pulse.why] if pulse else ""
            self.events.append(
                NodeEvent(
                    self._wall(), node, held.record.name, was.value if was else "", presence, why
                )
            )
            self.count += 1
