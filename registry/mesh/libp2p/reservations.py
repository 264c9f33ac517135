"""Reservations at relays, of which two are held, renewed, and replaced when lost; and reachability, as peers found it.

One peer that could not dial this node is enough to look for relays: a reservation costs little, and a peer that lies about it
gains nothing.
"""

import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from registry.members.backoff import Backoff
from registry.records import PeerId

ASKED = 4
"""Peers whose answers are kept up to date; with more, it is likelier that one is on the far side of a NAT."""

REACHED_AGAIN = 600.0
"""Seconds until a peer that reached us is asked again."""

MISSED_AGAIN = 60.0
"""Seconds until a peer that could not reach us, or did not say, is asked again."""


@dataclass(slots=True)
class Reachability:
    """What peers found when they dialled us back. Times are seconds on one clock of the caller's choice."""

    _reached: dict[PeerId, bool] = field(default_factory=dict)
    _ask_again: dict[PeerId, float] = field(default_factory=dict)
    _was_hidden: bool = False

    @property
    def is_hidden(self) -> bool:
        """Whether some peer could not reach us; while no peer has answered, the previous value.

        Otherwise a node whose only relay is gone for a moment would have to find out again before it reserves there.
        """
        return not all(self._reached.values()) if self._reached else self._was_hidden

    def next(self, connected: Collection[PeerId], now: float) -> PeerId | None:
        """Return the peer to ask now whether it can dial us, if any."""
        self._was_hidden = self.is_hidden
        self._reached = {p: reached for p, reached in self._reached.items() if p in connected}
        self._ask_again = {p: ask_at for p, ask_at in self._ask_again.items() if p in connected}
        ready = sorted(p for p in connected if self._ask_again.get(p, now) <= now)
        known = [p for p in ready if p in self._reached]
        if known:
            return known[0]
        return ready[0] if ready and len(self._reached) < ASKED else None

    def note_answer(self, peer: PeerId, reached: bool | None, now: float) -> None:  # noqa: FBT001 (a verdict, or none)
        """Note what a peer found; `None` when it did not try."""
        if reached is not None:
            self._reached[peer] = reached
        self._ask_again[peer] = now + (REACHED_AGAIN if reached else MISSED_AGAIN)


HELD = 2
"""Relays at which a reservation is held: when one goes, the other carries on."""

ADDRESSES = 4
"""Addresses of one relay that are passed on."""

RENEW_WITHIN = 120.0
"""Seconds after which a reservation is renewed at the latest: a relay states its lease by its own clock."""

_FIRST_PAUSE = 10.0
_LONGEST_PAUSE = 600.0


@dataclass(frozen=True, slots=True)
class _Place:
    addresses: tuple[str, ...]
    renew_at: float


@dataclass(slots=True)
class Reservations:
    """The reservations that a node holds. Times are seconds on one clock of the caller's choice."""

    own: PeerId
    rng: random.Random = field(default_factory=random.Random)
    _held: dict[PeerId, _Place] = field(default_factory=dict)
    _refused: Backoff[PeerId] = field(
        default_factory=lambda: Backoff[PeerId](_FIRST_PAUSE, _LONGEST_PAUSE)
    )

    def next(self, connected: Collection[PeerId], now: float) -> PeerId | None:
        """Return the peer to ask for a reservation now: one whose reservation must be renewed, else a possible relay."""
        for relay, reservation in self._held.items():
            if reservation.renew_at <= now:
                return relay
        if len(self._held) >= HELD:
            return None
        ready = [p for p in connected if p not in self._held and self._refused.is_due(p, now)]
        return self.rng.choice(sorted(ready)) if ready else None

    def note_granted(
        self, relay: PeerId, addresses: Sequence[str], lease: float, now: float
    ) -> None:
        """Note a reservation; of the relay's addresses, keep direct ones that end in its own id."""
        good = tuple(
            a for a in addresses if a.endswith(f"/p2p/{relay}") and "/p2p-circuit" not in a
        )
        renew_at = now + max(min(lease / 2, RENEW_WITHIN), 1.0)
        self._held[relay] = _Place(good[:ADDRESSES], renew_at)
        self._refused.forget(relay)

    def note_refused(self, peer: PeerId, now: float) -> None:
        """Note that a peer is not a relay, or refuses a reservation."""
        self._held.pop(peer, None)
        self._refused.note_failure(peer, now)

    def note_disconnected(self, peer: PeerId) -> None:
        """Note that the connection to a peer ended, and its reservation with it; it may come back as a relay."""
        self._held.pop(peer, None)
        self._refused.forget(peer)

    def clear(self) -> None:
        """Give up every reservation: peers reach us directly."""
        self._held.clear()

    @property
    def relays(self) -> frozenset[PeerId]:
        """The relays where a reservation is held."""
        return frozenset(self._held)

    @property
    def addresses(self) -> tuple[str, ...]:
        """Our multiaddrs at these relays."""
        return tuple(
            f"{address}/p2p-circuit/p2p/{self.own}"
            for _, reservation in sorted(self._held.items())
            for address in reservation.addresses
        )
