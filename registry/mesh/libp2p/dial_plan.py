"""Plan of whom to dial next: anybody while it lacks peers, bootstrap peers first; else those it misses, ever more rarely.

Missed are bootstrap peers, and peers that were connected and got lost: the first across a cut that has healed. Whatever fails
is tried again after a pause that doubles, up to ten times `redial` for whoever lacks peers, up to `RAREST` for the others.
"""

import random
from collections.abc import Collection
from dataclasses import dataclass, field

from registry.records import PeerId

RAREST = 300.0
"""Seconds between dials of a missed peer in the end, for a node that has enough others."""

GIVEN_UP = 12
"""Failed dials in a row after which a lost peer is missed no more; a bootstrap peer always is."""


@dataclass(frozen=True, slots=True)
class Target:
    """A peer that may be dialled, at any of its addresses."""

    peer: PeerId
    addresses: tuple[str, ...]
    bootstrap: bool


@dataclass(slots=True)
class _Pause:
    """How long a peer is left alone: since when, after how many failures, stretched by chance; and whether we had it."""

    since: float
    stretch: float
    failures: int = 0
    had: bool = False

    def ends(self, redial: float, longest: float) -> float:
        wait = redial * 2.0 ** min(max(self.failures - 1, 0), 16)
        return self.since + min(wait, longest) * self.stretch


@dataclass(slots=True)
class Dialer:
    """Chooses targets; times are seconds on any one clock that the caller keeps to."""

    own: PeerId
    degree: int
    redial: float
    rng: random.Random = field(default_factory=random.Random)
    _targets: dict[PeerId, Target] = field(default_factory=dict)
    _pauses: dict[PeerId, _Pause] = field(default_factory=dict)

    def aim(self, bootstrap: Collection[str], kept: Collection[str]) -> None:
        """Replace the candidates; addresses that name no peer, or ourselves, are left out."""
        found: dict[PeerId, Target] = {}
        for address in dict.fromkeys((*bootstrap, *kept)):
            peer = peer_in(address)
            if not peer or peer == self.own:
                continue
            known = found.get(peer, Target(peer, (), bootstrap=False))
            is_bootstrap = known.bootstrap or address in bootstrap
            found[peer] = Target(peer, (*known.addresses, address), is_bootstrap)
        self._targets = found
        self._pauses = {peer: pause for peer, pause in self._pauses.items() if peer in found}

    def due(self, connected: Collection[PeerId], now: float) -> list[Target]:
        """Choose whom to dial now: as many as lack to `degree`, bootstrap peers first; else whom we miss."""
        missing = self.degree - len(connected)
        if missing <= 0:
            missed = self.missed(connected)
            return [target for target in missed if self._is_ready(target, RAREST, now)]
        ready = [
            target
            for peer, target in self._targets.items()
            if peer not in connected and self._is_ready(target, 10 * self.redial, now)
        ]
        # A random choice: if all took the first, the first would carry the whole mesh.
        self.rng.shuffle(ready)
        return sorted(ready, key=lambda target: not target.bootstrap)[:missing]

    def missed(self, connected: Collection[PeerId]) -> list[Target]:
        """List whom we would dial sooner or later, although we have enough peers."""
        return [
            target
            for peer, target in self._targets.items()
            if peer not in connected and (target.bootstrap or self._is_missed(target))
        ]

    def failed(self, peer: PeerId, now: float) -> None:
        """Note a failed dial: the next waits twice as long."""
        pause = self._pauses.get(peer)
        failures, had = (pause.failures, pause.had) if pause else (0, False)
        self._pauses[peer] = _Pause(now, self._stretch(), failures + 1, had)

    def lost(self, peer: PeerId, now: float) -> None:
        """Note that a connection ended: its peer is dialled again after `redial`."""
        self._pauses[peer] = _Pause(now, self._stretch(), had=True)

    def succeeded(self, peer: PeerId) -> None:
        """Note that a peer is connected; if it was missed, the others may be there again as well."""
        pause = self._pauses.pop(peer, None)
        if pause and pause.had and pause.failures:
            for other in self._pauses.values():
                other.failures = 0 if other.had else other.failures

    def _is_ready(self, target: Target, longest: float, now: float) -> bool:
        pause = self._pauses.get(target.peer)
        return pause is None or pause.ends(self.redial, longest) <= now

    def _is_missed(self, target: Target) -> bool:
        pause = self._pauses.get(target.peer)
        if pause is None or not pause.had or pause.failures >= GIVEN_UP:
            return False
        # Through a relay only whoever lacks peers goes: an idle circuit is closed on purpose.
        return not all("/p2p-circuit/" in address for address in target.addresses)

    def _stretch(self) -> float:
        # Two nodes that dial each other, or many that lost one, must not stay in step.
        return self.rng.uniform(0.75, 1.25)


def peer_in(address: str) -> PeerId:
    """Return the peer that an address ends in, empty when it names none."""
    _, _, peer = address.rpartition("/p2p/")
    return PeerId(peer if "/" not in peer else "")
