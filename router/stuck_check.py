"""Check whether a silent worker of this machine lives: carries out what `router.state.stuck` decides.

Inquiry about a worker of which nobody registered more: how many requests it takes at one time, where its dialect tells.

It is asked once it has several requests, since before that it makes no difference, and again now and then: a worker may be
started anew with other settings.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from router.select.candidates import Candidate
from router.state.stuck import Silence
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


GRAIN = 0.5
"""Seconds between two looks at the workers that have stopped."""


class Vigil:
    """Asks workers, each once at one time. Lives on one event loop."""

    def __init__(
        self,
        silence: Silence,
        alive: Callable[[Worker], Awaitable[bool]],
        now: Callable[[], float],
        spawn: Callable[[Coroutine[Any, Any, None]], object],
    ) -> None:
        """`alive` asks a worker something small, in bounded time; `spawn` runs work until it ends or the node does."""
        self._silence = silence
        self._alive = alive
        self._now = now
        self._spawn = spawn
        self._stopped: dict[str, Worker] = {}
        self._timer: asyncio.TimerHandle | None = None

    def look(self, candidate: Candidate) -> None:
        """Ask a worker that somebody waits for, if it is time to."""
        worker = candidate.worker
        if worker is not None and self._silence.wants_asking(worker.api, self._now()):
            self._spawn(self._ask(worker))

    async def _ask(self, worker: Worker) -> None:
        answered = False
        try:
            answered = await self._alive(worker)
        finally:
            self._silence.asked(worker.api, self._now(), answered=answered)
        if self._silence.silent(worker.api):
            self._stopped[worker.api] = worker
            self._watch()

    def _watch(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(GRAIN, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self._stopped = {a: w for a, w in self._stopped.items() if self._silence.silent(a)}
        for address, worker in self._stopped.items():
            if self._silence.wants_asking(address, self._now()):
                self._spawn(self._ask(worker))
        # Nothing has stopped: nothing to look at.
        if self._stopped:
            self._watch()
