"""Retry-After of workers, and what is left of it. No I/O, time is an argument.

Who says `Retry-After` knows best when it may be of use again; asking sooner costs it what it has too little of. That holds also
where nobody else serves the model: then the caller is told how long to wait.
"""

LONGEST = 60.0
"""Seconds that a worker is left alone at most, whatever it said; then a request finds out whether it still says so."""

MAX_ADDRESSES = 4_096
"""Workers that are remembered; the one that spoke longest ago makes room, and is asked again sooner than it wished."""


class RetryAfter:
    """What workers said, by address."""

    def __init__(self) -> None:
        self._until: dict[str, float] = {}

    def told(self, address: str, seconds: float, now: float) -> None:
        """Take in that a worker wants to be left alone for so many seconds; its newest word counts."""
        self._until.pop(address, None)
        if len(self._until) >= MAX_ADDRESSES:
            del self._until[next(iter(self._until))]
        self._until[address] = now + min(seconds, LONGEST)

    def left(self, address: str, now: float) -> float:
        """Return for how many seconds a worker is still to be left alone, 0 for one that may be asked."""
        if not self._until:
            return 0.0
        left = self._until.get(address, now) - now
        if left <= 0:
            self._until.pop(address, None)
            return 0.0
        return left
