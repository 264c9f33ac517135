"""Suspicion that is told to others, so that they look too: those whose connections broke speak, and one of them for all.

No I/O.

Awareness of a node's own slowness, as memberlist has it: how much more patient a slow node must be.

Time is an argument.

Lifeguard's idea (Dadgar, Phillips, Currey: "Lifeguard: SWIM-ing with Situational Awareness", 2017): whoever misses the
answers of many is more likely to be deaf than they are to be dead.
"""

from registry.clock import Chance
from registry.records import PeerId
from registry.settings import RegistrySettings

MANY = 3
"""Different peers whose probes fail at once, and more than half of those probed, say that it is us."""

WINDOW = 15.0
"""Seconds for which an outcome of a probe says something about us."""

MOST = 4.0
"""The greatest factor; beyond it the dead would stay in view for too long."""

_AFTER_STALL = 10.0


class Awareness:
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


_NEVER = float("-inf")

NEAR = 10.0
"""Times `suspicion` for which a node that was connected counts as near: only who is near speaks."""


class Suspicion:
    """Our doubts that wait to be said, and those of others that were heard."""

    def __init__(self, settings: RegistrySettings, jitter: Chance) -> None:
        self._settings = settings
        self._jitter = jitter
        self._parted: dict[PeerId, float] = {}
        self._heard: dict[PeerId, float] = {}
        self._unsaid: dict[PeerId, float] = {}

    def parted(self, node: PeerId, now: float) -> None:
        """Take in that the connection to a node is gone."""
        self._parted[node] = now

    def hear(self, node: PeerId, now: float) -> float:
        """Take in another's doubt; return when to look for it: not at once where the last one was lately."""
        self._unsaid.pop(node, None)
        look = max(now, self._heard.get(node, _NEVER) + self._settings.suspicion)
        if look <= now:
            self._heard[node] = now
        return look

    def unreached(self, node: PeerId, now: float, *, heard: float, linked: bool) -> None:
        """Doubt a node aloud a little later, unless it speaks first, or somebody doubts it, or did since it was `heard`."""
        if (linked or node in self._parted) and self._heard.get(node, _NEVER) <= heard:
            # Long enough that who is first is heard by most of the others in time.
            wait = self._jitter() * self._settings.probe_timeout
            self._unsaid.setdefault(node, now + wait)

    def settle(self, node: PeerId) -> None:
        """Say nothing of a node, since it spoke. Its loss is no reason: only who hears of a doubt looks for it."""
        self._unsaid.pop(node, None)

    def forget(self, node: PeerId) -> None:
        """Follow a node no more."""
        for kept in (self._parted, self._heard, self._unsaid):
            kept.pop(node, None)

    def due(self) -> float:
        """Return when something is to be said; infinity when nothing waits."""
        return min(self._unsaid.values(), default=float("inf"))

    def said(self, now: float) -> list[PeerId]:
        """Name the nodes whose doubt is due, each once."""
        due = [node for node, at in self._unsaid.items() if at <= now]
        for node in due:
            del self._unsaid[node]
            self._heard[node] = now
        return due

    def tick(self, now: float) -> None:
        """Forget what was long ago."""
        suspicion = self._settings.suspicion
        for kept, seconds in ((self._parted, NEAR * suspicion), (self._heard, suspicion)):
            for node in [n for n, at in kept.items() if now - at > seconds]:
                del kept[node]
