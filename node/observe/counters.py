"""Counters, as values that can be added up and sent. Pure: numbers in, numbers out."""

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, filterfalse
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

from router.requests import Kind

if TYPE_CHECKING:
    from node.faces.access_log import Account
    from router.openai.usage import Usage

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
"""The bounds between which times fall: from a cache hit on this machine to a long answer of a large model."""

MAX_MODELS = 4_096
"""Models whose tokens are counted apart; those of further ones are counted together, under no name."""

_SORT = attrgetter("kind", "status", "served")
_SECONDS, _TAKEN, _SENT = map(attrgetter, ("seconds", "taken", "sent"))
_USAGE, _PARTS, _STREAMS_TEXT = map(attrgetter, ("usage", "parts", "streams_text"))
_PROMPT, _COMPLETION, _ESTIMATED = map(attrgetter, ("prompt", "completion", "estimated"))


class Times(NamedTuple):
    """How often a kind of request met an end, or an attempt in a dialect an outcome."""

    what: str
    ended: str
    times: int


class Spent(NamedTuple):
    """How many tokens of one part, prompt or completion, the workers of a model used; whether estimated: yes or no."""

    model: str
    part: str
    estimated: str
    tokens: int


class Spread(NamedTuple):
    """How often a time of one kind of request fell between two bounds, and the sum of them all."""

    kind: str
    counts: tuple[int, ...]
    total: float


@dataclass(frozen=True, slots=True)
class Counts:
    """The counters of one process, or of several together."""

    requests: tuple[Times, ...] = ()
    attempts: tuple[Times, ...] = ()
    seconds: tuple[Spread, ...] = ()
    first_byte: tuple[Spread, ...] = ()
    token_time: tuple[Spread, ...] = ()
    """Seconds of each token after the first."""
    tokens: tuple[Spent, ...] = ()
    routed: tuple[tuple[str, int], ...] = ()
    """The router's events."""
    crowd: tuple[tuple[str, int], ...] = ()
    """What happened to connections."""
    spans: tuple[tuple[str, int], ...] = ()
    """What became of spans."""
    connections: int = 0
    """Connections that are open."""
    in_flight: int = 0
    taken: int = 0
    sent: int = 0


def summed(all_counts: Iterable[Counts]) -> Counts:
    """Add counters up."""
    each = tuple(all_counts)
    return Counts(
        requests=_times(row for counts in each for row in counts.requests),
        attempts=_times(row for counts in each for row in counts.attempts),
        seconds=_spreads(row for counts in each for row in counts.seconds),
        first_byte=_spreads(row for counts in each for row in counts.first_byte),
        token_time=_spreads(row for counts in each for row in counts.token_time),
        tokens=_spent(row for counts in each for row in counts.tokens),
        routed=_events(row for counts in each for row in counts.routed),
        crowd=_events(row for counts in each for row in counts.crowd),
        spans=_events(row for counts in each for row in counts.spans),
        connections=sum(counts.connections for counts in each),
        in_flight=sum(counts.in_flight for counts in each),
        taken=sum(counts.taken for counts in each),
        sent=sum(counts.sent for counts in each),
    )


