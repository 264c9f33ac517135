"""Filters of a search by files' attributes: OpenAI's comparisons, combined by `and` and `or`."""

import operator
from collections.abc import Callable, Mapping
from typing import Any

_DEEPEST = 8

_COMPARED: Mapping[str, Callable[[Any, Any], bool]] = {
    "eq": operator.eq,
    "ne": operator.ne,
    "gt": operator.gt,
    "gte": operator.ge,
    "lt": operator.lt,
    "lte": operator.le,
    "in": lambda value, among: value in among,
    "nin": lambda value, among: value not in among,
}


class BadFilter(ValueError):
    """An invalid filter."""


def fits(attributes: Mapping[str, Any], by: object, depth: int = 0) -> bool:
    """Return whether a file with these attributes passes a filter; raise `BadFilter`."""
    match by:
        case None:
            return True
        case {"type": "and" | "or" as kind, "filters": list(several)} if depth < _DEEPEST:
            said = [fits(attributes, one, depth + 1) for one in several]
            return all(said) if kind == "and" else any(said)
        case {"type": str(kind), "key": str(key), "value": value} if kind in _COMPARED:
            try:
                return _COMPARED[kind](attributes.get(key), value)
            except TypeError:
                return False
    raise BadFilter("a filter has a `type`, and `key` and `value`, or `filters`")
