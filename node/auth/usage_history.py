"""Usage of the last hour, by model and by the node that answered: ring buffers in memory, of fixed size.

It is filled from the rows that the usage log takes every few seconds, so that a request pays nothing for it. They include those
of other processes of this node.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from registry.clock import Clock

if TYPE_CHECKING:
    from node.auth.usage_row import UsageRow

BUCKET = 30.0
"""Seconds of one bucket."""

BUCKETS = 120
"""Buckets of a ring: an hour."""

MAX_RINGS = 300
"""Pairs of a model and a node; while so many were used within the hour, the usage of further pairs is left out."""


@dataclass(slots=True)
class UsageBucket:
    """Sums of one bucket: counts, tokens, and seconds. `number` counts buckets from the start of the clock.

    `refused` counts requests and attempts for which there was no room; `queued` is the highest number that waited at a time.
    """

    number: int
    requests: int = 0
    failed: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    seconds: float = 0.0
    first_seconds: float = 0.0
    refused: int = 0
    queued: int = 0

    def add(self, row: "UsageRow | UsageBucket") -> None:
        """Add the counts of a row or of another bucket, without `refused` and `queued`."""
        self.requests += row.requests
        self.failed += row.failed
        self.prompt_tokens += row.prompt_tokens
        self.completion_tokens += row.completion_tokens
        self.cached_tokens += row.cached_tokens
        self.seconds += row.seconds
        self.first_seconds += row.first_seconds

    def join(self, other: "UsageBucket") -> None:
        """Add another bucket, with `refused` and the maximum of `queued`."""
        self.add(other)
        self.refused += other.refused
        self.queued = max(self.queued, other.queued)


class UsageHistory:
    """The rings of all models and nodes."""

    def __init__(self, now: Clock, *, limit: int = MAX_RINGS) -> None:
        self._now = now
        self._limit = limit
        self._rings: dict[tuple[str, str], deque[UsageBucket]] = {}
        """Buckets with any counts, the newest last."""

    def add(self, row: "UsageRow") -> None:
        """Add a row that was just counted."""
        if (bucket := self._bucket(row.model, row.node)) is not None:
            bucket.add(row)

    def refused(self, model: str, node: str, count: int) -> None:
        """Add `count` requests or attempts that were just refused."""
        if (bucket := self._bucket(model, node)) is not None:
            bucket.refused += count

    def queued(self, model: str, node: str, count: int) -> None:
        """Take in the number of requests that wait now."""
        if (bucket := self._bucket(model, node)) is not None:
            bucket.queued = max(bucket.queued, count)

    def pairs(self) -> Sequence[tuple[str, str]]:
        """Return the pairs of model and node with counts in the last hour, in order."""
        oldest = self._number() - BUCKETS + 1
        return sorted(pair for pair, ring in self._rings.items() if ring[-1].number >= oldest)

    def buckets(self, model: str, node: str) -> Sequence[UsageBucket]:
        """Return the last hour of one pair, the oldest bucket first; the last bucket is not complete yet."""
        last = self._number()
        by_number = {bucket.number: bucket for bucket in self._rings.get((model, node), ())}
        numbers = range(last - BUCKETS + 1, last + 1)
        return [by_number.get(number) or UsageBucket(number) for number in numbers]

    def total(self, model: str, node: str) -> UsageBucket:
        """Return the sums of the last hour of one pair."""
        total, oldest = UsageBucket(self._number()), self._number() - BUCKETS + 1
        for bucket in self._rings.get((model, node), ()):
            if bucket.number >= oldest:
                total.join(bucket)
        return total

    def _number(self) -> int:
        return int(self._now() / BUCKET)

    def _bucket(self, model: str, node: str) -> UsageBucket | None:
        number = self._number()
        ring = self._ring((model, node), number)
        if ring is None:
            return None
        if not ring or ring[-1].number != number:
            ring.append(UsageBucket(number))
        return ring[-1]

    def _ring(self, pair: tuple[str, str], number: int) -> deque[UsageBucket] | None:
        if pair not in self._rings and len(self._rings) >= self._limit:
            old = [
                name for name, ring in self._rings.items() if ring[-1].number <= number - BUCKETS
            ]
            for name in old:
                del self._rings[name]
            if not old:
                return None
        return self._rings.setdefault(pair, deque(maxlen=BUCKETS))