@dataclass(slots=True)
class Histogram:
    """How often a value, mostly a time, fell between two bounds."""

    bounds: tuple[float, ...] = SECONDS
    counts: list[int] = field(init=False)
    total: float = 0.0

    def __post_init__(self) -> None:
        self.counts = [0] * (len(self.bounds) + 1)

    def observe(self, value: float) -> None:
        """Count a value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def observe_all(self, values: Sequence[float]) -> None:
        """Count many values."""
        for place, times in Counter(map(partial(bisect_left, self.bounds), values)).items():
            self.counts[place] += times
        self.total += sum(values)

    def add(self, counts: Iterable[int], total: float) -> None:
        """Take in what was counted elsewhere between the same bounds."""
        self.counts = [a + b for a, b in zip(self.counts, counts, strict=True)]
        self.total += total


class RequestSums:
    """What requests come to. They are added many at once, which takes half the time that each alone would."""

    def __init__(self) -> None:
        self._requests: Counter[tuple[str, int]] = Counter()
        self._seconds: dict[str, Histogram] = defaultdict(Histogram)
        self._first_byte: dict[str, Histogram] = defaultdict(Histogram)
        self._token_time: dict[str, Histogram] = defaultdict(Histogram)
        self._tokens: Counter[tuple[str, str, str]] = Counter()
        self._models: set[str] = set()
        self._taken = self._sent = 0

    def add(self, first_bytes: Mapping[Kind, Sequence[float]], ended: "Sequence[Account]") -> None:
        """Add the seconds to the first bytes of answers, and requests that are over."""
        for kind, seconds in first_bytes.items():
            self._first_byte[kind.value].observe_all(seconds)
        sorts: dict[tuple[Kind, int, str], list[Account]] = defaultdict(list)
        for account in ended:
            sorts[_SORT(account)].append(account)
        for (kind, status, model), alike in sorts.items():
            self._requests[kind.value, status] += len(alike)
            self._seconds[kind.value].observe_all([*map(_SECONDS, alike)])
            self._spend(model, [*filter(None, map(_USAGE, alike))])
        for account in filter(_STREAMS_TEXT, ended):
            if of_token := account.token_seconds():
                self._token_time[account.kind.value].observe(of_token)
        # Of streams that several workers wrote.
        for model, usage in chain.from_iterable(map(_PARTS, ended)):
            self._spend(model, [usage])
        self._taken += sum(map(_TAKEN, ended))
        self._sent += sum(map(_SENT, ended))

    def counts(self) -> Counts:
        """Return them."""
        return Counts(
            requests=tuple(
                Times(kind, str(status), count) for (kind, status), count in self._requests.items()
            ),
            seconds=_spreads_of(self._seconds),
            first_byte=_spreads_of(self._first_byte),
            token_time=_spreads_of(self._token_time),
            tokens=tuple(Spent(*key, tokens) for key, tokens in self._tokens.items()),
            taken=self._taken,
            sent=self._sent,
        )

    def _spend(self, model: str, usages: "Sequence[Usage]") -> None:
        """Count the tokens of answers by one model."""
        if usages and model not in self._models:
            if len(self._models) >= MAX_MODELS:
                model = ""
            self._models.add(model)
        for estimated, which in (("no", filterfalse), ("yes", filter)):
            if alike := [*which(_ESTIMATED, usages)]:
                self._tokens[model, "completion", estimated] += sum(map(_COMPLETION, alike))
                if prompt := sum(map(_PROMPT, alike)):
                    self._tokens[model, "prompt", estimated] += prompt


def _spreads_of(histograms: Mapping[str, Histogram]) -> tuple[Spread, ...]:
    return tuple(Spread(kind, tuple(h.counts), h.total) for kind, h in histograms.items())


def _times(rows: Iterable[Times]) -> tuple[Times, ...]:
    found: Counter[tuple[str, str]] = Counter()
    for what, ended, times in rows:
        found[what, ended] += times
    return tuple(Times(*key, times) for key, times in found.items())


def _spent(rows: Iterable[Spent]) -> tuple[Spent, ...]:
    found: Counter[tuple[str, str, str]] = Counter()
    for model, part, estimated, tokens in rows:
        found[model, part, estimated] += tokens
    return tuple(Spent(*key, tokens) for key, tokens in found.items())


def _events(rows: Iterable[tuple[str, int]]) -> tuple[tuple[str, int], ...]:
    found: Counter[str] = Counter()
    for event, times in rows:
        found[event] += times
    return tuple(found.items())


def _spreads(rows: Iterable[Spread]) -> tuple[Spread, ...]:
    found: dict[str, Spread] = {}
    for row in rows:
        before = found.get(row.kind)
        found[row.kind] = row if before is None else _both(before, row)
    return tuple(found.values())


def _both(one: Spread, two: Spread) -> Spread:
    counts = (a + b for a, b in zip(one.counts, two.counts, strict=True))
    return Spread(one.kind, tuple(counts), one.total + two.total)
