"""Book of a relay: who is reached through it, and by how many. A book of reservations and circuits, each bounded.

Full means refuse: nobody who is served already is put out for a newcomer.
"""

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field
from enum import Enum, auto

from registry.records import PeerId


@dataclass(frozen=True, slots=True)
class RelayLimits:
    """What a relay gives away at most; `seconds` and `size` (in bytes) for one circuit, `lease` for a reservation."""

    reservations: int
    circuits: int
    circuits_per_peer: int
    size: int
    seconds: float
    lease: float


class Refusal(Enum):
    """Why a relay does not do what it was asked."""

    NO_RESERVATION = auto()
    TOO_MANY = auto()


@dataclass(slots=True)
class RelayBook:
    """What a relay has promised. Times are seconds on any one clock that the caller keeps to."""

    limits: RelayLimits
    _expiry: dict[PeerId, float] = field(default_factory=dict)
    _circuits: Counter[PeerId] = field(default_factory=Counter)

    @property
    def circuits(self) -> int:
        """How many circuits are open; each has two ends."""
        return self._circuits.total() // 2

    def reservations(self, now: float) -> int:
        """How many peers may be reached through us."""
        return sum(expiry > now for expiry in self._expiry.values())

    def reserve(self, peer: PeerId, now: float) -> Refusal | None:
        """Let a peer be reached through us for a lease from now on, unless too many are."""
        if peer not in self._expiry and self.reservations(now) >= self.limits.reservations:
            return Refusal.TOO_MANY
        self._expiry = {p: expiry for p, expiry in self._expiry.items() if expiry > now}
        self._expiry[peer] = now + self.limits.lease
        return None

    def stay(self, connected: Collection[PeerId]) -> None:
        """Forget the reservations of peers that are not connected any more."""
        self._expiry = {p: expiry for p, expiry in self._expiry.items() if p in connected}

    def open(self, asker: PeerId, target: PeerId, now: float) -> Refusal | None:
        """Count a circuit, unless the target may not be reached or one of the two has too many."""
        if self._expiry.get(target, now) <= now:
            return Refusal.NO_RESERVATION
        fullest = max(self._circuits[asker], self._circuits[target])
        if self.circuits >= self.limits.circuits or fullest >= self.limits.circuits_per_peer:
            return Refusal.TOO_MANY
        self._circuits.update((asker, target))
        return None

    def close(self, asker: PeerId, target: PeerId) -> None:
        """Count a circuit no longer."""
        self._circuits.subtract((asker, target))
        self._circuits += Counter()  # what fell to nothing goes
