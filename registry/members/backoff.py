"""Backoff for keys that did not answer: the pause doubles with each failure, up to a bound, until an answer."""

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from registry.bounded import put_newest

_Key = TypeVar("_Key", bound=Hashable)

REMEMBERED = 4096
"""Failed keys remembered. Beyond that the one that failed longest ago is evicted, and may be retried too soon."""


@dataclass(frozen=True, slots=True)
class _Silence:
    until: float
    pause: float


@dataclass(slots=True)
class Backoff(Generic[_Key]):
    """The keys that failed, and when each may be retried. Times are in seconds, on one clock of the caller's choice."""

    first: float
    longest: float
    _failed: dict[_Key, _Silence] = field(default_factory=dict)

    def note_failure(self, key: _Key, now: float) -> None:
        """Note that a key did not answer."""
        before = self._failed.get(key)
        pause = self.first if before is None else min(2 * before.pause, self.longest)
        put_newest(self._failed, key, _Silence(now + pause, pause), limit=REMEMBERED)

    def forget(self, key: _Key) -> None:
        """Note that a key answered, or that there is reason to believe that it would."""
        self._failed.pop(key, None)

    def is_known(self, key: _Key) -> bool:
        """Return whether the last try of a key failed."""
        return key in self._failed

    def is_due(self, key: _Key, now: float) -> bool:
        """Return whether a key may be tried now."""
        silence = self._failed.get(key)
        return silence is None or silence.until <= now
