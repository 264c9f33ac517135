"""Readiness of a model's workers, and for how long it is worth waiting. No I/O, time is an argument.

A model is not ready when nobody was there who could begin to work: everybody lost, connections refused, still loading. A
process that was restarted is back soon, one that says it is loading lives; what has been away for long is not waited for.
"""

from dataclasses import dataclass

import orjson

from router.errors import (
    NobodyServes,
    RouterError,
    WorkerAway,
    WorkerLoading,
    WorkerTimeout,
    WorkerUnreachable,
)

HOPE = 120.0
"""Seconds that a model may have been away, without anybody who says that it loads, for which requests still wait."""

FORGOTTEN = 600.0
"""Seconds without a request after which a model that was away counts as never asked for."""

MAX_MODELS = 4_096
"""Models that are remembered; the one that was missed longest ago makes room, and is waited for anew."""

LONGEST_ETA = 3600.0


@dataclass(slots=True)
class _Spell:
    since: float
    last: float
    loading: bool = False


def not_ready(error: RouterError) -> bool:
    """Say whether an error means that nobody was there who could begin to work."""
    match error:
        case NobodyServes() | WorkerAway() | WorkerLoading():
            return True
        case WorkerUnreachable() | WorkerTimeout():
            return not error.sent
        case _:
            return False


def said(body: bytes) -> WorkerLoading | None:
    """Return what the body of a 503 says, `None` unless that is that the model is being loaded."""
    if b"loading" not in body.lower():
        return None
    try:
        words = orjson.loads(body)
    except orjson.JSONDecodeError:
        words = None
    match words:
        case {"loading": {"eta_seconds": int() | float() as eta}} if eta >= 0:
            return WorkerLoading(min(float(eta), LONGEST_ETA))
        case {"estimated_time": int() | float() as eta} if eta >= 0:
            return WorkerLoading(min(float(eta), LONGEST_ETA))
        case _:
            return WorkerLoading()


class Readiness:
    """Which models are not ready, since when, and how long it took the last time."""

    def __init__(self) -> None:
        self._spells: dict[str, _Spell] = {}
        self._took: dict[str, float] = {}

    def missed(self, model: str, error: RouterError, now: float) -> None:
        """Nobody was ready who serves a model."""
        spell = self._spells.pop(model, None)
        if spell is None or now - spell.last >= FORGOTTEN:
            spell = _Spell(now, now)
            _make_room(self._spells)
        spell.last, spell.loading = now, isinstance(error, WorkerLoading)
        # What was missed last stands last.
        self._spells[model] = spell

    def answered(self, model: str, now: float) -> None:
        """Somebody answers."""
        if not self._spells:
            return
        spell = self._spells.pop(model, None)
        if spell is not None and spell.loading:
            self._took.pop(model, None)
            _make_room(self._took)
            self._took[model] = now - spell.since

    def promising(self, model: str, now: float) -> bool:
        """Say whether it is worth waiting for a model that was missed."""
        spell = self._spells.get(model)
        return spell is None or spell.loading or now - spell.since < HOPE

    def eta(self, model: str, now: float) -> float | None:
        """Return in how many seconds a model that is loading will be ready if it takes as long as the last time."""
        spell, took = self._spells.get(model), self._took.get(model)
        if spell is None or took is None or now - spell.since >= took:
            return None
        return took - (now - spell.since)


def _make_room(held: dict[str, _Spell] | dict[str, float]) -> None:
    if len(held) >= MAX_MODELS:
        del held[next(iter(held))]
