"""Base class of values that compute their hash once: look-ups need it again and again. Compiled in wheels."""


class Hashed:
    """Value with its hash in `_hash`, set by its constructor. It must assign `__hash__` again, or `dataclass` makes another."""

    __slots__ = ("_hash",)
    _hash: int

    def __hash__(self) -> int:
        return self._hash
