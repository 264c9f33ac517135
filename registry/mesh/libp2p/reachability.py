"""Reachability of this node, as others found it: what those said who tried.

One peer that could not is enough to look for relays: a place there costs little, and whoever lies about it gains nothing.
"""

from collections.abc import Collection
from dataclasses import dataclass, field

from registry.records import PeerId

ASKED = 4
"""Peers whose answers are kept up to date; the more, the likelier that one sits on the far side of a NAT."""

REACHED_AGAIN = 600.0
"""Seconds until a peer that reached us is asked again."""

MISSED_AGAIN = 60.0
"""Seconds until a peer that could not reach us, or did not say, is asked again."""


@dataclass(slots=True)
class Reachability:
    """What peers found when they dialled us back. Times are seconds on any one clock that the caller keeps to."""

    _reached: dict[PeerId, bool] = field(default_factory=dict)
    _ask_again: dict[PeerId, float] = field(default_factory=dict)

    @property
    def hidden(self) -> bool:
        """Whether somebody could not reach us."""
        return not all(self._reached.values())

    def next(self, connected: Collection[PeerId], now: float) -> PeerId | None:
        """Return a peer to ask now whether it can dial us, if any."""
        self._reached = {p: reached for p, reached in self._reached.items() if p in connected}
        self._ask_again = {p: at for p, at in self._ask_again.items() if p in connected}
        ready = sorted(p for p in connected if self._ask_again.get(p, now) <= now)
        known = [p for p in ready if p in self._reached]
        if known:
            return known[0]
        return ready[0] if ready and len(self._reached) < ASKED else None

    def answered(self, peer: PeerId, reached: bool | None, now: float) -> None:  # noqa: FBT001 (a verdict, or none)
        """Note what a peer found; `None` when it did not try."""
        if reached is not None:
            self._reached[peer] = reached
        self._ask_again[peer] = now + (REACHED_AGAIN if reached else MISSED_AGAIN)
