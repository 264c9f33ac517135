"""Usage of the last hour, by model and by the node that answered: ring buffers in memory, of fixed size.

It takes the rows that the log of usage takes every few seconds, so that a request pays nothing for it. Those of other processes
of this node are among them.
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
"""Pairs of a model and a node; while so many were used within the hour, what others use is left out."""


@dataclass(slots=True)
class UsageBucket:
    """Sums of one bucket: counts, tokens, and seconds. `number` counts buckets from the start of the clock.

    `refused` counts requests and attempts for which there was no room; `queued` is how many waited at most.
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
        """Take in what was counted in a while."""
        self.requests += row.requests
        self.failed += row.failed
        self.prompt_tokens += row.prompt_tokens
        self.completion_tokens += row.completion_tokens
        self.cached_tokens += row.cached_tokens
        self.seconds += row.seconds
        self.first_seconds += row.first_seconds

    def join(self, other: "UsageBucket") -> None:
        """Take in another bucket."""
        self.add(other)
        self.refused += other.refused
        self.queued = max(self.queued, other.queued)


class UsageHistory:
    """The rings of all models and nodes."""

    def __init__(self, now: Clock, *, most: int = MAX_RINGS) -> None:
        self._now = now
        self._most = most
        self._rings: dict[tuple[str, str], deque[UsageBucket]] = {}
        """Buckets in which there was anything, the newest last."""

    def add(self, row: "UsageRow") -> None:
        """Take in what was counted just now."""
        if (bucket := self._bucket(row.model, row.node)) is not None:
            bucket.add(row)

    def refused(self, model: str, node: str, count: int) -> None:
        """Take in that so much was refused just now."""
        if (bucket := self._bucket(model, node)) is not None:
            bucket.refused += count

    def queued(self, model: str, node: str, count: int) -> None:
        """Take in how many requests wait now."""
        if (bucket := self._bucket(model, node)) is not None:
            bucket.queued = max(bucket.queued, count)

    def pairs(self) -> Sequence[tuple[str, str]]:
        """Return the models and nodes of which there is something from the last hour, in order."""
        oldest = self._number() - BUCKETS + 1
        return sorted(pair for pair, ring in self._rings.items() if ring[-1].number >= oldest)

    def buckets(self, model: str, node: str) -> Sequence[UsageBucket]:
        """Return the last hour of one pair, the oldest bucket first; the last one is not over yet."""
        last = self._number()
        found = {bucket.number: bucket for bucket in self._rings.get((model, node), ())}
        wanted = range(last - BUCKETS + 1, last + 1)
        return [found.get(number) or UsageBucket(number) for number in wanted]

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
        if pair not in self._rings and len(self._rings) >= self._most:
            old = [
                name for name, ring in self._rings.items() if ring[-1].number <= number - BUCKETS
            ]
            for name in old:
                del self._rings[name]
            if not old:
                return None
        return self._rings.setdefault(pair, deque(maxlen=BUCKETS))
