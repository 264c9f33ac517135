"""Connection limits, in total and by address; idle connections make room for new ones.

Whoever opens connections and sends nothing, or little by little, so loses his own: those of the address that has most are
closed first, and of these the ones whose time would be up first. A connection with a request under way is never closed.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import inf
from types import MappingProxyType
from typing import Protocol

from node.auth.forwarded import NO_PROXIES, TrustedProxies

_SHARE = 64  # of the places, as many at once are made free: looking through all of them is done the more rarely


EVENTS: Mapping[str, str] = MappingProxyType(
    {
        "evicted_by_all": "the node closed an idle connection, because all connections were in use",
        "evicted_by_own": "the node closed an idle connection for a new one of the same address",
        "refused_to_all": "a connection got 503, because requests in flight used all connections",
        "refused_to_own": "a connection got 503, because requests in flight used all connections of its address",
    }
)
"""What is counted, and what it means."""


@dataclass(slots=True)
class Crowd:
    """How many are connected now, and what happened to those who came."""

    open: int = 0
    events: Counter[str] = field(default_factory=Counter)


class Caller(Protocol):
    """One connection."""

    @property
    def ends(self) -> float:
        """When it will be closed if nothing comes; infinite while a request of its is under way."""

    def end(self) -> None:
        """Close it."""


class ConnectionLimits:
    """Counts callers by address."""

    def __init__(
        self, most: int, most_of_one: int, crowd: Crowd, *, proxies: TrustedProxies = NO_PROXIES
    ) -> None:
        """`crowd` is counted in, and may be others' too. Each of the `proxies` may have all places: it has them for many."""
        self._most, self._most_of_one = most, most_of_one
        self._proxies = proxies
        self._crowd = crowd
        self._callers: dict[str, set[Caller]] = {}
        self._count = 0

    def enter(self, caller: Caller, address: str) -> bool:
        """Take a caller in, making room where there is none; return whether there is."""
        own = self._callers.get(address, set())
        full = len(own) >= self._most_of_one and address not in self._proxies
        if full and not self._clear("own", [(address, own)]):
            return False
        if self._count >= self._most and not self._clear(
            "all", sorted(self._callers.items(), key=lambda held: -len(held[1]))
        ):
            return False
        self._callers.setdefault(address, set()).add(caller)
        self._count += 1
        self._crowd.open += 1
        return True

    def leave(self, caller: Caller, address: str) -> None:
        """Forget a caller; one that was closed to make room is forgotten already."""
        own = self._callers.get(address, set())
        if caller in own:
            own.remove(caller)
            self._count -= 1
            self._crowd.open -= 1
        if not own:
            self._callers.pop(address, None)

    def _clear(self, whose: str, places: Iterable[tuple[str, set[Caller]]]) -> bool:
        for address, callers in places:
            idle = sorted((c for c in callers if c.ends < inf), key=lambda caller: caller.ends)
            for caller in idle[: max(1, self._most_of_one // _SHARE)]:
                self.leave(caller, address)
                caller.end()
                self._crowd.events[f"evicted_by_{whose}"] += 1
            if idle:
                return True
        self._crowd.events[f"refused_to_{whose}"] += 1
        return False
