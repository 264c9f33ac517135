"""Rate limits of one key: the generic cell rate algorithm for requests and tokens a minute, and a budget for a day. Pure.

Time is an argument, in seconds. What is spent moves a due time on; a request conforms while that is not too far ahead (ATM
Forum TM 4.1, 4.4.2). Other processes spend from the same limit: `spent` is what they have not heard of yet, and `learn` what
they have spent.
"""

import math
from dataclasses import dataclass
from functools import lru_cache

MINUTE, DAY = 60.0, 86_400.0

BURST_PART = 30
"""A thirtieth of what a minute allows may come at once: in no minute more than both, and one for each other node."""


@dataclass(frozen=True, slots=True)
class Rate:
    """A number of units in `period` seconds, of which `burst` may come at once."""

    limit: int
    burst: float
    period: float = MINUTE

    @property
    def interval(self) -> float:
        """Seconds for one unit."""
        return self.period / self.limit


@lru_cache(maxsize=1024)
def requests_a_minute(limit: int) -> Rate:
    """Return the rate of so many requests a minute, evenly spread."""
    return Rate(limit, max(1, limit // BURST_PART))


@lru_cache(maxsize=1024)
def tokens_a_minute(limit: int) -> Rate:
    """Return the rate of so many tokens a minute: one request may take them all."""
    return Rate(limit, limit)


class Gcra:
    """One due time."""

    __slots__ = ("due", "spent")

    def __init__(self) -> None:
        self.due = 0.0
        """When all that was spent is paid for."""
        self.spent = 0.0
        """Seconds that were spent here since others last heard of it; negative where more came back."""

    def wait(self, now: float, rate: Rate, cost: float) -> float:
        """Return the seconds after which so much may be spent, 0 for now; nothing is spent."""
        cost = min(cost, rate.burst)
        ahead = max(self.due - now, 0.0) + (cost - rate.burst) * rate.interval
        # Sums of floating point numbers are a little off.
        return ahead if ahead > 1e-6 else 0.0

    def spend(self, now: float, rate: Rate, cost: float) -> None:
        """Spend so much, or have it back where it is negative."""
        seconds = cost * rate.interval
        self.due = max(self.due, now) + seconds
        self.spent += seconds

    def left(self, now: float, rate: Rate) -> int:
        """Return how many units may be spent at once now."""
        return max(0, math.floor(rate.burst - max(self.due - now, 0.0) / rate.interval + 1e-6))

    def learn(self, now: float, ahead: float) -> None:
        """Take in how far ahead all processes together are; what was spent here since they were told comes on top."""
        self.due = now + ahead + self.spent


class DayBudget:
    """Units spent in one day (UTC), by Unix time."""

    __slots__ = ("_day", "spent", "used")

    def __init__(self) -> None:
        self._day = 0
        self.used = 0.0
        """Units of today."""
        self.spent = 0.0
        """Those of them that others have not heard of yet."""

    def wait(self, wall: float, limit: int) -> float:
        """Return the seconds until a new day where today's units are spent, else 0."""
        self.turn(wall)
        return DAY - wall % DAY if self.used >= limit else 0.0

    def spend(self, wall: float, units: float) -> None:
        """Spend units, or have them back where they are negative."""
        self.turn(wall)
        self.used += units
        self.spent += units

    def learn(self, wall: float, used: float) -> None:
        """Take in what all processes together have used today; what was spent here since they were told comes on top."""
        self.turn(wall)
        self.used = used + self.spent

    def turn(self, wall: float) -> None:
        """Begin anew where it is another day."""
        day = int(wall // DAY)
        if day != self._day:
            self._day, self.used, self.spent = day, 0.0, 0.0
