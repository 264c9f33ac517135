"""Hash that a value computes once: a base class, machine code in wheels, as look-ups call it again and again."""


class Hashed:
    """Value with its hash in `_hash`, which it sets when it is made. It must name `__hash__` again, or `dataclass` makes one."""

    __slots__ = ("_hash",)
    _hash: int

    def __hash__(self) -> int:
        return self._hash
