"""Counters as values that can be added up and sent. No I/O."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
"""Bucket bounds of times: from a cache hit on this machine to a long answer of a large model."""


class LabelledCount(NamedTuple):
    """Number of requests of one kind with one status, or of attempts in one dialect with one outcome."""

    what: str
    ended: str
    times: int


class Spent(NamedTuple):
    """Tokens of one part (prompt or completion) that the workers of a model used; `estimated` is "yes" or "no"."""

    model: str
    part: str
    estimated: str
    tokens: int


class HistogramCounts(NamedTuple):
    """Histogram of a time of one kind of request: the count in each bucket, and the sum of all times."""

    kind: str
    counts: tuple[int, ...]
    total: float


@dataclass(frozen=True, slots=True)
class Counts:
    """The counters of one process, or of several together."""

    requests: tuple[LabelledCount, ...] = ()
    attempts: tuple[LabelledCount, ...] = ()
    seconds: tuple[HistogramCounts, ...] = ()
    first_byte: tuple[HistogramCounts, ...] = ()
    token_time: tuple[HistogramCounts, ...] = ()
    """Seconds of each token after the first."""
    tokens: tuple[Spent, ...] = ()
    routed: tuple[tuple[str, int], ...] = ()
    """The router's events."""
    connection_events: tuple[tuple[str, int], ...] = ()
    """Events of connections."""
    spans: tuple[tuple[str, int], ...] = ()
    """Spans by outcome."""
    connections: int = 0
    """Open connections."""
    in_flight: int = 0
    taken: int = 0
    sent: int = 0


def sum_of(all_counts: Iterable[Counts]) -> Counts:
    """Add counters up."""
    each = tuple(all_counts)
    return Counts(
        requests=_sum_counts(row for counts in each for row in counts.requests),
        attempts=_sum_counts(row for counts in each for row in counts.attempts),
        seconds=_spreads(row for counts in each for row in counts.seconds),
        first_byte=_spreads(row for counts in each for row in counts.first_byte),
        token_time=_spreads(row for counts in each for row in counts.token_time),
        tokens=_spent(row for counts in each for row in counts.tokens),
        routed=_events(row for counts in each for row in counts.routed),
        connection_events=_events(row for counts in each for row in counts.connection_events),
        spans=_events(row for counts in each for row in counts.spans),
        connections=sum(counts.connections for counts in each),
        in_flight=sum(counts.in_flight for counts in each),
        taken=sum(counts.taken for counts in each),
        sent=sum(counts.sent for counts in each),
    )


def _sum_counts(rows: Iterable[LabelledCount]) -> tuple[LabelledCount, ...]:
    sums: Counter[tuple[str, str]] = Counter()
    for label, ended, times in rows:
        sums[label, ended] += times
    return tuple(LabelledCount(*key, times) for key, times in sums.items())


def _spent(rows: Iterable[Spent]) -> tuple[Spent, ...]:
    sums: Counter[tuple[str, str, str]] = Counter()
    for model, part, estimated, tokens in rows:
        sums[model, part, estimated] += tokens
    return tuple(Spent(*key, tokens) for key, tokens in sums.items())


def _events(rows: Iterable[tuple[str, int]]) -> tuple[tuple[str, int], ...]:
    sums: Counter[str] = Counter()
    for event, times in rows:
        sums[event] += times
    return tuple(sums.items())


def _spreads(rows: Iterable[HistogramCounts]) -> tuple[HistogramCounts, ...]:
    sums: dict[str, HistogramCounts] = {}
    for row in rows:
        before = sums.get(row.kind)
        sums[row.kind] = row if before is None else _both(before, row)
    return tuple(sums.values())


def _both(one: HistogramCounts, two: HistogramCounts) -> HistogramCounts:
    counts = (a + b for a, b in zip(one.counts, two.counts, strict=True))
    return HistogramCounts(one.kind, tuple(counts), one.total + two.total)
