"""Connection limits, in total and by address; idle connections make room for new ones.

A client that opens connections and sends nothing, or sends slowly, loses its own: connections of the address with the most are
closed first, and of these the ones that would time out first. A connection with a request in flight is never closed.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import inf
from types import MappingProxyType
from typing import Protocol

from node.auth.forwarded import NO_PROXIES, TrustedProxies

_SHARE = 64  # one in so many of an address's places is freed at once, so that the search for idle connections is rare


EVENTS: Mapping[str, str] = MappingProxyType(
    {
        "evicted_by_all": "the node closed an idle connection, because all connections were in use",
        "evicted_by_own": "the node closed an idle connection for a new one of the same address",
        "refused_to_all": "a connection got 503, because requests in flight used all connections",
        "refused_to_own": "a connection got 503, because requests in flight used all connections of its address",
    }
)
"""The counted events, and their meaning."""


@dataclass(slots=True)
class ConnectionCounts:
    """The number of open connections, and counts of `EVENTS`."""

    open: int = 0
    events: Counter[str] = field(default_factory=Counter)


class Caller(Protocol):
    """One connection of a caller."""

    @property
    def closes_at(self) -> float:
        """Time at which it is closed if nothing comes; infinite while a request is in flight."""

    def evict(self) -> None:
        """Close the connection at once."""


class ConnectionLimits:
    """Limits on the connections of a listener, counted by address."""

    def __init__(
        self,
        limit: int,
        per_address: int,
        counts: ConnectionCounts,
        *,
        proxies: TrustedProxies = NO_PROXIES,
    ) -> None:
        """`counts` may be shared. Each of the `proxies` may use all places, since it serves many callers."""
        self._limit, self._limit_per_address = limit, per_address
        self._proxies = proxies
        self._counts = counts
        self._callers: dict[str, set[Caller]] = {}
        self._count = 0

    def enter(self, caller: Caller, address: str) -> bool:
        """Admit a connection, closing idle ones if there is no room; return whether there is room."""
        callers = self._callers.get(address, set())
        full = len(callers) >= self._limit_per_address and address not in self._proxies
        if full and not self._clear("own", [(address, callers)]):
            return False
        if self._count >= self._limit and not self._clear(
            "all", sorted(self._callers.items(), key=lambda held: -len(held[1]))
        ):
            return False
        self._callers.setdefault(address, set()).add(caller)
        self._count += 1
        self._counts.open += 1
        return True

    def leave(self, caller: Caller, address: str) -> None:
        """Remove a connection; one that was closed to make room is removed already."""
        callers = self._callers.get(address, set())
        if caller in callers:
            callers.remove(caller)
            self._count -= 1
            self._counts.open -= 1
        if not callers:
            self._callers.pop(address, None)

    def _clear(self, whose: str, by_address: Iterable[tuple[str, set[Caller]]]) -> bool:
        for address, callers in by_address:
            idle = sorted(
                (c for c in callers if c.closes_at < inf), key=lambda caller: caller.closes_at
            )
            for caller in idle[: max(1, self._limit_per_address // _SHARE)]:
                self.leave(caller, address)
                caller.evict()
                self._counts.events[f"evicted_by_{whose}"] += 1
            if idle:
                return True
        self._counts.events[f"refused_to_{whose}"] += 1
        return False
