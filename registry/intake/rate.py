"""Rate limit of strangers: token buckets by name, bounded in number; time is an argument."""

from registry.errors import LimitReached

MAX_BUCKETS = 16_384
"""Buckets held at most; beyond that the one that spoke longest ago makes room, and starts full again."""

FRAME_COST = 4096
"""Bytes that count as one frame more."""


class RateLimit:
    """Allows `rate` events a second for each name, and `burst` at once."""

    def __init__(self, *, rate: float, burst: float) -> None:
        self._rate = rate
        self._burst = burst
        self._buckets: dict[str, tuple[float, float]] = {}

    def allows(self, name: str, now: float, *, cost: float = 1.0) -> bool:
        """Take `cost` tokens of `name`; return whether there were as many."""
        tokens = self._tokens(name, now)
        allowed = tokens >= cost
        self._buckets.pop(name, None)
        if len(self._buckets) >= MAX_BUCKETS:
            del self._buckets[next(iter(self._buckets))]
        self._buckets[name] = (tokens - cost if allowed else tokens, now)
        return allowed

    def left(self, name: str, now: float) -> int:
        """Return how many whole tokens `name` has."""
        return int(self._tokens(name, now))

    def _tokens(self, name: str, now: float) -> float:
        tokens, last = self._buckets.get(name, (self._burst, now))
        return min(self._burst, tokens + (now - last) * self._rate)


class AuthorRate:
    """What each author may say: frames by their number and length. Raises `LimitReached`."""

    def __init__(self, *, rate: float) -> None:
        self._burst = max(rate * 10, 1.0)
        self._spent = RateLimit(rate=rate, burst=self._burst)

    def require(self, author: str, frame: bytes, now: float) -> None:
        """Raise unless an author may say something so long; what is no news costs it nothing, so nothing is taken yet."""
        if len(frame) > FRAME_COST and self._spent.left(author, now) < self._cost(len(frame)):
            raise LimitReached(f"{author} sends too much")

    def spend(self, author: str, now: float, *, frame_bytes: int) -> None:
        """Take in that an author says something new."""
        if not self._spent.allows(author, now, cost=self._cost(frame_bytes)):
            raise LimitReached(f"{author} sends too often")

    def _cost(self, frame_bytes: int) -> float:
        # However slow the pace, a first word is heard.
        return min(max(1.0, frame_bytes / FRAME_COST), self._burst)
