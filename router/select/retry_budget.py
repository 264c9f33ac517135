"""Retry budget: second attempts are a share of recent requests, so that trying again cannot double a load.

What died with many requests under way is no load of its own: as many of them as were there may go elsewhere, once.
No I/O, time is an argument.
"""

from dataclasses import dataclass

WINDOW = 10
"""Seconds that count as recent."""

RESERVE = 30
"""Second attempts within `WINDOW` that are always allowed: with few requests a share of them would be none."""

MAX_PLACES = 4_096
"""Machines and workers that are remembered to have died lately; the one that died longest ago makes room."""


@dataclass(slots=True)
class _Death:
    until: float
    left: int


class Budget:
    """What is left to spend on second attempts; `share` is what they may be of recent requests."""

    def __init__(self, share: float) -> None:
        self._share = share
        self._second = 0
        self._requests = [0] * WINDOW
        self._retries = [0] * WINDOW
        self._deaths: dict[str, _Death] = {}

    def began(self, now: float) -> None:
        """A request came in."""
        self._turn(now)
        self._requests[self._second % WINDOW] += 1

    def spend(self, place: str, under_way: int, now: float) -> bool:
        """Say whether what failed at a place may be tried again, and take it as done.

        `under_way` is how many requests were there when this one failed, itself included.
        """
        self._turn(now)
        death = self._deaths.get(place)
        if death is None or death.until <= now:
            death = self._remember(place, _Death(now + WINDOW, under_way))
        if death.left > 0:
            death.left -= 1
            return True
        if sum(self._retries) >= max(RESERVE, self._share * sum(self._requests)):
            return False
        self._retries[self._second % WINDOW] += 1
        return True

    def _turn(self, now: float) -> None:
        second = int(now)
        if second <= self._second:
            return
        for gone in range(max(self._second + 1, second - WINDOW + 1), second + 1):
            self._requests[gone % WINDOW] = self._retries[gone % WINDOW] = 0
        self._second = second

    def _remember(self, place: str, death: _Death) -> _Death:
        self._deaths.pop(place, None)
        if len(self._deaths) >= MAX_PLACES:
            del self._deaths[next(iter(self._deaths))]
        self._deaths[place] = death
        return death
