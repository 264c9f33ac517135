"""Places shared by peers: each may hold as many as are free, so neither one peer nor several together can hold all."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

from registry.errors import LimitReached
from registry.records import PeerId

_Key = TypeVar("_Key", bound=str)


def has_share(used: int, free: int) -> bool:
    """Return whether a holder of `used` places may take one more of those that are free.

    One holder gets half of all places, two a third each, and so on, as with dynamic thresholds of shared buffers.
    """
    return used < free


class Shares:
    """Places held by each peer, `limit` in total."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._held: Counter[PeerId] = Counter()

    @contextmanager
    def hold_place(self, peer: PeerId) -> Iterator[None]:
        """Hold a place for a peer; raise `LimitReached` if it has its share, or none is free."""
        if not has_share(self._held[peer], self._limit - self._held.total()):
            raise LimitReached(
                f"no more than {self._limit} at one time, and this peer has its share"
            )
        with holding(self._held, peer):
            yield


@contextmanager
def holding(counts: Counter[_Key], key: _Key) -> Iterator[None]:
    """Count a key for as long as the block runs; a key that holds nothing takes no memory."""
    counts[key] += 1
    try:
        yield
    finally:
        counts[key] -= 1
        if not counts[key]:
            del counts[key]
