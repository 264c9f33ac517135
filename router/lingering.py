"""Slots that are still taken though nobody waits for an answer any more, because their workers work on.

Some workers finish what was cancelled. Their slots are free when the worker is, or after a bounded time: till then another
request would only wait there, where it cannot be seen.
"""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from registry.records import Service

LONGEST = 30.0
"""Seconds after which a slot is given back whatever its worker does."""

MAX_NOTES = 4_096
"""Requests that were left and whose slots nobody gave back yet; beyond that their slots come free at once."""

Free = Callable[[], Awaitable[object]]
"""Returns once a worker is free again."""


class Lingering:
    """What dialects note as they leave a request, and what becomes of its slot. Lives on one event loop."""

    def __init__(
        self, spawn: Callable[[Coroutine[Any, Any, None]], object], longest: float = LONGEST
    ) -> None:
        """`spawn` runs work until it ends or the node does."""
        self._spawn = spawn
        self._longest = longest
        self._noted: defaultdict[Service, list[Free]] = defaultdict(list)
        self.kept = 0
        """How many slots are taken now for which nobody waits."""

    def note(self, service: Service, free: Free) -> None:
        """A request to a worker is left before its end, and its worker may go on with it until `free` returns."""
        if sum(map(len, self._noted.values())) < MAX_NOTES:
            self._noted[service].append(free)

    def keeps(self, service: Service, release: Callable[[Service], None]) -> bool:
        """Say whether the slot of a request that is over stays taken; then it is released later."""
        if not self._noted or service not in self._noted:
            return False
        free = self._noted[service].pop()
        if not self._noted[service]:
            del self._noted[service]
        self.kept += 1
        self._spawn(self._wait(service, free, release))
        return True

    async def _wait(self, service: Service, free: Free, release: Callable[[Service], None]) -> None:
        try:
            async with asyncio.timeout(self._longest):
                await free()
        except TimeoutError:
            pass  # it was long enough
        finally:
            self.kept -= 1
            release(service)
