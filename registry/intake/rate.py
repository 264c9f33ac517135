"""Rate limit of strangers: token buckets by name, bounded in number; time is an argument."""

MAX_BUCKETS = 16_384
"""Buckets held at most; beyond that the one that spoke longest ago makes room, and starts full again."""


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
