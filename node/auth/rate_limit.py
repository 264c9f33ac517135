"""Rate limits of one key: the generic cell rate algorithm for requests and tokens a minute, and a budget for a day. Pure.

Time is an argument, in seconds. Spending moves a due time forward; a request conforms while the due time is not too far ahead
(ATM Forum TM 4.1, 4.4.2). Other processes spend from the same limit: `spent` is what they do not know of yet, and `learn` takes
in what they have spent.
"""

import math
from dataclasses import dataclass
from functools import lru_cache

MINUTE, DAY = 60.0, 86_400.0

BURST_PART = 30
"""A thirtieth of a minute's limit may come at once: no minute admits more than both, and one request per other node."""


@dataclass(frozen=True, slots=True)
class Rate:
    """A limit of units in `period` seconds, of which `burst` may come at once."""

    limit: int
    burst: float
    period: float = MINUTE

    @property
    def interval(self) -> float:
        """Seconds per unit."""
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
    """State of the generic cell rate algorithm: one due time."""

    __slots__ = ("due", "spent")

    def __init__(self) -> None:
        self.due = 0.0
        """Time at which all spending is paid for."""
        self.spent = 0.0
        """Seconds spent here that other processes do not know of yet; negative if more was given back."""

    def wait(self, now: float, rate: Rate, cost: float) -> float:
        """Return the seconds until `cost` may be spent, 0 for now; nothing is spent."""
        cost = min(cost, rate.burst)
        ahead = max(self.due - now, 0.0) + (cost - rate.burst) * rate.interval
        # Sums of floating point numbers are slightly inexact.
        return ahead if ahead > 1e-6 else 0.0

    def spend(self, now: float, rate: Rate, cost: float) -> None:
        """Spend `cost` units, or give them back if negative."""
        seconds = cost * rate.interval
        self.due = max(self.due, now) + seconds
        self.spent += seconds

    def left(self, now: float, rate: Rate) -> int:
        """Return how many units may be spent at once at `now`."""
        return max(0, math.floor(rate.burst - max(self.due - now, 0.0) / rate.interval + 1e-6))

    def learn(self, now: float, ahead: float) -> None:
        """Take in how many seconds all processes together are ahead; what was spent here since the last report is added."""
        self.due = now + ahead + self.spent


class DayBudget:
    """Units spent in one day (UTC), by Unix time."""

    __slots__ = ("date", "spent", "used")

    def __init__(self) -> None:
        self.date = 0
        """Today: days since 1970."""
        self.used = 0.0
        """Units spent today."""
        self.spent = 0.0
        """Of these, the units that other processes do not know of yet."""

    def wait(self, wall: float, limit: int) -> float:
        """Return the seconds until the next day if today's units are spent, else 0."""
        self.turn(wall)
        return (self.date + 1) * DAY - wall if self.used >= limit else 0.0

    def spend(self, wall: float, units: float) -> None:
        """Spend units, or give them back if negative."""
        self.turn(wall)
        self.used += units
        self.spent += units

    def settle(self, wall: float, date: int, reserved: float, used: float) -> None:
        """Spend `used` units instead of those that were reserved on the day `date`; only that day gets its reservation back."""
        self.turn(wall)
        self.spend(wall, used - reserved if date == self.date else used)

    def learn(self, wall: float, date: int, used: float) -> None:
        """Take in what all processes together have used on the day `date`; what was spent here since the last report is added."""
        self.turn(wall)
        if date == self.date:
            self.used = used + self.spent

    def turn(self, wall: float) -> None:
        """Start from zero on a new day; a clock that steps back over midnight starts none.

        A longer step back corrects a clock that was wrong: that is a new day.
        """
        day = int(wall // DAY)
        if day not in (self.date, self.date - 1):
            self.date, self.used, self.spent = day, 0.0, 0.0
