"""What happens next? Virtual time: nothing passes but what was planned, and ties keep the order of planning."""

import heapq
from collections.abc import Callable

Action = Callable[[float], None]
"""Told the virtual time at which it runs."""


class Timeline:
    """A queue of actions by virtual time, in seconds."""

    def __init__(self) -> None:
        self.now = 0.0
        self._planned: list[tuple[float, int, Action]] = []
        self._count = 0

    def time(self) -> float:
        """Return the virtual time."""
        return self.now

    def at(self, when: float, action: Action) -> None:
        """Run `action` at `when`, or at once when that has passed."""
        self._count += 1
        heapq.heappush(self._planned, (max(when, self.now), self._count, action))

    def after(self, delay: float, action: Action) -> None:
        """Run `action` in `delay` seconds."""
        self.at(self.now + delay, action)

    def every(self, period: float, action: Action) -> None:
        """Run `action` again and again, first in one period."""

        def again(now: float) -> None:
            action(now)
            self.at(now + period, again)

        self.after(period, again)

    def run(self, until: float) -> None:
        """Let time pass up to `until`."""
        planned = self._planned
        while planned and planned[0][0] <= until:
            self.now, _, action = heapq.heappop(planned)
            action(self.now)
        self.now = until
