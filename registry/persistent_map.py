"""Persistent map: a large map that changes without being copied.

In parts: a change makes its own part anew and shares all others. No I/O.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Generic, TypeVar, overload

Key = TypeVar("Key")
Value = TypeVar("Value")
Other = TypeVar("Other")
Part = TypeVar("Part", bound=dict[Any, Any])


class Parted(Mapping[Key, Value], Generic[Key, Value, Part]):
    """An immutable map. `place` names a key's part, one of `len(parts)`; `make` copies a part that is about to change."""

    __slots__ = ("_make", "_place", "_size", "parts")

    def __init__(
        self, parts: tuple[Part, ...], place: Callable[[Key], int], make: Callable[[Part], Part]
    ) -> None:
        self.parts = parts
        self._place = place
        self._make = make
        self._size = sum(map(len, parts))

    def __getitem__(self, key: Key) -> Value:
        value: Value = self.parts[self._place(key)][key]
        return value

    @overload
    def get(self, key: Key) -> Value | None: ...
    @overload
    def get(self, key: Key, default: Value | Other) -> Value | Other: ...
    def get(self, key: Key, default: object = None) -> object:
        """Return what stands at a key; the inherited way raises and catches an exception for one that is not there."""
        value: object = self.parts[self._place(key)].get(key, default)
        return value

    def __iter__(self) -> Iterator[Key]:
        for part in self.parts:
            yield from part

    def __len__(self) -> int:
        return self._size

    def changed(
        self, put: Mapping[Key, Value], drop: Iterable[Key] = ()
    ) -> "Parted[Key, Value, Part]":
        """Return a map with these entries put in, and those left out that are there."""
        fresh: dict[int, Part] = {}
        for key in drop:
            self._open(fresh, key).pop(key, None)
        for key, value in put.items():
            self._open(fresh, key)[key] = value
        parts = tuple(fresh.get(number, part) for number, part in enumerate(self.parts))
        return Parted(parts, self._place, self._make)

    def _open(self, fresh: dict[int, Part], key: Key) -> Part:
        number = self._place(key)
        if number not in fresh:
            fresh[number] = self._make(self.parts[number])
        return fresh[number]
