"""Penalties of peers that did again and again what no honest peer does. No I/O."""

from registry.intake.rate import MAX_BUCKETS, Pace
from registry.records import PeerId

OFFENCES = 20
"""Offences at once that are forgiven: what a version of ours may do to another by mistake."""

FORGIVEN_PER_SECOND = 0.1

BARRED_SECONDS = 300.0
"""How long a peer that went beyond is neither heard nor answered."""


class Blame:
    """Counts offences by peer; time is an argument."""

    def __init__(self) -> None:
        self._offences = Pace(rate=FORGIVEN_PER_SECOND, burst=OFFENCES)
        self._barred: dict[PeerId, float] = {}

    def offence(self, peer: PeerId, now: float) -> bool:
        """Count an offence; return whether the peer is barred for it from now on."""
        if self.barred(peer, now) or self._offences.allows(peer, now):
            return False
        if len(self._barred) >= MAX_BUCKETS:
            del self._barred[next(iter(self._barred))]
        self._barred[peer] = now + BARRED_SECONDS
        return True

    def barred(self, peer: PeerId, now: float) -> bool:
        """Say whether a peer is barred; the end of its time takes it off the list."""
        if now >= self._barred.get(peer, float("inf")):
            del self._barred[peer]
        return peer in self._barred
