"""Clock and chance as arguments: no rule reads the time or draws a random number, so that tests control both."""

from typing import Protocol


class Clock(Protocol):
    """Seconds: monotonic ones where a parameter is called `now`, those since 1970 where it is called `wall`."""

    def __call__(self) -> float:
        """Return the seconds."""


class Chance(Protocol):
    """The only source of randomness of the code that holds it."""

    def __call__(self) -> float:
        """Return a number in [0, 1)."""
