"""Timers for thousands of concurrent waits, which share one timer of the event loop.

A timer of its own for every request costs more than routing it, and for every stream half a kilobyte twice. These fire up to
twice `GRAIN` seconds late, which does not matter for waits of seconds; shorter waits get a timer of their own.
"""

import asyncio
import math
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Protocol

from router.http.errors import WaitEnded

GRAIN = 0.25
"""Seconds between two checks of what is due."""

SHORT = 8 * GRAIN
"""Seconds below which a wait has a timer of its own."""

_OWN = -1


class Timed(Protocol):
    """Something that waits."""

    def fire(self) -> None:
        """End the wait: its time is over."""


class Timers:
    """The timers of one event loop."""

    def __init__(self) -> None:
        self._due: dict[int, dict[Timed, None]] = {}  # in the order in which they began
        self._short: dict[Timed, asyncio.TimerHandle] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The event loop, cached: each call costs a system call before Python 3.12."""
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        return self._loop

    def start(self, timed: Timed, seconds: float) -> int:
        """Fire `timed` once in so many seconds, and return the slot that `stop` needs. Each has one timer at a time."""
        loop = self.loop
        if seconds < SHORT:
            self._short[timed] = loop.call_later(seconds, self._fire, timed)
            return _OWN
        slot = math.ceil((loop.time() + seconds) / GRAIN)
        self._due.setdefault(slot, {})[timed] = None
        if self._timer is None:
            self._timer = loop.call_later(GRAIN, self._check)
        return slot

    def stop(self, timed: Timed, slot: int) -> None:
        """Cancel the timer of `timed`; do nothing if it has fired."""
        if slot == _OWN:
            handle = self._short.pop(timed, None)
            if handle is not None:
                handle.cancel()
            return
        waiting = self._due.get(slot)
        if waiting is not None:
            waiting.pop(timed, None)
            if not waiting:
                del self._due[slot]

    def waiting(self) -> list[Timed]:
        """Return all that are to fire."""
        return [*self._short, *(timed for waiting in self._due.values() for timed in waiting)]

    def _fire(self, timed: Timed) -> None:
        del self._short[timed]
        timed.fire()

    def _check(self) -> None:
        now = math.floor(self.loop.time() / GRAIN)
        try:
            for slot in [slot for slot in self._due if slot <= now]:
                self._fire_all(slot)
        finally:
            # An idle node has no timer.
            self._timer = self.loop.call_later(GRAIN, self._check) if self._due else None

    def _fire_all(self, slot: int) -> None:
        waiting = self._due[slot]
        while waiting:
            # One by one, since firing one may stop others.
            timed = next(iter(waiting))
            del waiting[timed]
            timed.fire()
        self._due.pop(slot, None)


class Deadlines:
    """The deadlines of one event loop."""

    def __init__(self) -> None:
        self.timers = Timers()

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The event loop."""
        return self.timers.loop

    def within(self, seconds: float) -> AbstractAsyncContextManager[object]:
        """Cancel the body of the context when it takes longer, and raise `TimeoutError` instead."""
        if seconds < SHORT or math.isinf(seconds):
            return asyncio.timeout(None if math.isinf(seconds) else seconds)
        return _Deadline(self.timers, seconds)

    def end_waits(self) -> None:
        """End every wait now with `WaitEnded`, except short ones with a timer of their own, which end by themselves."""
        for timed in self.timers.waiting():
            if isinstance(timed, _Deadline):
                timed.expire(WaitEnded)


class _Deadline:
    """Deadline of one body, which behaves like `asyncio.timeout`."""

    __slots__ = ("_cancelling", "_outcome", "_seconds", "_task", "_timer_slot", "_timers")

    _task: "asyncio.Task[object]"

    def __init__(self, timers: Timers, seconds: float) -> None:
        self._timers = timers
        self._seconds = seconds
        self._outcome: type[TimeoutError] | None = None

    async def __aenter__(self) -> "_Deadline":
        task = asyncio.current_task(self._timers.loop)
        if task is None:
            raise RuntimeError("a deadline needs a task to cancel")
        self._task = task
        self._cancelling = task.cancelling()
        self._timer_slot = self._timers.start(self, self._seconds)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        self._timers.stop(self, self._timer_slot)
        # The task may have been cancelled from elsewhere as well; then that cancellation counts.
        timed_out = self._outcome is not None and self._task.uncancel() <= self._cancelling
        if timed_out and kind is not None and issubclass(kind, asyncio.CancelledError):
            raise (self._outcome or TimeoutError) from error

    def fire(self) -> None:
        """End the body with `TimeoutError`."""
        self.expire(TimeoutError)

    def expire(self, outcome: type[TimeoutError]) -> None:
        """End the body with `outcome`, unless it was ended already."""
        if self._outcome is None:
            self._outcome = outcome
            self._task.cancel()
