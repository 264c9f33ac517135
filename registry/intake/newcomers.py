"""Places for nodes that nobody here has met, and who gives one up. No I/O.

A node is *met* once an authenticated connection to it stood; everybody else is a *stranger*, known by what a neighbour
told. Identities cost nothing, connections do. So a neighbour may bring in only so many strangers in a time, strangers never
fill the last quarter of the registry, and no stranger takes the place of a living node, while a node that is connected does
take a stranger's.

Strangers are weighed, too: what one serves beyond a few replicas counts against whoever brings it, and all of them together
have a bound, whatever their number.
"""

from collections.abc import Callable, Collection, Sequence

from registry.catalog import Signed
from registry.errors import LimitReached
from registry.intake.rate import RateLimit
from registry.records import PeerId

AT_ONCE = 100
"""Strangers that a neighbour which dialled us may bring in at once."""

CHOSEN_AT_ONCE = 2_000
"""The same of a neighbour that we dialled: whoever joins learns the mesh from the first nodes that it chose."""

LIGHT, LIGHT_BYTES = 16, 4_096
"""Replicas that a stranger may have and weigh nothing, and bytes of its record."""

REPLICA_BYTES = 64
"""Bytes beyond those that count as one replica: names may be long."""

REFUSED_SECONDS = 300.0
"""How long a node is not fetched again whose word was too heavy."""

MAX_REFUSED = 1_024

WEIGHT_OF_ONE = 100
"""What a stranger has to weigh to count as one more for the neighbour that brings it in."""

KEPT_FOR_MET = 4
"""One in so many places is kept for nodes that we met."""


def weight_of(word: Signed) -> int:
    """Return what a record weighs: replicas beyond a few, or as many as would have its bytes."""
    by_bytes = (len(word.frame) - LIGHT_BYTES) // REPLICA_BYTES
    return max(0, len(word.record.services) - LIGHT, by_bytes)


