"""Row of usage: the requests of one key for one model in one day that one node answered, and its cost by prices."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

NOBODY = "-"
"""Stands for the key of a caller without one, for a model that no node has, and for the node if no node answered."""

UsageId = tuple[str, str, str, str]
"""Day, key, model and node of a row."""


@dataclass(frozen=True, slots=True)
class UsageRow:
    """The requests of one key for one model in one day (UTC, `2026-11-25`) that one node answered; seconds are sums.

    `first_seconds` is the time until the first byte of the answers. `cost` is computed when it is shown. `estimated` counts the
    answers that did not report their tokens: of these only what was read of their streams counts.
    """

    day: str
    key: str
    model: str
    node: str
    requests: int = 0
    failed: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    estimated: int = 0
    seconds: float = 0.0
    first_seconds: float = 0.0
    cost: float = 0.0

    def __add__(self, other: "UsageRow") -> "UsageRow":
        return replace(
            self,
            requests=self.requests + other.requests,
            failed=self.failed + other.failed,
            prompt_tokens=self.prompt_tokens + other.prompt_tokens,
            completion_tokens=self.completion_tokens + other.completion_tokens,
            cached_tokens=self.cached_tokens + other.cached_tokens,
            estimated=self.estimated + other.estimated,
            seconds=round(self.seconds + other.seconds, 6),
            first_seconds=round(self.first_seconds + other.first_seconds, 6),
            cost=round(self.cost + other.cost, 9),
        )


def id_of(row: UsageRow) -> UsageId:
    """Return the identity of a row."""
    return row.day, row.key, row.model, row.node


def sums(rows: Iterable[UsageRow], by: Sequence[str]) -> list[UsageRow]:
    """Return rows summed by some of `day`, `key`, `model` and `node`; the other fields are empty."""
    totals: dict[UsageId, UsageRow] = {}
    for row in rows:
        day, key, model, node = (
            value if name in by else ""
            for name, value in zip(("day", "key", "model", "node"), id_of(row), strict=True)
        )
        short = replace(row, day=day, key=key, model=model, node=node)
        existing = totals.get(id_of(short))
        totals[id_of(short)] = short if existing is None else existing + short
    return [totals[key] for key in sorted(totals)]


_MILLION = 1_000_000
_FORM = re.compile(r"(.{1,256})=(\d{1,9}(?:\.\d{1,9})?)/(\d{1,9}(?:\.\d{1,9})?)")


@dataclass(frozen=True, slots=True)
class Price:
    """Prices of a million tokens of the models that match `pattern`: `read` for prompts, `written` for completions."""

    pattern: str
    read: float
    written: float

    def matches(self, model: str) -> bool:
        """Return whether the price applies to a model, by `MODEL` or `PROJECT/MODEL`."""
        names = (model, model.partition("/")[2])
        return any(fnmatchcase(name, self.pattern) for name in names if name)


def parse_price(text: str) -> Price:
    """Read `PATTERN=INPUT/OUTPUT`; raise `ValueError` with the expected form."""
    found = _FORM.fullmatch(text)
    if found is None:
        raise ValueError(
            "must be PATTERN=INPUT/OUTPUT, prices of a million tokens: 'llama*=0.2/0.6'"
        )
    return Price(found[1], float(found[2]), float(found[3]))


def with_costs(rows: Iterable[UsageRow], prices: Iterable[Price]) -> list[UsageRow]:
    """Return the rows with their costs."""
    prices = tuple(prices)
    return [replace(row, cost=_cost(row, prices)) for row in rows] if prices else [*rows]


def _cost(row: UsageRow, prices: Iterable[Price]) -> float:
    price = next((price for price in prices if price.matches(row.model)), None)
    if price is None:
        return 0.0
    cost = row.prompt_tokens * price.read + row.completion_tokens * price.written
    return round(cost / _MILLION, 9)
