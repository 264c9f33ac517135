"""Admission of peers: which ones this node hears and answers, by its access list, their rate of questions and their offences."""

import logging
from collections import Counter
from contextlib import suppress

from registry.bounded import put_newest
from registry.clock import Clock
from registry.errors import LimitReached, MeshError
from registry.intake.access_list import AccessList, KeptOut
from registry.intake.rate import MAX_BUCKETS, RateLimit
from registry.mesh import Mesh
from registry.records import PeerId

log = logging.getLogger("modelvine.registry")

OFFENCES = 20
"""Offences at once that are forgiven: what one version of modelvine may do to another by mistake."""

LIE = 5.0
"""Offences that a wrong answer counts as: it was asked for, waited for and read, all of its megabytes."""

FORGIVEN_PER_SECOND = 0.1

BARRED_SECONDS = 300.0
"""Seconds for which a barred peer is neither heard nor answered."""

# The longest exchange that makes sense is about 70 questions; an answer may take a pass over the whole registry.
QUESTIONS_PER_SECOND = 20.0
QUESTIONS_AT_ONCE = 100.0


class Penalties:
    """Counts offences by peer; time is an argument."""

    def __init__(self) -> None:
        self._offences = RateLimit(rate=FORGIVEN_PER_SECOND, burst=OFFENCES)
        self._barred_until: dict[PeerId, float] = {}

    def note_offence(self, peer: PeerId, now: float, *, weight: float = 1.0) -> bool:
        """Count an offence; return whether it bars the peer from now on."""
        if self.is_barred(peer, now) or self._offences.allows(peer, now, cost=weight):
            return False
        put_newest(self._barred_until, peer, now + BARRED_SECONDS, limit=MAX_BUCKETS)
        return True

    def is_barred(self, peer: PeerId, now: float) -> bool:
        """Return whether a peer is barred; a peer whose time is over is removed from the list."""
        if now >= self._barred_until.get(peer, float("inf")):
            del self._barred_until[peer]
        return peer in self._barred_until


class Admission:
    """Decides about connected peers, and counts what it refuses."""

    def __init__(
        self, access: AccessList, mesh: Mesh, *, now: Clock, counters: Counter[str]
    ) -> None:
        self._access = access
        self._mesh = mesh
        self._now = now
        self._counters = counters
        self._penalties = Penalties()
        self.kept_out = KeptOut()
        self._question_limit = RateLimit(rate=QUESTIONS_PER_SECOND, burst=QUESTIONS_AT_ONCE)

    def admits(self, peer: PeerId) -> bool:
        """Return whether our lists admit a peer, and it is not barred at the moment."""
        why = self._access.objection(peer)
        if not why and self._penalties.is_barred(peer, self._now()):
            why = "too many malformed or forged frames"
        if why:
            self.note_kept_out(peer, why)
        return not why

    def note_kept_out(self, peer: PeerId, why: str) -> None:
        """Count a frame, record or question of a peer that is not admitted."""
        self._counters["kept_out"] += 1
        self.kept_out.note(peer, why)

    def require_admitted(self, asker: PeerId) -> None:
        """Raise `LimitReached` unless a peer may ask a question now."""
        if not self.admits(asker):
            raise LimitReached(f"{asker} is not admitted here")
        if not self._question_limit.allows(asker, self._now()):
            self._counters["questions_refused"] += 1
            log.warning("refused a question: %s asks too often", asker)
            raise LimitReached(f"{asker} asks too often")

    async def note_offence(self, peer: PeerId, *, weight: float = 1.0) -> None:
        """Note that a peer did what no honest peer does; disconnect it when it does so repeatedly."""
        self._counters["offences"] += 1
        if self._penalties.note_offence(peer, self._now(), weight=weight):
            self._counters["barred"] += 1
            log.warning(
                "disconnected %s for %d s: it sent too many malformed or forged frames",
                peer,
                BARRED_SECONDS,
            )
            with suppress(MeshError):
                await self._mesh.disconnect(peer)
