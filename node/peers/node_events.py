"""Events of nodes, for people who look: who joined, was doubted, lost, drained or left, the last few hundred in memory."""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from registry.catalog import Catalog
from registry.clock import Clock
from registry.members.liveness import REASONS, Presence, Pulse
from registry.records import PeerId

MOST = 500
"""Events that are remembered."""


@dataclass(frozen=True, slots=True)
class NodeEvent:
    """What became of one node; `at` is Unix time, `was` what it was to us before, empty where it was not known."""

    at: float
    node: PeerId
    name: str
    was: str
    now: str
    why: str


class WatchedPeers(Protocol):
    """The registry, as far as events go."""

    @property
    def catalog(self) -> Catalog:
        """The newest record of every node."""

    def presence(self, node: PeerId) -> Presence:
        """Say what a node is to us."""

    def pulse(self, node: PeerId) -> Pulse | None:
        """Return what is known of a node's life, `None` for this node itself."""


class NodeEvents:
    """What became of nodes lately."""

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
        """How often anything changed about any node: whoever shows them looks whether it is another number."""

    def changed(self, nodes: Iterable[PeerId]) -> None:
        """Take in that records or presences changed."""
        self.changes += 1
        for node in nodes:
            held = self._peers.catalog.held.get(node)
            if held is None:
                # Forgotten: that it was lost or left stands here already.
                self._known.pop(node, None)
                continue
            presence, was = self._peers.presence(node), self._known.get(node)
            if presence is was:
                continue
            self._known[node] = presence
            pulse = self._peers.pulse(node)
            why = REASONS[pulse.why] if pulse else ""
            self.events.append(
                NodeEvent(
                    self._wall(), node, held.record.name, was.value if was else "", presence, why
                )
            )
            self.count += 1
