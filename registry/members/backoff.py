"""Back-off towards what did not answer: twice as long each time, up to a bound; forgotten once it answers."""

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

_Key = TypeVar("_Key", bound=Hashable)

REMEMBERED = 4096
"""Silent ones remembered; the one that failed longest ago makes room, and may be tried once too soon."""


@dataclass(frozen=True, slots=True)
class _Silence:
    until: float
    pause: float


@dataclass(slots=True)
class Backoff(Generic[_Key]):
    """Who failed, and when each may be tried again. Times are seconds on any one clock that the caller keeps to."""

    first: float
    longest: float
    _silent: dict[_Key, _Silence] = field(default_factory=dict)

    def failed(self, key: _Key, now: float) -> None:
        """Note that one did not answer."""
        before = self._silent.pop(key, None)
        pause = self.first if before is None else min(2 * before.pause, self.longest)
        if len(self._silent) >= REMEMBERED:
            del self._silent[next(iter(self._silent))]
        self._silent[key] = _Silence(now + pause, pause)

    def forget(self, key: _Key) -> None:
        """Note that one answered, or that there is reason to believe that it would."""
        self._silent.pop(key, None)

    def is_known(self, key: _Key) -> bool:
        """Whether one failed when it was tried last."""
        return key in self._silent

    def is_due(self, key: _Key, now: float) -> bool:
        """Whether one may be tried now."""
        silence = self._silent.get(key)
        return silence is None or silence.until <= now
