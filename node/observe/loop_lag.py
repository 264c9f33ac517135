"""Lag of the event loop: whatever this node does waits as long; the worst of the last minute is told."""

import asyncio
import time
from collections import deque

from registry.clock import Clock

PERIOD = 0.1
"""Seconds between two looks: whatever holds the loop for longer is seen, and ten wakes a second cost next to nothing."""

WINDOW = 60.0
"""Seconds for which the worst is remembered."""


class WindowMaximum:
    """The greatest number of the last `WINDOW` seconds; time is an argument."""

    def __init__(self) -> None:
        # Ever later, ever smaller: an entry that a later one exceeds is never the worst again.
        self._worst: deque[tuple[float, float]] = deque()

    def note(self, number: float, now: float) -> None:
        """Take in a number."""
        while self._worst and self._worst[-1][1] <= number:
            self._worst.pop()
        self._worst.append((now, number))
        self._forget(now)

    def worst(self, now: float) -> float:
        """Return the greatest, 0 when there was none above."""
        self._forget(now)
        return max(self._worst[0][1], 0.0) if self._worst else 0.0

    def _forget(self, now: float) -> None:
        while self._worst and self._worst[0][0] <= now - WINDOW:
            self._worst.popleft()


class Lateness:
    """How late the loop of one thread woke, and for how long it computed meanwhile."""

    def __init__(self) -> None:
        self.lag = WindowMaximum()
        """Seconds by which the loop woke too late."""
        self.busy = WindowMaximum()
        """Seconds of processor time that its thread took between two looks; a lag without them is the machine's."""

    async def watch(self, now: Clock, busy: Clock = time.thread_time) -> None:
        """Measure until cancelled."""
        while True:
            due, before = now() + PERIOD, busy()
            await asyncio.sleep(PERIOD)
            woke = now()
            self.lag.note(woke - due, woke)
            self.busy.note(busy() - before, woke)
