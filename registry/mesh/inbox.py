"""Inbox of the registry: the events of one mesh, in order, for one reader, bounded.

Frames are dropped and counted when the reader lags: gossip may be lost. Who joined and who parted is
kept longer; when even that overflows, all of it gives way to `Restarted`, which asks for a fresh look.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator

from registry.mesh import Arrived, MeshEvent, Offended, Restarted


class Inbox:
    """A bounded queue of mesh events; only the event loop that reads it may touch it."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._waiting: deque[MeshEvent] = deque()
        self._stirred = asyncio.Event()
        self._closed = False
        self.dropped = 0

    def put(self, event: MeshEvent) -> None:
        """Queue an event; drop a frame, or an offence, when `limit` events wait already."""
        if self._closed:
            return
        if isinstance(event, Arrived | Offended) and len(self._waiting) >= self._limit:
            self.dropped += 1
            return
        # Connections that flap while nobody reads must not grow the queue without end either.
        if len(self._waiting) >= 2 * self._limit:
            self.dropped += sum(isinstance(waiting, Arrived) for waiting in self._waiting)
            self._waiting.clear()
            event = Restarted()
        self._waiting.append(event)
        self._stirred.set()

    def close(self) -> None:
        """Let the reader come to its end after what waits."""
        self._closed = True
        self._stirred.set()

    async def events(self) -> AsyncIterator[MeshEvent]:
        """Yield events as they come, until `close`."""
        while True:
            while self._waiting:
                yield self._waiting.popleft()
            if self._closed:
                return
            self._stirred.clear()
            await self._stirred.wait()
