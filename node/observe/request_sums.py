"""Sums over ended requests, which are added in batches. No I/O."""

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from node.observe.counters import SECONDS, Counts, HistogramCounts, LabelledCount, Spent
from router.requests import Kind

if TYPE_CHECKING:
    from node.faces.access_log import Account

MAX_MODELS = 4_096
"""Models whose tokens are counted separately; those of further models are counted together, under an empty name."""


@dataclass(slots=True)
class Histogram:
    """Histogram of values, mostly times."""

    bounds: tuple[float, ...] = SECONDS
    counts: list[int] = field(init=False)
    total: float = 0.0

    def __post_init__(self) -> None:
        self.counts = [0] * (len(self.bounds) + 1)

    def observe(self, value: float) -> None:
        """Count a value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def observe_all(self, values: list[float]) -> None:
        """Count some values, which are sorted for it."""
        values.sort()
        counted = 0
        for index, bound in enumerate(self.bounds):
            within = bisect_right(values, bound)
            self.counts[index] += within - counted
            counted = within
        self.counts[-1] += len(values) - counted
        self.total += sum(values)

    def add(self, counts: Iterable[int], total: float) -> None:
        """Add the counts of another histogram with the same bounds."""
        self.counts = [a + b for a, b in zip(self.counts, counts, strict=True)]
        self.total += total


@dataclass(slots=True)
class _Alike:
    """Requests of one kind, status and model: the seconds of each, and of a token of each stream, and their reported tokens."""

    seconds: list[float] = field(default_factory=list)
    of_token: list[float] = field(default_factory=list)
    tells: bool = False
    """Whether tokens were reported for any of them."""
    prompt: int = 0
    completion: int = 0


class RequestSums:
    """Sums over requests. They are added in batches, so that keys that many share are looked up once."""

    def __init__(self) -> None:
        self._requests: Counter[tuple[str, int]] = Counter()
        self._seconds: dict[str, Histogram] = defaultdict(Histogram)
        self._first_byte: dict[str, Histogram] = defaultdict(Histogram)
        self._token_time: dict[str, Histogram] = defaultdict(Histogram)
        self._tokens: Counter[tuple[str, str, str]] = Counter()
        self._models: set[str] = set()
        self._taken_count = self._sent_count = 0

    def add(self, first_bytes: Mapping[Kind, list[float]], ended: "Sequence[Account]") -> None:
        """Add ended requests, and the seconds to the first bytes of answers."""
        for kind, seconds in first_bytes.items():
            self._first_byte[kind.value].observe_all(seconds)
        groups: dict[tuple[Kind, int, str], _Alike] = {}
        for account in ended:
            key = account.kind, account.status, account.served
            alike = groups.get(key)
            if alike is None:
                alike = groups[key] = _Alike()
            alike.seconds.append(account.seconds)
            self._add_tokens(account, alike)
            self._taken_count += account.request_bytes
            self._sent_count += account.answer_bytes
        for (kind, status, model), alike in groups.items():
            self._requests[kind.value, status] += len(alike.seconds)
            self._seconds[kind.value].observe_all(alike.seconds)
            if alike.of_token:
                self._token_time[kind.value].observe_all(alike.of_token)
            if alike.tells:
                self._spend(model, "no", alike.prompt, alike.completion)

    def counts(self) -> Counts:
        """Return the sums."""
        return Counts(
            requests=tuple(
                LabelledCount(kind, str(status), count)
                for (kind, status), count in self._requests.items()
            ),
            seconds=_spreads_of(self._seconds),
            first_byte=_spreads_of(self._first_byte),
            token_time=_spreads_of(self._token_time),
            tokens=tuple(Spent(*key, tokens) for key, tokens in self._tokens.items()),
            taken=self._taken_count,
            sent=self._sent_count,
        )

    def _add_tokens(self, account: "Account", alike: _Alike) -> None:
        # Several workers may have written a stream in parts.
        for model, usage in account.tokens_by_model():
            if usage.estimated or model != account.served:
                estimated = "yes" if usage.estimated else "no"
                self._spend(model, estimated, usage.prompt, usage.completion)
            else:
                alike.tells = True
                alike.prompt += usage.prompt
                alike.completion += usage.completion
        if account.streams_text and (of_token := account.token_seconds()):
            alike.of_token.append(of_token)

    def _spend(self, model: str, estimated: str, prompt: int, completion: int) -> None:
        """Count the tokens of one model's answers."""
        if model not in self._models:
            if len(self._models) >= MAX_MODELS:
                model = ""
            self._models.add(model)
        self._tokens[model, "completion", estimated] += completion
        if prompt:
            self._tokens[model, "prompt", estimated] += prompt


def _spreads_of(histograms: Mapping[str, Histogram]) -> tuple[HistogramCounts, ...]:
    return tuple(HistogramCounts(kind, tuple(h.counts), h.total) for kind, h in histograms.items())
