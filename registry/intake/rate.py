"""Rate limiter: token buckets by name, bounded in number. Time is an argument."""

from registry.bounded import put_newest
from registry.errors import LimitReached

MAX_BUCKETS = 16_384
"""Buckets held at most. Beyond that the least recently used one is evicted, and starts full again."""

FRAME_COST = 4096
"""Bytes that count as one more frame."""


class RateLimit:
    """Allows `rate` events a second for each name, and `burst` at once."""

    def __init__(self, *, rate: float, burst: float) -> None:
        self._rate = rate
        self._burst = burst
        self._buckets: dict[str, tuple[float, float]] = {}

    def allows(self, name: str, now: float, *, cost: float = 1.0) -> bool:
        """Take `cost` tokens from the bucket of `name`; return whether it had as many."""
        tokens = self._tokens(name, now)
        allowed = tokens >= cost
        remaining = tokens - cost if allowed else tokens
        put_newest(self._buckets, name, (remaining, now), limit=MAX_BUCKETS)
        return allowed

    def left(self, name: str, now: float) -> int:
        """Return how many whole tokens `name` has."""
        return int(self._tokens(name, now))

    def _tokens(self, name: str, now: float) -> float:
        tokens, last = self._buckets.get(name, (self._burst, now))
        return min(self._burst, tokens + (now - last) * self._rate)


class AuthorRate:
    """Rate limit of each author's frames, by their number and length. Raises `LimitReached`."""

    def __init__(self, *, rate: float) -> None:
        self._burst = max(rate * 10, 1.0)
        self._limit = RateLimit(rate=rate, burst=self._burst)

    def require(self, author: str, frame: bytes, now: float) -> None:
        """Raise unless an author may send a frame this long. Takes no tokens, since a frame that is no news costs nothing."""
        if len(frame) > FRAME_COST and self._limit.left(author, now) < self._cost(len(frame)):
            raise LimitReached(f"{author} sends too much")

    def spend(self, author: str, now: float, *, frame_bytes: int) -> None:
        """Take the tokens for an author's new frame; raise `LimitReached` when there are too few."""
        if not self._limit.allows(author, now, cost=self._cost(frame_bytes)):
            raise LimitReached(f"{author} sends too often")

    def _cost(self, frame_bytes: int) -> float:
        # The cost is capped, so that even at the lowest rate a first frame is accepted.
        return min(max(1.0, frame_bytes / FRAME_COST), self._burst)
