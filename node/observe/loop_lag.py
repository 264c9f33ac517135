"""Lag of the event loop, by which everything on this node is delayed; the greatest of the last minute is reported."""

import asyncio
import time
from collections import deque

from registry.clock import Clock

PERIOD = 0.1
"""Seconds between two samples: anything that blocks the loop for longer is seen, and ten wakes a second cost next to nothing."""

WINDOW = 60.0
"""Seconds for which the greatest value is remembered."""


class WindowMaximum:
    """Maximum of the numbers of the last `WINDOW` seconds; time is an argument."""

    def __init__(self) -> None:
        # Times increase and numbers decrease: an entry that a later one exceeds is never the maximum again.
        self._worst: deque[tuple[float, float]] = deque()

    def note(self, number: float, now: float) -> None:
        """Add a number."""
        while self._worst and self._worst[-1][1] <= number:
            self._worst.pop()
        self._worst.append((now, number))
        self._forget(now)

    def worst(self, now: float) -> float:
        """Return the maximum, or 0 if there is none above."""
        self._forget(now)
        return max(self._worst[0][1], 0.0) if self._worst else 0.0

    def _forget(self, now: float) -> None:
        while self._worst and self._worst[0][0] <= now - WINDOW:
            self._worst.popleft()


class LoopLag:
    """Lag of one thread's event loop, and the CPU time that the thread used meanwhile."""

    def __init__(self) -> None:
        self.lag = WindowMaximum()
        """Lag of the loop, in seconds."""
        self.busy = WindowMaximum()
        """CPU time of its thread between two samples, in seconds; lag without it comes from the machine."""

    async def watch(self, now: Clock, busy: Clock = time.thread_time) -> None:
        """Measure until cancelled."""
        while True:
            due, before = now() + PERIOD, busy()
            await asyncio.sleep(PERIOD)
            woke = now()
            self.lag.note(woke - due, woke)
            self.busy.note(busy() - before, woke)
