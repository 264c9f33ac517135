"""Deadlines of members: which node's state changes next as time passes.

Holds the health of all members, in the order in which they fall silent. No I/O.

A tick that checked every node would cost time proportional to their number, four times a second. Living nodes fall silent
in the order in which they were last heard, whatever the lease is by then. Only suspects, which are few, are checked one by one.
"""

import heapq
from collections.abc import Iterator, Mapping
from typing import TypeVar, overload

from registry.members.liveness import MemberHealth, Status
from registry.records import PeerId

Other = TypeVar("Other")

_FOREVER = float("inf")


class MemberDeadlines(Mapping[PeerId, MemberHealth]):
    """Health of each node. Times are seconds, as in `MemberHealth.next_change_at`, whose arguments are passed through."""

    def __init__(self) -> None:
        self._health: dict[PeerId, MemberHealth] = {}
        self._suspects: dict[PeerId, None] = {}
        self._lost: dict[PeerId, None] = {}
        # Each living node was last heard at its bound or later, and is on the heap with it. Other heap entries are outdated.
        self._bounds: dict[PeerId, float] = {}
        self._heap: list[tuple[float, PeerId]] = []

    def __getitem__(self, node: PeerId) -> MemberHealth:
        return self._health[node]

    @overload
    def get(self, node: PeerId) -> MemberHealth | None: ...
    @overload
    def get(self, node: PeerId, default: MemberHealth | Other) -> MemberHealth | Other: ...
    def get(self, node: PeerId, default: object = None) -> object:
        """Return the health of a node. The inherited method makes two more calls, for each request to another node."""
        return self._health.get(node, default)

    def __iter__(self) -> Iterator[PeerId]:
        return iter(self._health)

    def __len__(self) -> int:
        return len(self._health)

    @property
    def living_count(self) -> int:
        """The number of nodes that are not lost."""
        return len(self._health) - len(self._lost)

    @property
    def lost_nodes(self) -> list[PeerId]:
        """The lost nodes, the one that was heard longest ago first."""
        return sorted(self._lost, key=lambda node: self._health[node].heard)

    def put(self, node: PeerId, health: MemberHealth) -> None:
        """Set a node's health."""
        self._health[node] = health
        self._suspects.pop(node, None)
        self._lost.pop(node, None)
        match health.contact:
            case Status.SUSPECT:
                self._suspects[node] = None
            case Status.LOST:
                self._lost[node] = None
            case Status.ALIVE | Status.UNREACHABLE:
                if health.heard < self._bounds.get(node, _FOREVER):
                    self._push_bound(node, health.heard)

    def remove(self, node: PeerId) -> None:
        """Stop following a node."""
        del self._health[node]
        self._suspects.pop(node, None)
        self._lost.pop(node, None)

    def pass_time(self, now: float, **times: float) -> list[PeerId]:
        """Apply the changes that are due at `now`; return the nodes whose health changed."""
        changed = [node for node in list(self._suspects) if self._pass_time(node, now, times)]
        while (node := self._longest_silent()) is not None and self._pass_time(node, now, times):
            changed.append(node)
        return changed

    def next_change_at(self, **times: float) -> float:
        """Return when `pass_time` next changes a node's health; infinity when it never does."""
        silent = self._longest_silent()
        checked = self._suspects if silent is None else (*self._suspects, silent)
        return min(
            (self._health[node].next_change_at(**times) for node in checked), default=_FOREVER
        )

    def _pass_time(self, node: PeerId, now: float, times: Mapping[str, float]) -> bool:
        before = self._health[node]
        after = before.at_time(now, **times)
        if after is before:
            return False
        self.put(node, after)
        return True

    def _longest_silent(self) -> PeerId | None:
        while self._heap:
            bound, node = self._heap[0]
            if self._bounds.get(node) == bound:
                if self._lives(node) and self._health[node].heard == bound:
                    return node
                del self._bounds[node]
                if self._lives(node):
                    self._push_bound(node, self._health[node].heard)
            heapq.heappop(self._heap)
        return None

    def _lives(self, node: PeerId) -> bool:
        return node in self._health and node not in self._suspects and node not in self._lost

    def _push_bound(self, node: PeerId, heard_at: float) -> None:
        self._bounds[node] = heard_at
        heapq.heappush(self._heap, (heard_at, node))
