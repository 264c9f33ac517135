"""Neighbours that a node keeps connected: its own choice among the nodes that can be dialled."""

from collections.abc import Callable
from functools import lru_cache
from hashlib import sha256
from itertools import islice

from registry.catalog import Catalog
from registry.intake import dialable
from registry.records import PeerId, Record, Standing

KEPT_NODES = 64
"""Addresses that are passed to the mesh; it dials only as many of them as it needs."""

PAUSE = 0.5
"""Minimum seconds between two choices: each takes a pass over the whole registry, and not every newcomer is worth one."""


class Neighbours:
    """Remembers the last choice, and when the next is allowed. Time is an argument."""

    def __init__(self) -> None:
        self.stale = False
        self._chosen: tuple[str, ...] = ()
        self._next_choice_at = float("-inf")

    def choose(
        self, own_record: Record, catalog: Catalog, admits: Callable[[PeerId], bool], now: float
    ) -> tuple[str, ...] | None:
        """Return a new choice; `None` if it equals the last, or if it is too soon, which sets `stale`."""
        self.stale = now < self._next_choice_at
        if self.stale:
            return None
        self._next_choice_at = now + PAUSE
        before, self._chosen = self._chosen, worth_keeping(own_record, catalog, admits)
        return None if self._chosen == before else self._chosen


def worth_keeping(
    own_record: Record, catalog: Catalog, admits: Callable[[PeerId], bool]
) -> tuple[str, ...]:
    """Choose addresses to keep connected: one of each node, in an order of this node's own."""
    together = dialable.is_local_only(own_record.reach)
    # Each node has its own order, the same each time: otherwise all would dial the same few.
    ranked = sorted(catalog.held, key=lambda node: _rank(own_record.node, node))
    # A connection through a relay is made when a request needs it: a node that needs a relay dials others itself.
    worth = (
        address
        for node in ranked
        if node != own_record.node and admits(node)
        if (record := catalog.held[node].record).standing is not Standing.LEFT
        for address in dialable.direct_addresses(record.reach, node, together=together)[:1]
    )
    return tuple(islice(worth, KEPT_NODES))


@lru_cache(maxsize=32_768)
def _rank(own_node: PeerId, node: PeerId) -> bytes:
    return sha256((own_node + node).encode()).digest()
