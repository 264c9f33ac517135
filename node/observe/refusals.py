"""Summary of refusals that happen too often for a log line each.

They are counted, and their number is logged once a minute.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping

from registry.clock import Clock

log = logging.getLogger("modelvine.registry")

LINES: Mapping[str, str] = {
    "strangers_refused": "refused %d frames of unknown nodes: a neighbour introduces more than registry.strangers_per_second",
    "frames_dropped": "dropped %d frames: a neighbour forwards more than its limit",
    "frames_bad": "refused %d frames that are malformed, forged or not their publisher's own",
    "frames_lost_in_queue": "lost %d frames: this node is too busy to read them, or mesh.queue is too small",
    "evicted_by_all": "closed %d idle connections: all connections were in use (web.connections)",
    "evicted_by_own": "closed %d idle connections of addresses that have more than web.connections_per_address",
    "refused_to_all": "refused %d connections: requests in flight use all connections (web.connections)",
    "refused_to_own": "refused %d connections: their address has no connection left (web.connections_per_address)",
}
"""The log line of each event, with the number of times that it happened."""

PERIOD = 5.0
"""Seconds between two readings of the counters."""

QUIET = 60.0
"""Least seconds between two lines about one event."""


class Refusals:
    """Counts that were logged of each event, and when; time is an argument."""

    def __init__(self) -> None:
        self._told: Counter[str] = Counter()
        self._last: dict[str, float] = {}

    def due(self, counts: Mapping[str, int], now: float) -> Iterable[tuple[str, int]]:
        """Yield the lines to be written now, each with its event's count since the previous line."""
        for event, line in LINES.items():
            since = counts.get(event, 0) - self._told[event]
            if since > 0 and now - self._last.get(event, float("-inf")) >= QUIET:
                self._told[event] += since
                self._last[event] = now
                yield line, since

    async def watch(self, counted: Callable[[], Mapping[str, int]], now: Clock) -> None:
        """Write the due lines, until cancelled."""
        while True:
            await asyncio.sleep(PERIOD)
            for line, since in self.due(counted(), now()):
                log.warning(line, since)
