"""Rules of rendezvous: who is told of whom at a point, and when a node asks there. Decided here with values; nothing is sent.

A point serves whoever comes, so everything that it remembers is bounded. Full means that newcomers are refused.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum, auto
from hashlib import sha256

MAX_NAMES = 256
"""Meshes that a point remembers nodes of."""

MAX_REGISTERED = 4_096
"""Nodes that a point remembers, all meshes together."""

MAX_NAMES_OF_ONE = 4
"""Meshes that one node may register in."""

MAX_NAME_CHARACTERS = 256
MAX_ADDRESSES = 8
MAX_ADDRESS_BYTES = 256

MAX_TOLD = 32
"""Nodes told of in one answer; of more, as many are drawn at random, so that no node gets all callers."""

LONGEST_SECONDS = 7_200
"""The longest time that a point remembers a node without hearing from it."""

REGISTERED_SECONDS = 3_600
"""For how long we ask to be remembered."""

RENEW_SECONDS = 900.0
"""Seconds between our registrations: a point that was restarted has forgotten us."""

FEW = 3
"""With fewer connections to nodes of our mesh than this we ask for more."""

_FIRST_PAUSE = 10.0
_LONGEST_PAUSE = 600.0


class Verdict(Enum):
    """What a point says to a registration."""

    OK = auto()
    BAD_NAME = auto()
    BAD_PEER = auto()
    BAD_TIME = auto()
    FULL = auto()


@dataclass(frozen=True, slots=True)
class Registration:
    """Where a node says it can be dialled; `until` is on the point's own clock."""

    peer: bytes
    addresses: tuple[bytes, ...]
    until: float


def name_of(mesh: str, swarm_key: str | None) -> str:
    """Return the name under which nodes of one mesh register: it tells neither the mesh's word nor its key."""
    secret = f"modelvine/1/rendezvous\0{mesh}\0{swarm_key or ''}"
    return "modelvine/1/" + sha256(secret.encode()).hexdigest()[:32]


@dataclass(slots=True)
class Register:
    """What a point remembers."""

    rng: random.Random = field(default_factory=random.Random)
    _names: dict[str, dict[bytes, Registration]] = field(default_factory=dict)

    def add(self, name: str, given: Registration, now: float) -> Verdict:
        """Remember a node, in place of what it said before."""
        if not 0 < len(name) <= MAX_NAME_CHARACTERS:
            return Verdict.BAD_NAME
        sizes = [len(address) for address in given.addresses]
        if not 0 < len(sizes) <= MAX_ADDRESSES or max(sizes) > MAX_ADDRESS_BYTES:
            return Verdict.BAD_PEER
        if not now < given.until <= now + LONGEST_SECONDS:
            return Verdict.BAD_TIME
        if given.peer not in self._names.get(name, ()) and not self._room(name, given.peer, now):
            return Verdict.FULL
        self._names.setdefault(name, {})[given.peer] = given
        return Verdict.OK

    def remove(self, name: str, peer: bytes) -> None:
        """Forget a node."""
        registered = self._names.get(name, {})
        registered.pop(peer, None)
        if not registered:
            self._names.pop(name, None)

    def told(self, name: str, asker: bytes, most: int, now: float) -> list[Registration]:
        """Return nodes of a mesh, without whoever asks."""
        found = [r for r in self._names.get(name, {}).values() if r.until > now and r.peer != asker]
        most = min(most, MAX_TOLD) if most > 0 else MAX_TOLD
        return self.rng.sample(found, min(len(found), most))

    def _room(self, name: str, peer: bytes, now: float) -> bool:
        if self._full(name):
            self._forget(now)
        of_one = sum(peer in registered for registered in self._names.values())
        return of_one < MAX_NAMES_OF_ONE and not self._full(name)

    def _full(self, name: str) -> bool:
        registered = sum(map(len, self._names.values()))
        return registered >= MAX_REGISTERED or (
            name not in self._names and len(self._names) >= MAX_NAMES
        )

    def _forget(self, now: float) -> None:
        for name, peer in list(self._past(now)):
            self.remove(name, peer)

    def _past(self, now: float) -> Iterator[tuple[str, bytes]]:
        for name, registered in self._names.items():
            for peer, registration in registered.items():
                if registration.until <= now:
                    yield name, peer


@dataclass(slots=True)
class Rounds:
    """When a node goes to its points: at its start, to be remembered on, and while it has few connections."""

    rng: random.Random = field(default_factory=random.Random)
    _renew: float = float("-inf")
    _again: float = float("-inf")
    _pause: float = _FIRST_PAUSE

    def due(self, connected: int, now: float) -> bool:
        """Say whether to go now."""
        if connected >= FEW:
            self._pause = _FIRST_PAUSE
        return now >= self._renew or (connected < FEW and now >= self._again)

    def done(self, now: float) -> None:
        """Note that all points were asked; the next time is later the more often it was of no use."""
        self._renew = now + RENEW_SECONDS * self.rng.uniform(0.75, 1.0)
        self._again = now + self._pause * self.rng.uniform(0.75, 1.25)
        self._pause = min(2 * self._pause, _LONGEST_PAUSE)
