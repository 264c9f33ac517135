"""Stop strings: for workers that hand the stop string over, or ignore it.

What may be the beginning of one is held back until the next text shows whether it is.
"""

from collections.abc import Sequence


class Stops:
    """Cuts one text, piece by piece, before the first stop string. `hit` is that one, `""` where there was none."""

    __slots__ = ("_held", "_stops", "hit")

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""
        self.hit = ""

    def take(self, text: str) -> str:
        """Take in the next piece and return what is surely part of the text; nothing after a stop string."""
        if self.hit:
            return ""
        looked = self._held + text
        found = [(at, stop) for stop in self._stops if (at := looked.find(stop)) >= 0]
        if found:
            (at, self.hit), self._held = min(found), ""
            return looked[:at]
        keep = max((_begun(looked, stop) for stop in self._stops), default=0)
        self._held = looked[len(looked) - keep :]
        return looked[: len(looked) - keep]

    def rest(self) -> str:
        """Return what was held back, when the text has ended by itself."""
        held, self._held = self._held, ""
        return held


def _begun(text: str, stop: str) -> int:
    """Return how many characters at the end of a text may be the beginning of a stop string."""
    longest = min(len(text), len(stop) - 1)
    return next((size for size in range(longest, 0, -1) if text.endswith(stop[:size])), 0)
