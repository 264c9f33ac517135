"""Admission of peers: whom we hear, and whom we answer. The lists, what a peer may ask, and the peers that we cut off."""

import logging
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress

from registry.errors import LimitReached, MeshError
from registry.intake.access_list import Guests
from registry.intake.penalties import BARRED_SECONDS, Blame
from registry.intake.rate import Pace
from registry.records import PeerId

log = logging.getLogger("modelvine.registry")

# The longest exchange that makes sense is about 70 questions; an answer may take a pass over the whole registry.
QUESTIONS_PER_SECOND = 20.0
QUESTIONS_AT_ONCE = 100.0


class Admission:
    """Decides about connected peers, and counts what it refuses."""

    def __init__(
        self,
        guests: Guests,
        *,
        now: Callable[[], float],
        counters: Counter[str],
        disconnect: Callable[[PeerId], Awaitable[None]],
    ) -> None:
        self._guests = guests
        self._now = now
        self._counters = counters
        self._disconnect = disconnect
        self._blame = Blame()
        self._askers = Pace(rate=QUESTIONS_PER_SECOND, burst=QUESTIONS_AT_ONCE)

    def admits(self, peer: PeerId) -> bool:
        """Say whether a peer is on our lists, and not cut off at the moment."""
        admitted = self._guests.admits(peer) and not self._blame.barred(peer, self._now())
        self._counters["kept_out"] += not admitted
        return admitted

    def require(self, asker: PeerId) -> None:
        """Raise `LimitReached` unless a peer may ask us something now."""
        if not self.admits(asker):
            raise LimitReached(f"{asker} is not let in here")
        if not self._askers.allows(asker, self._now()):
            self._counters["questions_refused"] += 1
            log.warning("refused a question: %s asks too often", asker)
            raise LimitReached(f"{asker} asks too often")

    async def offence(self, peer: PeerId) -> None:
        """Take in that a peer did what no honest peer does; cut it off when it does so again and again."""
        self._counters["offences"] += 1
        if self._blame.offence(peer, self._now()):
            self._counters["barred"] += 1
            log.warning(
                "cut off %s for %d s: too much that it sends is malformed or forged",
                peer,
                BARRED_SECONDS,
            )
            with suppress(MeshError):
                await self._disconnect(peer)
