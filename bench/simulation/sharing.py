"""How do thousands of replicas fit one process? Equal snapshots are one object, and a signature is checked once.

Neither changes what a replica decides. `Catalog.merge` is a pure function of immutable values, so its results may be
remembered; `wire.decode` is a pure function of bytes, so is its verdict. Every distinct frame is verified in full
once per process; one that fails is not remembered, and fails again.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from weakref import WeakValueDictionary

from registry import wire
from registry.catalog import Catalog, Signed
from registry.records import PeerId

_KNOWN: "WeakValueDictionary[tuple[int, int], SharedCatalog]" = WeakValueDictionary()

REMEMBERED_FRAMES = 300_000


@dataclass(frozen=True, slots=True, weakref_slot=True)
class SharedCatalog(Catalog):
    """A catalog that is the same object wherever it holds the same."""

    def merge(self, incoming: Iterable[Signed]) -> "Catalog":
        """Fold records in; equal results are one object."""
        words = list(incoming)
        if len(words) == 1 and (known := self._after(words[0])) is not None:
            return known
        merged = Catalog.merge(self, words)
        if merged is self:
            return self
        return _KNOWN.setdefault((merged.total, len(merged.held)), merged)  # type: ignore[arg-type]

    def _after(self, word: Signed) -> "SharedCatalog | None":
        # The digest of the outcome is known before the outcome is made.
        before = self.held.get(word.record.node)
        if before is not None and before.record.version >= word.record.version:
            return None
        weight = int.from_bytes(word.fingerprint)
        lost = int.from_bytes(before.fingerprint) if before else 0
        total = (self.total + weight - lost) % (1 << 256)
        return _KNOWN.get((total, len(self.held) + (before is None)))


@dataclass(frozen=True, slots=True)
class Beginning:
    """Stands for a catalog while a replica learns what it starts with: the same answers, without copies."""

    held: dict[PeerId, Signed]

    def merge(self, incoming: Iterable[Signed]) -> "Beginning":
        """Take everything in."""
        self.held.update((signed.record.node, signed) for signed in incoming)
        return Beginning(self.held)


def shared(words: Mapping[PeerId, Signed]) -> Catalog:
    """Make one catalog of many words."""
    return SharedCatalog().merge(words.values())


@contextmanager
def each_frame_verified_once() -> Iterator[None]:
    """Let `wire.decode` remember what it verified, for all replicas of this process together."""
    original = wire.decode
    wire.decode = lru_cache(maxsize=REMEMBERED_FRAMES)(original)  # type: ignore[assignment]
    try:
        yield
    finally:
        wire.decode = original
