"""Clock and source of randomness as arguments: no rule reads the time or draws random numbers itself, so tests control both."""

from typing import Protocol


class Clock(Protocol):
    """Seconds: monotonic ones where a parameter is called `now`, those since 1970 where it is called `wall`."""

    def __call__(self) -> float:
        """Return the seconds."""


class RandomSource(Protocol):
    """The only source of randomness of the code that holds it."""

    def __call__(self) -> float:
        """Return a number in [0, 1)."""


def duration(seconds: float) -> str:
    """Format a duration for people: `0.42 ms`, `3.1 s`, `20 min`, `2 h 05 min`, `31 days`."""
    if seconds < 1:
        return f"{seconds * 1000:.3g} ms"
    if seconds < 120:
        return f"{seconds:.1f} s"
    minutes = int(seconds // 60)
    if minutes < 120:
        return f"{minutes} min"
    hours = minutes // 60
    return f"{hours} h {minutes % 60:02d} min" if hours < 48 else f"{hours // 24} days"
