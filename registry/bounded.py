"""Bounded dictionaries in order of insertion: a new entry evicts the oldest."""

from typing import TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")


def put_newest(mapping: dict[Key, Value], key: Key, value: Value, *, limit: int) -> None:
    """Put an entry last, even if its key is there already; if there are `limit` others, evict the first."""
    mapping.pop(key, None)
    if len(mapping) >= limit:
        del mapping[next(iter(mapping))]
    mapping[key] = value
