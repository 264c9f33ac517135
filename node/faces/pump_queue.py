"""Queue in which the streams of one event loop take turns to pass on what they have."""

import asyncio
from collections import deque
from collections.abc import Callable

PER_TURN = 16
"""Streams that pass on what they have in one turn of the event loop, which takes them about half a millisecond."""


class PumpQueue:
    """First come, first served, and only a few in each turn of the event loop.

    Where chunks come faster than they can be passed on, a new request waits for those of a turn instead of all; and what comes
    for a stream while it stands here goes on in one piece.
    """

    __slots__ = ("_at_once", "_loop", "_serving", "_waiting")

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting: deque[Callable[[], None]] = deque()
        self._serving = False
        self._at_once = 0
        """Streams that passed on what they had at once, since somebody stood in the queue."""

    def at_once(self) -> bool:
        """Return whether a stream may pass on now what has come: nobody waits, and few have done so without waiting."""
        if self._waiting or self._at_once >= PER_TURN:
            return False
        self._at_once += 1
        return True

    def add(self, look: Callable[[], None]) -> None:
        """Have a stream look at what it has, in its turn."""
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
