"""How fast may one stranger speak? Token buckets by name, bounded in number; time is an argument."""

MAX_BUCKETS = 16_384
"""Buckets held at most; beyond that the one that spoke longest ago makes room, and starts full again."""


class Pace:
    """Allows `rate` events a second for each name, and `burst` at once."""

    def __init__(self, *, rate: float, burst: float) -> None:
        self._rate = rate
        self._burst = burst
        self._buckets: dict[str, tuple[float, float]] = {}

    def allows(self, name: str, now: float) -> bool:
        """Take one token of `name`; return whether there was one."""
        tokens, last = self._buckets.pop(name, (self._burst, now))
        tokens = min(self._burst, tokens + (now - last) * self._rate)
        allowed = tokens >= 1.0
        if len(self._buckets) >= MAX_BUCKETS:
            del self._buckets[next(iter(self._buckets))]
        self._buckets[name] = (tokens - 1.0 if allowed else tokens, now)
        return allowed
