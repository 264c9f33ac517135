"""Prices of models: the cost of a usage row's tokens, by settings, without a currency. The first matching pattern counts."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from node.auth.usage_row import UsageRow

_MILLION = 1_000_000
_FORM = re.compile(r"(.{1,256})=(\d{1,9}(?:\.\d{1,9})?)/(\d{1,9}(?:\.\d{1,9})?)")


@dataclass(frozen=True, slots=True)
class Price:
    """Prices of a million tokens of the models that match `pattern`: `read` for prompts, `written` for completions."""

    pattern: str
    read: float
    written: float

    def fits(self, model: str) -> bool:
        """Return whether the price applies to a model, by `MODEL` or `PROJECT/MODEL`."""
        names = (model, model.partition("/")[2])
        return any(fnmatchcase(name, self.pattern) for name in names if name)


def parse(text: str) -> Price:
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
    price = next((price for price in prices if price.fits(row.model)), None)
    if price is None:
        return 0.0
    cost = row.prompt_tokens * price.read + row.completion_tokens * price.written
    return round(cost / _MILLION, 9)
