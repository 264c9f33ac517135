"""Memory budget of the bodies of all requests together: so much and no more; small bodies are not counted."""


class Room:
    """Bytes that are held."""

    __slots__ = ("_most", "held")

    def __init__(self, most: int) -> None:
        self._most = most
        self.held = 0

    def fits(self, size: int) -> bool:
        """Whether as many bytes more may be held."""
        return self.held + size <= self._most
