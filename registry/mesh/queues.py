"""Bounded queues in order for one reader: an inbox for the events of a mesh, and a byte queue for a pipe.

The writer of a full byte queue waits. A full inbox drops and counts frames, because gossip may be lost. It keeps
joins and departures longer; when even these overflow, all events are replaced with `Restarted`, which makes the
reader announce and compare again.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator

from registry.errors import PeerUnreachable
from registry.mesh import Arrived, MeshEvent, PeerMisbehaved, Restarted


class Inbox:
    """A bounded queue of mesh events; only the event loop that reads it may touch it."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._waiting: deque[MeshEvent] = deque()
        self._changed = asyncio.Event()
        self._closed = False
        self.dropped = 0

    def put(self, event: MeshEvent) -> None:
        """Queue an event; drop a frame, or an offence, when `limit` events wait already."""
        if self._closed:
            return
        if isinstance(event, Arrived | PeerMisbehaved) and len(self._waiting) >= self._limit:
            self.dropped += 1
            return
        # Connections that flap while the reader lags must not grow the queue without bound either.
        if len(self._waiting) >= 2 * self._limit:
            self.dropped += sum(isinstance(queued, Arrived) for queued in self._waiting)
            self._waiting.clear()
            event = Restarted()
        self._waiting.append(event)
        self._changed.set()

    def close(self) -> None:
        """Let the reader end after the events that wait."""
        self._closed = True
        self._changed.set()

    async def events(self) -> AsyncIterator[MeshEvent]:
        """Yield events as they come, until `close`."""
        while True:
            while self._waiting:
                yield self._waiting.popleft()
                # One frame may take 15 ms; other tasks have their turn before the next.
                await asyncio.sleep(0)
            if self._closed:
                return
            self._changed.clear()
            await self._changed.wait()


class ByteQueue:
    """One direction of a pipe, with one reader and one writer on the same event loop."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._chunks: deque[bytes] = deque()
        self._waiting = 0
        self._ended = False
        self._cut = False
        self._changed = asyncio.Event()

    @property
    def ended(self) -> bool:
        """Whether the writer said that it is done."""
        return self._ended

    @property
    def closed(self) -> bool:
        """Whether no more bytes are accepted."""
        return self._ended or self._cut

    async def read(self) -> bytes:
        """Return the next chunk, `b""` at the end; raise `PeerUnreachable` when cut before the end."""
        while not self._chunks:
            if self._ended:
                return b""
            if self._cut:
                raise PeerUnreachable("the pipe was cut")
            await self._wait_for_change()
        chunk = self._chunks.popleft()
        self._waiting -= len(chunk)
        self._notify_change()
        return chunk

    async def write(self, chunk: bytes) -> None:
        """Append a chunk once there is room; raise `PeerUnreachable` when cut."""
        while self._waiting >= self._limit and not self._cut:
            await self._wait_for_change()
        self.feed(chunk)

    def feed(self, chunk: bytes) -> None:
        """Append a chunk at once, for a writer that respects the limit by other means."""
        if self._cut or self._ended:
            raise PeerUnreachable("the pipe was cut or finished")
        if chunk:
            self._chunks.append(chunk)
            self._waiting += len(chunk)
            self._notify_change()

    def end(self) -> None:
        """Say that no more bytes follow."""
        self._ended = True
        self._notify_change()

    def cut(self) -> None:
        """Refuse more bytes; waiting ones are lost unless the writer had ended."""
        self._cut = True
        if not self._ended:
            self._chunks.clear()
            self._waiting = 0
        self._notify_change()

    def _notify_change(self) -> None:
        self._changed.set()

    async def _wait_for_change(self) -> None:
        self._changed.clear()
        await self._changed.wait()
