"""Lag of the event loop: whatever this node does waits as long; the worst of the last minute is told."""

import asyncio
from collections import deque

from registry.clock import Clock

PERIOD = 0.1
"""Seconds between two looks: whatever holds the loop for longer is seen, and ten wakes a second cost next to nothing."""

WINDOW = 60.0
"""Seconds for which the worst is remembered."""


class Lateness:
    """The greatest lateness of the last `WINDOW` seconds; time is an argument."""

    def __init__(self) -> None:
        # Ever later, ever smaller: an entry that a later one exceeds is never the worst again.
        self._worst: deque[tuple[float, float]] = deque()

    def note(self, late: float, now: float) -> None:
        """Take in that the loop woke `late` seconds too late."""
        while self._worst and self._worst[-1][1] <= late:
            self._worst.pop()
        self._worst.append((now, late))
        self._forget(now)

    def worst(self, now: float) -> float:
        """Return the greatest lateness in seconds, 0 when there was none."""
        self._forget(now)
        return max(self._worst[0][1], 0.0) if self._worst else 0.0

    async def watch(self, now: Clock) -> None:
        """Measure until cancelled."""
        while True:
            due = now() + PERIOD
            await asyncio.sleep(PERIOD)
            self.note(now() - due, now())

    def _forget(self, now: float) -> None:
        while self._worst and self._worst[0][0] <= now - WINDOW:
            self._worst.popleft()
