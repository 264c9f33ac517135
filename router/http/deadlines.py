"""Deadlines for thousands of waits at one time, which share one timer of the event loop.

A timer of its own for every request costs more than routing it. These fire up to `GRAIN` seconds late, which nobody
notices of a budget of seconds; budgets too short for that get a timer of their own.
"""

import asyncio
import math
from contextlib import AbstractAsyncContextManager
from functools import cached_property
from types import TracebackType

GRAIN = 0.25
"""Seconds between two looks at what is due."""

_SHORT = 8 * GRAIN


class GivenUp(TimeoutError):
    """The wait was ended before its time: there is nothing to wait for any more."""


class Deadlines:
    """The deadlines of one event loop."""

    def __init__(self) -> None:
        self._due: dict[int, dict[_Deadline, None]] = {}  # in the order in which they began
        self._timer: asyncio.TimerHandle | None = None

    @cached_property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The event loop. Asked for once: each answer costs a system call before Python 3.12."""
        return asyncio.get_running_loop()

    def within(self, seconds: float) -> AbstractAsyncContextManager[object]:
        """Cancel the body when it takes longer, and raise `TimeoutError` in its place."""
        if seconds < _SHORT or math.isinf(seconds):
            return asyncio.timeout(None if math.isinf(seconds) else seconds)
        return _Deadline(self, seconds)

    def give_up(self) -> None:
        """End every wait now, with `GivenUp`; short ones, which have a timer of their own, end by themselves."""
        waiting, self._due = self._due, {}
        for deadlines in waiting.values():
            for deadline in deadlines:
                deadline.pass_(GivenUp)

    def _add(self, deadline: "_Deadline", seconds: float) -> int:
        loop = self.loop
        slot = math.ceil((loop.time() + seconds) / GRAIN)
        self._due.setdefault(slot, {})[deadline] = None
        if self._timer is None:
            self._timer = loop.call_later(GRAIN, self._look, loop)
        return slot

    def _remove(self, deadline: "_Deadline", slot: int) -> None:
        waiting = self._due.get(slot)
        if waiting is not None:
            waiting.pop(deadline, None)
            if not waiting:
                del self._due[slot]

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        now = math.floor(loop.time() / GRAIN)
        for slot in [slot for slot in self._due if slot <= now]:
            for deadline in self._due.pop(slot):
                deadline.pass_(TimeoutError)
        # An idle node has no timer.
        self._timer = loop.call_later(GRAIN, self._look, loop) if self._due else None


class _Deadline:
    """One body's deadline, with the manners of `asyncio.timeout`."""

    __slots__ = ("_cancelling", "_deadlines", "_passed", "_seconds", "_slot", "_task")

    _task: "asyncio.Task[object]"

    def __init__(self, deadlines: Deadlines, seconds: float) -> None:
        self._deadlines = deadlines
        self._seconds = seconds
        self._passed: type[TimeoutError] | None = None

    async def __aenter__(self) -> "_Deadline":
        task = asyncio.current_task(self._deadlines.loop)
        if task is None:
            raise RuntimeError("a deadline needs a task to cancel")
        self._task = task
        self._cancelling = task.cancelling()
        self._slot = self._deadlines._add(self, self._seconds)  # noqa: SLF001  (one mechanism in two classes)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        self._deadlines._remove(self, self._slot)  # noqa: SLF001
        # Somebody else may have cancelled the task as well; then that is what happened.
        ours = self._passed is not None and self._task.uncancel() <= self._cancelling
        if ours and kind is not None and issubclass(kind, asyncio.CancelledError):
            raise (self._passed or TimeoutError) from error

    def pass_(self, outcome: type[TimeoutError]) -> None:
        """The time is over; the body ends with `outcome`."""
        self._passed = outcome
        self._task.cancel()
