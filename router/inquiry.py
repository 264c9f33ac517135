"""Inquiry about a worker of which nobody registered more: how many requests it takes at one time, where its dialect tells.

It is asked once it has several requests, since before that it makes no difference, and again now and then: a worker may be
started anew with other settings.
"""

from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from router.workers import Worker

AGAIN = 600.0
"""Seconds after which a worker is asked again."""

MAX_WORKERS = 4_096
"""Workers that are remembered to have been asked; the one asked longest ago makes room, and is asked once more."""


class Inquiry:
    """Asks workers, beside the requests and never in their way. Lives on one event loop."""

    def __init__(
        self,
        slots: Callable[[Worker], Awaitable[int]],
        said: Callable[[Worker, int], None],
        now: Callable[[], float],
        spawn: Callable[[Coroutine[Any, Any, None]], object],
    ) -> None:
        """`slots` asks in bounded time and returns 0 for no answer; `said` takes in any other; `spawn` runs the work."""
        self._slots = slots
        self._said = said
        self._now = now
        self._spawn = spawn
        self._asked: dict[Worker, float] = {}

    def about(self, worker: Worker) -> None:
        """Ask a worker, if it is time to."""
        now = self._now()
        if now - self._asked.get(worker, -AGAIN) < AGAIN:
            return
        self._asked.pop(worker, None)
        if len(self._asked) >= MAX_WORKERS:
            del self._asked[next(iter(self._asked))]
        self._asked[worker] = now
        self._spawn(self._ask(worker))

    async def _ask(self, worker: Worker) -> None:
        slots = await self._slots(worker)
        if slots > 0:
            self._said(worker, slots)
