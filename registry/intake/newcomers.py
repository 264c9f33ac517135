"""Limits on the nodes that this node has not met, and eviction from a full registry. No I/O.

A node is *met* once an authenticated connection to it was open; every other node is a *stranger*, of which only a neighbour
reports. Identities cost nothing, connections do. So a neighbour may introduce strangers at a limited rate, strangers never fill
the last quarter of the registry, and no stranger replaces a living node, while a connected node may replace a stranger.

Strangers have a weight, too: what one serves beyond a few replicas counts against the neighbour that introduces it, and the
weight of all of them together is bounded, whatever their number.
"""

from collections.abc import Callable, Collection, Sequence

from registry.bounded import put_newest
from registry.catalog import Signed
from registry.errors import LimitReached
from registry.intake.rate import RateLimit
from registry.records import PeerId

AT_ONCE = 100
"""Strangers that a neighbour which dialled this node may introduce at once."""

CHOSEN_AT_ONCE = 2_000
"""The same for a neighbour that this node dialled: a joining node learns the mesh from the first nodes that it chose."""

LIGHT, LIGHT_BYTES = 16, 4_096
"""Replicas of a stranger, and bytes of its record, that add no weight."""

REPLICA_BYTES = 64
"""Bytes beyond `LIGHT_BYTES` that count as one replica: names may be long."""

REFUSED_SECONDS = 300.0
"""Seconds for which a node whose record was too heavy is not fetched again."""

MAX_REFUSED = 1_024

WEIGHT_OF_ONE = 100
"""Weight of a stranger that counts as one more stranger for the neighbour that introduces it."""

KEPT_FOR_MET = 4
"""One in this many places is reserved for nodes that were met."""


def weight_of(signed: Signed) -> int:
    """Return the weight of a record: its replicas beyond `LIGHT`, or its bytes as replicas, whichever is greater."""
    by_bytes = (len(signed.frame) - LIGHT_BYTES) // REPLICA_BYTES
    return max(0, len(signed.record.services) - LIGHT, by_bytes)