class Newcomers:
    """Who was met, who is a stranger, and what each neighbour may still bring in."""

    def __init__(self, *, places: int, per_second: float, heaviest: int = 16_000) -> None:
        """`heaviest` is what all strangers may weigh together."""
        self._places = places
        self._heaviest = heaviest
        self._met: set[PeerId] = set()
        self._strangers: dict[PeerId, int] = {}
        self._weight = 0
        self._refused: dict[PeerId, float] = {}
        self._chosen: set[PeerId] = set()
        self._from_others = RateLimit(rate=per_second, burst=AT_ONCE)
        self._from_chosen = RateLimit(rate=per_second, burst=CHOSEN_AT_ONCE)

    def meet(self, peer: PeerId, *, chosen: bool) -> None:
        """Take in that a connection to a peer stands, and whether we dialled it."""
        self._met.add(peer)
        self._weight -= self._strangers.pop(peer, 0)
        (self._chosen.add if chosen else self._chosen.discard)(peer)

    def part(self, peer: PeerId, *, held: bool) -> None:
        """Take in that no connection to a peer stands any more; one that the registry holds stays met."""
        self._chosen.discard(peer)
        if not held:
            self._met.discard(peer)

    def has_met(self, node: PeerId) -> bool:
        """Say whether a connection to a node ever stood."""
        return node in self._met

    def allowance(self, via: PeerId, now: float) -> int:
        """Return how many strangers a neighbour may bring in now."""
        return self._pace(via).left(via, now)

    def places_for(
        self,
        word: Signed,
        via: PeerId | None,
        now: float,
        *,
        held: Collection[PeerId],
        fresh: bool,
        lost: Callable[[], list[PeerId]],
    ) -> list[PeerId]:
        """Give a word a place and room for its weight; return who has to be forgotten for it. Raise `LimitReached`."""
        node, weight = word.record.node, weight_of(word) if via else 0
        newcomer = node not in held
        if newcomer:
            self.admit(node, via, now, weight=weight)
        # The dead make room for the living only; else two full registries swap their dead for ever.
        gone = self.lighten(node, weight, lost() if fresh else (), now)
        if newcomer and not gone:
            place = self.place(node, held=len(held), fresh=fresh, lost=lost)
            gone = [] if place is None else [place]
        self.held(node, weight=weight)
        return gone

    def admit(self, node: PeerId, via: PeerId | None, now: float, *, weight: int = 0) -> None:
        """Count a newcomer against the neighbour that brings it; raise `LimitReached` when that brought enough."""
        # Our own store brings in whom it likes, and whoever is connected introduces itself.
        if via is None or self.has_met(node):
            return
        if not self._pace(via).allows(via, now, cost=1 + weight / WEIGHT_OF_ONE):
            raise LimitReached(f"{via} introduces more unknown nodes than its limit")

    def has_room(self, node: PeerId, held: int) -> bool:
        """Say whether there is a free place for a newcomer among `held` nodes."""
        return held < self._places and (self.has_met(node) or not self._strangers_are_full())

    def place(
        self, node: PeerId, *, held: int, fresh: bool, lost: Callable[[], list[PeerId]]
    ) -> PeerId | None:
        """Give a newcomer a place; return whose it was, nobody's if one was free. Raise `LimitReached` when there is none."""
        gone = None
        if not self.has_room(node, held):
            # The dead make room for the living only; else two full registries swap their dead for ever.
            if not fresh:
                raise LimitReached(f"no room for {node}, which has been silent")
            gone = self.make_room(node, lost())
        return gone

    def make_room(self, node: PeerId, lost: Sequence[PeerId]) -> PeerId:
        """Choose whose place a newcomer takes, `lost` in order; raise `LimitReached` when nobody's."""
        gone = next((n for n in lost if n in self._strangers), None)
        if gone is None and lost and (self.has_met(node) or not self._strangers_are_full()):
            gone = lost[0]
        if gone is None and self.has_met(node) and self._strangers:
            gone = next(reversed(self._strangers))
        if gone is None:
            raise LimitReached(f"the registry already contains {self._places:,} nodes")
        return gone

    def too_heavy(self, node: PeerId, weight: int) -> bool:
        """Say whether strangers would weigh too much with this of a node."""
        if not weight or node in self._met:
            return False
        return self._weight - self._strangers.get(node, 0) + weight > self._heaviest

    def refuses(self, node: PeerId, now: float) -> bool:
        """Say whether a node's word was too heavy a moment ago, so that it is not worth fetching."""
        return self._refused.get(node, now) > now

    def lighten(
        self, node: PeerId, weight: int, lost: Sequence[PeerId], now: float
    ) -> list[PeerId]:
        """Choose whose places are given up, of the `lost`, for room for so heavy a word; raise `LimitReached`."""
        gone: list[PeerId] = []
        if not self.too_heavy(node, weight):
            return gone
        over = self._weight - self._strangers.get(node, 0) + weight - self._heaviest
        for heavy in lost:
            if heavy != node and (its := self._strangers.get(heavy)):
                gone.append(heavy)
                over -= its
                if over <= 0:
                    return gone
        self._refused.pop(node, None)
        if len(self._refused) >= MAX_REFUSED:
            del self._refused[next(iter(self._refused))]
        self._refused[node] = now + REFUSED_SECONDS
        words = f"unknown nodes have reached their limit of services, so {node} is refused"
        raise LimitReached(f"{words} (registry.stranger_services)")

    def held(self, node: PeerId, *, weight: int = 0) -> None:
        """Take in that the registry holds a node's word from now on, which weighs so much."""
        if node not in self._met:
            self._weight += weight - self._strangers.get(node, 0)
            self._strangers[node] = weight

    def forget(self, node: PeerId) -> None:
        """Take in that a node lost its place."""
        self._weight -= self._strangers.pop(node, 0)
        self._met.discard(node)

    def _strangers_are_full(self) -> bool:
        return len(self._strangers) >= self._places - self._places // KEPT_FOR_MET

    def _pace(self, via: PeerId) -> RateLimit:
        return self._from_chosen if via in self._chosen else self._from_others
