"""Bounded dictionaries, in the order in which entries were put: a new entry evicts the oldest."""

from typing import TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")


def put_newest(held: dict[Key, Value], key: Key, value: Value, *, most: int) -> None:
    """Put an entry last, even if its key is there already; if there are `most` others, evict the first."""
    held.pop(key, None)
    if len(held) >= most:
        del held[next(iter(held))]
    held[key] = value
