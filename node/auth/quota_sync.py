"""Sync of quotas: the spending of a site's processes and nodes, exchanged ten times a second.

No request waits for it. Between two rounds each process admits by its own counts, so all processes together exceed a limit by at
most one request per process, and one burst; the excess counts against the next requests. While the store does not answer, each
node counts for itself.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence

from node.auth.keys import QuotaSpending, QuotaStanding
from node.auth.quotas import Quotas
from node.auth.rate_limit import DAY
from registry.clock import Clock
from registry.errors import StoreUnavailable
from registry.store import Count, Counters

PERIOD = 0.1
"""Seconds between two rounds."""

MAX_KEYS = 2_000
"""Keys in one exchange with the store."""

_RATE_TTL, _DAY_TTL = 600.0, 2 * DAY


class OwnCounters:
    """Counters of one node in memory, for its processes."""

    def __init__(self, now: Clock) -> None:
        self._now = now
        self._counters: dict[str, tuple[float, float]] = {}
        """By name: the counter's value, and when it is forgotten."""

    async def count(self, counts: Sequence[Count]) -> Sequence[float]:
        """Add to counters, and return their new values."""
        now = self._now()
        for name in [name for name, (_, until) in self._counters.items() if until < now]:
            del self._counters[name]
        return [self._counted(count, now) for count in counts]

    def _counted(self, count: Count, now: float) -> float:
        stored, _ = self._counters.get(count.name, (0.0, 0.0))
        stands = (max(stored, now) if count.due else stored) + count.amount
        if count.amount:
            self._counters[count.name] = stands, max(now + count.ttl, stands if count.due else 0.0)
        return max(stands - now, 0.0) if count.due else stands


class QuotaSync:
    """Sync of one process's counts with those of its helpers and of other nodes."""

    def __init__(self, quotas: Quotas, counters: Counters) -> None:
        self._quotas = quotas
        self._counters = counters
        self._reported: dict[str, QuotaSpending] = {}
        self._listeners: list[Callable[[tuple[QuotaStanding, ...]], None]] = []

    def on_standing(self, listener: Callable[[tuple[QuotaStanding, ...]], None]) -> None:
        """Call `listener` with the standings after each exchange with the store."""
        self._listeners.append(listener)

    def hear(self, spendings: Iterable[QuotaSpending]) -> None:
        """Take in the spending of a helper process."""
        for spending in spendings:
            before = self._reported.get(spending.name)
            self._reported[spending.name] = _sum(before, spending) if before else spending

    async def run(self) -> None:
        """Run a round every `PERIOD` seconds, until cancelled."""
        while True:
            await asyncio.sleep(PERIOD)
            await self.round()

    async def round(self) -> None:
        """Report what was spent since the last round, and take in the standings of all processes together."""
        own = {spending.name: spending for spending in self._quotas.spent()}
        heard, self._reported = self._reported, {}
        spendings = [_sum(own.get(name), heard.get(name)) for name in {*own, *heard}]
        for index in range(0, len(spendings), MAX_KEYS):
            await self._tell(spendings[index : index + MAX_KEYS])

    async def _tell(self, spendings: Sequence[QuotaSpending]) -> None:
        try:
            amounts = await self._counters.count(
                [c for spending in spendings for c in _counts(spending)]
            )
        except StoreUnavailable:
            for spending in spendings:
                self._quotas.give_back(spending)
            return
        rows = zip(spendings, amounts[::3], amounts[1::3], amounts[2::3], strict=True)
        standings = tuple(
            QuotaStanding(spending.name, requests, tokens, day, spending.date)
            for spending, requests, tokens, day in rows
        )
        for standing in standings:
            self._quotas.learn(standing)
        for listener in self._listeners:
            listener(standings)


def _sum(one: QuotaSpending | None, other: QuotaSpending | None) -> QuotaSpending:
    if one is None or other is None:
        only = one or other
        if only is None:
            raise ValueError("nothing was spent")
        return only
    date = max(one.date, other.date)
    day = sum(each.day for each in (one, other) if each.date == date)
    requests, tokens = one.requests + other.requests, one.tokens + other.tokens
    return QuotaSpending(one.name, requests, tokens, day, date)


def _counts(spending: QuotaSpending) -> tuple[Count, Count, Count]:
    return (
        Count(f"requests:{spending.name}", spending.requests, _RATE_TTL, due=True),
        Count(f"tokens:{spending.name}", spending.tokens, _RATE_TTL, due=True),
        Count(f"day:{spending.date}:{spending.name}", spending.day, _DAY_TTL),
    )