class Newcomers:
    """The nodes that were met, the strangers, and how many each neighbour may still introduce."""

    def __init__(self, *, capacity: int, per_second: float, heaviest: int = 16_000) -> None:
        """`heaviest` is the greatest weight of all strangers together."""
        self._capacity = capacity
        self._heaviest = heaviest
        self._met: set[PeerId] = set()
        self._strangers: dict[PeerId, int] = {}
        self._strangers_weight = 0
        self._refused_until: dict[PeerId, float] = {}
        self._chosen: set[PeerId] = set()
        self._limit_of_others = RateLimit(rate=per_second, burst=AT_ONCE)
        self._limit_of_chosen = RateLimit(rate=per_second, burst=CHOSEN_AT_ONCE)

    def note_connected(self, peer: PeerId, *, chosen: bool) -> None:
        """Note that a connection to a peer is open, and whether this node dialled it."""
        self._met.add(peer)
        self._strangers_weight -= self._strangers.pop(peer, 0)
        (self._chosen.add if chosen else self._chosen.discard)(peer)

    def note_disconnected(self, peer: PeerId, *, held: bool) -> None:
        """Note that no connection to a peer is open any more; a peer that the registry holds stays met."""
        self._chosen.discard(peer)
        if not held:
            self._met.discard(peer)

    def has_met(self, node: PeerId) -> bool:
        """Return whether a connection to a node was ever open."""
        return node in self._met

    def allowance(self, via: PeerId, now: float) -> int:
        """Return how many strangers a neighbour may introduce now."""
        return self._limit_of(via).left(via, now)

    def places_for(
        self,
        signed: Signed,
        via: PeerId | None,
        now: float,
        *,
        held: Collection[PeerId],
        fresh: bool,
        lost: Callable[[], list[PeerId]],
    ) -> list[PeerId]:
        """Find a place for a record, and room for its weight; return the nodes to forget for it. Raise `LimitReached`."""
        node, weight = signed.record.node, weight_of(signed) if via else 0
        newcomer = node not in held
        if newcomer:
            self._admit(node, via, now, weight)
        # Lost nodes make room for live ones only: otherwise two full registries swap their lost nodes for ever.
        evicted = self._free_weight(node, weight, lost() if fresh else (), now)
        if newcomer and not evicted and not self.has_room(node, len(held)):
            if not fresh:
                raise LimitReached(f"no room for {node}, which has been silent")
            evicted = [self.make_room(node, lost())]
        self.note_held(node, weight=weight)
        return evicted

    def has_room(self, node: PeerId, held_count: int) -> bool:
        """Return whether there is a free place for a newcomer beside `held_count` nodes."""
        if held_count >= self._capacity:
            return False
        return self.has_met(node) or not self._strangers_are_full()

    def make_room(self, node: PeerId, lost: Sequence[PeerId]) -> PeerId:
        """Choose the node whose place a newcomer takes, of `lost` in order; raise `LimitReached` when there is none."""
        evicted = next((n for n in lost if n in self._strangers), None)
        if evicted is None and lost and (self.has_met(node) or not self._strangers_are_full()):
            evicted = lost[0]
        if evicted is None and self.has_met(node) and self._strangers:
            evicted = next(reversed(self._strangers))
        if evicted is None:
            raise LimitReached(f"the registry already contains {self._capacity:,} nodes")
        return evicted

    def is_too_heavy(self, node: PeerId, weight: int) -> bool:
        """Return whether all strangers would weigh too much with this weight of a node."""
        if not weight or node in self._met:
            return False
        return self._strangers_weight - self._strangers.get(node, 0) + weight > self._heaviest

    def is_refused(self, node: PeerId, now: float) -> bool:
        """Return whether a node's record was too heavy within `REFUSED_SECONDS`, so that it is not worth fetching."""
        return self._refused_until.get(node, now) > now

    def note_held(self, node: PeerId, *, weight: int = 0) -> None:
        """Note that the registry holds a node's record of this weight from now on."""
        if node not in self._met:
            self._strangers_weight += weight - self._strangers.get(node, 0)
            self._strangers[node] = weight

    def forget(self, node: PeerId) -> None:
        """Note that a node lost its place."""
        self._strangers_weight -= self._strangers.pop(node, 0)
        self._met.discard(node)

    def _admit(self, node: PeerId, via: PeerId | None, now: float, weight: int) -> None:
        """Count a newcomer against the neighbour that introduces it; raise `LimitReached` beyond its limit."""
        # A trusted source, such as our own store, has no limit, and a connected node introduces itself.
        if via is None or self.has_met(node):
            return
        if not self._limit_of(via).allows(via, now, cost=1 + weight / WEIGHT_OF_ONE):
            raise LimitReached(f"{via} introduces more unknown nodes than its limit")

    def _free_weight(
        self, node: PeerId, weight: int, lost: Sequence[PeerId], now: float
    ) -> list[PeerId]:
        """Choose nodes of `lost` to forget so that a record of this weight fits; raise `LimitReached` if it cannot."""
        evicted: list[PeerId] = []
        if not self.is_too_heavy(node, weight):
            return evicted
        excess = self._strangers_weight - self._strangers.get(node, 0) + weight - self._heaviest
        for heavy in lost:
            if heavy != node and (freed := self._strangers.get(heavy)):
                evicted.append(heavy)
                excess -= freed
                if excess <= 0:
                    return evicted
        put_newest(self._refused_until, node, now + REFUSED_SECONDS, limit=MAX_REFUSED)
        text = f"unknown nodes have reached their limit of services, so {node} is refused"
        raise LimitReached(f"{text} (registry.stranger_services)")

    def _strangers_are_full(self) -> bool:
        return len(self._strangers) >= self._capacity - self._capacity // KEPT_FOR_MET

    def _limit_of(self, via: PeerId) -> RateLimit:
        return self._limit_of_chosen if via in self._chosen else self._limit_of_others
