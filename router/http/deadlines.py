"""Deadlines of waits for first bytes, with shared timers."""

import asyncio
import math
from contextlib import AbstractAsyncContextManager
from types import TracebackType

from router.http.errors import WaitEnded
from router.http.timers import SHORT, Timers


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

    def give_up(self) -> None:
        """End every wait now with `WaitEnded`, except short ones with a timer of their own, which end by themselves."""
        for timed in self.timers.waiting():
            if isinstance(timed, _Deadline):
                timed.expire(WaitEnded)


class _Deadline:
    """Deadline of one body, which behaves like `asyncio.timeout`."""

    __slots__ = ("_cancelling", "_passed", "_seconds", "_slot", "_task", "_timers")

    _task: "asyncio.Task[object]"

    def __init__(self, timers: Timers, seconds: float) -> None:
        self._timers = timers
        self._seconds = seconds
        self._passed: type[TimeoutError] | None = None

    async def __aenter__(self) -> "_Deadline":
        task = asyncio.current_task(self._timers.loop)
        if task is None:
            raise RuntimeError("a deadline needs a task to cancel")
        self._task = task
        self._cancelling = task.cancelling()
        self._slot = self._timers.start(self, self._seconds)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        self._timers.stop(self, self._slot)
        # The task may have been cancelled from elsewhere as well; then that cancellation counts.
        ours = self._passed is not None and self._task.uncancel() <= self._cancelling
        if ours and kind is not None and issubclass(kind, asyncio.CancelledError):
            raise (self._passed or TimeoutError) from error

    def fire(self) -> None:
        """End the body with `TimeoutError`."""
        self.expire(TimeoutError)

    def expire(self, outcome: type[TimeoutError]) -> None:
        """End the body with `outcome`, unless it was ended already."""
        if self._passed is None:
            self._passed = outcome
            self._task.cancel()
