"""Awareness of a node's own slowness, as memberlist has it: how much more patient a slow node must be.

Time is an argument.

Lifeguard's idea (Dadgar, Phillips, Currey: "Lifeguard: SWIM-ing with Situational Awareness", 2017): whoever misses the
answers of many is more likely to be deaf than they are to be dead.
"""

from registry.records import PeerId

MANY = 3
"""Different peers whose probes fail at once, and more than half of those probed, say that it is us."""

WINDOW = 15.0
"""Seconds for which an outcome of a probe says something about us."""

MOST = 4.0
"""The greatest factor; beyond it the dead would stay in view for too long."""

_AFTER_STALL = 10.0


class Patience:
    """Multiplies our time for doubt while we have reasons to mistrust ourselves."""

    def __init__(self) -> None:
        self._outcomes: dict[PeerId, tuple[float, bool]] = {}
        self._stalled_until = float("-inf")
        self._stall = 0.0

    def note(self, peer: PeerId, *, answered: bool, now: float) -> None:
        """Take in how a probe of a connected peer ended."""
        self._outcomes.pop(peer, None)
        self._outcomes[peer] = (now, answered)
        # Oldest first, so the bound in time is one in number as well: peers are probed one by one.
        while now - next(iter(self._outcomes.values()))[0] > WINDOW:
            del self._outcomes[next(iter(self._outcomes))]

    def stalled(self, seconds: float, now: float) -> None:
        """Take in that our own event loop stood still for so long."""
        self._stall = max(seconds, self._stall if now < self._stalled_until else 0.0)
        self._stalled_until = now + _AFTER_STALL

    def factor(self, now: float) -> float:
        """Return by how much to multiply times of doubt: 1 when there is nothing to mistrust."""
        recent = [answered for at, answered in self._outcomes.values() if now - at <= WINDOW]
        missed = recent.count(False)
        factor = 2.0 if missed >= MANY and 2 * missed > len(recent) else 1.0
        if now < self._stalled_until:
            factor *= 1.0 + min(self._stall, 3.0)
        return min(factor, MOST)
