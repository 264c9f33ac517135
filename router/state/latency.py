"""Latency quantiles of answers: the last ones of each model and kind, by what was asked for. No I/O."""

from bisect import insort
from collections import deque

from router.requests import Kind

SAMPLES = 100
"""Answers that are remembered of one model and kind; the oldest makes room."""

FEWEST = 20
"""Answers without which nothing is said."""

MAX_MODELS = 1_024
"""Models and kinds that are remembered; the one that was answered longest ago makes room."""


class Usual:
    """Seconds that answers took."""

    def __init__(self) -> None:
        self._took: dict[tuple[str, Kind], tuple[deque[float], list[float]]] = {}

    def took(self, model: str, kind: Kind, seconds: float) -> None:
        """Take in how long one took."""
        latest, ordered = self._took.pop((model, kind), (deque(), list[float]()))
        if len(self._took) >= MAX_MODELS:
            del self._took[next(iter(self._took))]
        self._took[model, kind] = latest, ordered
        if len(latest) >= SAMPLES:
            ordered.remove(latest.popleft())
        latest.append(seconds)
        insort(ordered, seconds)

    def slow(self, model: str, kind: Kind) -> float | None:
        """Return the seconds that one of twenty takes longer than, `None` while too few are known."""
        _, ordered = self._took.get((model, kind), (None, ()))
        return ordered[len(ordered) * 19 // 20] if len(ordered) >= FEWEST else None
