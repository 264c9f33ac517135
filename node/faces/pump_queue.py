"""Queue in which the streams of one event loop take turns to pass on the bytes they have."""

import asyncio
from collections import deque
from collections.abc import Callable

PER_TURN = 16
"""Streams that pass on their bytes in one turn of the event loop, which takes them about half a millisecond."""


class PumpQueue:
    """First-come, first-served queue of streams, of which only `PER_TURN` are served in each turn of the event loop.

    Where chunks arrive faster than they can be passed on, a new request waits for the streams of one turn instead of all. What
    arrives for a stream while it is queued is passed on in one piece.
    """

    __slots__ = ("_at_once", "_loop", "_serving", "_waiting")

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting: deque[Callable[[], None]] = deque()
        self._serving = False
        self._at_once = 0
        """Streams that passed on their bytes without queueing since the queue was last served."""

    def at_once(self) -> bool:
        """Return whether a stream may pass on its bytes now: the queue is empty, and fewer than `PER_TURN` have skipped it."""
        if self._waiting or self._at_once >= PER_TURN:
            return False
        self._at_once += 1
        return True

    def add(self, look: Callable[[], None]) -> None:
        """Queue a stream: call `look` when its turn comes."""
        self._waiting.append(look)
        if not self._serving:
            self._serve_soon()

    def _serve_soon(self) -> None:
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        self._serving = True
        self._loop.call_soon(self._serve)

    def _serve(self) -> None:
        waiting, served, self._at_once = self._waiting, 0, 0
        try:
            while waiting and served < PER_TURN:
                served += 1
                waiting.popleft()()
        finally:
            self._serving = False
            if waiting:
                self._serve_soon()
