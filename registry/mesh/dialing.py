"""Whom does a node dial next? Bootstrap peers until they answer; the others until it has enough peers."""

import random
from collections.abc import Collection
from dataclasses import dataclass, field

from registry.records import PeerId


@dataclass(frozen=True, slots=True)
class Target:
    """A peer that may be dialled, at any of its addresses."""

    peer: PeerId
    addresses: tuple[str, ...]
    bootstrap: bool


@dataclass(slots=True)
class _Patience:
    failures: int = 0
    not_before: float = 0.0


@dataclass(slots=True)
class Dialer:
    """Chooses targets; times are seconds on any one clock that the caller keeps to."""

    own: PeerId
    degree: int
    redial: float
    rng: random.Random = field(default_factory=random.Random)
    _targets: dict[PeerId, Target] = field(default_factory=dict)
    _patience: dict[PeerId, _Patience] = field(default_factory=dict)

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
        self._patience = {p: wait for p, wait in self._patience.items() if p in found}

    def due(self, connected: Collection[PeerId], now: float) -> list[Target]:
        """Choose whom to dial now: every lost bootstrap peer, and others up to `degree` peers."""
        ready = [
            target
            for peer, target in self._targets.items()
            if peer not in connected and self._patience.get(peer, _Patience()).not_before <= now
        ]
        bootstrap = [target for target in ready if target.bootstrap]
        others = [target for target in ready if not target.bootstrap]
        # A random choice: if all took the first, the first would carry the whole mesh.
        self.rng.shuffle(others)
        missing = self.degree - len(connected) - len(bootstrap)
        return bootstrap + others[: max(0, missing)]

    def failed(self, peer: PeerId, now: float) -> None:
        """Note a failed dial: the next waits longer, at most ten times `redial`, with jitter."""
        patience = self._patience.setdefault(peer, _Patience())
        patience.failures += 1
        wait = min(self.redial * 2 ** min(patience.failures - 1, 8), 10 * self.redial)
        # Two nodes that dial each other, or many that lost one, must not stay in step.
        patience.not_before = now + wait * self.rng.uniform(0.75, 1.25)

    def lost(self, peer: PeerId, now: float) -> None:
        """Note that a connection ended: its peer is dialled again after `redial`."""
        self._patience[peer] = _Patience(0, now + self.redial * self.rng.uniform(0.75, 1.25))

    def succeeded(self, peer: PeerId) -> None:
        """Note that a peer is connected."""
        self._patience.pop(peer, None)


def peer_in(address: str) -> PeerId:
    """Return the peer that an address ends in, empty when it names none."""
    _, _, peer = address.rpartition("/p2p/")
    return PeerId(peer if "/" not in peer else "")
