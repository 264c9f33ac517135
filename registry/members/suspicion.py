"""Suspicion that is published, so that other nodes probe too, and awareness of this node's own slowness. No I/O.

Only nodes that are or were lately connected to the suspect publish it, and once one has, the others need not. Awareness, as in
memberlist, is the factor by which a slow node waits longer. Time is an argument.

Lifeguard's idea (Dadgar, Phillips, Currey: "Lifeguard: SWIM-ing with Situational Awareness", 2017): a node that misses the
answers of many is more likely to be deaf than they are to be dead.
"""

from registry.clock import RandomSource
from registry.records import PeerId
from registry.settings import RegistrySettings

MANY = 3
"""Peers with failed probes within `WINDOW` that show a fault of this node, if they are more than half of those probed."""

WINDOW = 15.0
"""Seconds for which the outcome of a probe counts."""

MAX_FACTOR = 4.0
"""The greatest factor; beyond it dead nodes would stay listed for too long."""

_AFTER_STALL = 10.0


class Awareness:
    """Factor on this node's suspicion times while it has reasons to distrust itself."""

    def __init__(self) -> None:
        self._outcomes: dict[PeerId, tuple[float, bool]] = {}
        self._stalled_until = float("-inf")
        self._stall_seconds = 0.0

    def note_probe(self, peer: PeerId, *, answered: bool, now: float) -> None:
        """Note how a probe of a connected peer ended."""
        self._outcomes.pop(peer, None)
        self._outcomes[peer] = (now, answered)
        # Oldest first. The bound in time is one in number as well, since peers are probed one by one.
        while now - next(iter(self._outcomes.values()))[0] > WINDOW:
            del self._outcomes[next(iter(self._outcomes))]

    def note_stall(self, seconds: float, now: float) -> None:
        """Note that our own event loop stalled for this long."""
        last = self._stall_seconds if now < self._stalled_until else 0.0
        self._stall_seconds = max(seconds, last)
        self._stalled_until = now + _AFTER_STALL

    def factor(self, now: float) -> float:
        """Return the factor on suspicion times: 1 when there is no reason for distrust."""
        recent = [
            answered for probed_at, answered in self._outcomes.values() if now - probed_at <= WINDOW
        ]
        missed = recent.count(False)
        factor = 2.0 if missed >= MANY and 2 * missed > len(recent) else 1.0
        if now < self._stalled_until:
            factor *= 1.0 + min(self._stall_seconds, 3.0)
        return min(factor, MAX_FACTOR)


_NEVER = float("-inf")

NEAR = 10.0
"""Times `suspicion` for which a node that was connected counts as near: only near nodes publish a doubt."""


class Suspicion:
    """This node's doubts that wait to be published, and those of others that were heard."""

    def __init__(self, settings: RegistrySettings, jitter: RandomSource) -> None:
        self._settings = settings
        self._jitter = jitter
        self._disconnected_at: dict[PeerId, float] = {}
        self._last_doubt: dict[PeerId, float] = {}
        self._pending: dict[PeerId, float] = {}

    def note_disconnected(self, node: PeerId, now: float) -> None:
        """Note that the connection to a node is gone."""
        self._disconnected_at[node] = now

    def note_doubt(self, node: PeerId, now: float) -> float:
        """Note another node's doubt about a node; return when to probe it: not at once if the last doubt was recent."""
        self._pending.pop(node, None)
        probe_at = max(now, self._last_doubt.get(node, _NEVER) + self._settings.suspicion)
        if probe_at <= now:
            self._last_doubt[node] = now
        return probe_at

    def schedule_doubt(self, node: PeerId, now: float, *, heard_at: float, linked: bool) -> None:
        """Schedule the publication of a doubt about a node that is, or lately was, connected.

        It is dropped if the node speaks or another node publishes a doubt first. None is scheduled if another node has
        doubted it since it was `heard_at`.
        """
        if (linked or node in self._disconnected_at) and self._last_doubt.get(
            node, _NEVER
        ) <= heard_at:
            # Long enough that most nodes hear the first doubt before they publish their own.
            wait = self._jitter() * self._settings.probe_timeout
            self._pending.setdefault(node, now + wait)

    def cancel_doubt(self, node: PeerId) -> None:
        """Drop the doubt about a node that spoke. Loss does not drop it: other nodes probe only when they hear a doubt."""
        self._pending.pop(node, None)

    def forget(self, node: PeerId) -> None:
        """Stop following a node."""
        for times in (self._disconnected_at, self._last_doubt, self._pending):
            times.pop(node, None)

    def next_due(self) -> float:
        """Return when the next doubt is due; infinity when none waits."""
        return min(self._pending.values(), default=float("inf"))

    def take_due(self, now: float) -> list[PeerId]:
        """Return the nodes whose doubt is due, each once, and count it as published."""
        due = [node for node, due_at in self._pending.items() if due_at <= now]
        for node in due:
            del self._pending[node]
            self._last_doubt[node] = now
        return due

    def tick(self, now: float) -> None:
        """Forget what is outdated."""
        suspicion = self._settings.suspicion
        for times, seconds in (
            (self._disconnected_at, NEAR * suspicion),
            (self._last_doubt, suspicion),
        ):
            for node in [n for n, noted_at in times.items() if now - noted_at > seconds]:
                del times[node]
