"""Byte queue before a slow reader: in order, bounded; the writer waits when the bound is reached."""

import asyncio
from collections import deque

from registry.errors import PeerUnreachable


class ByteQueue:
    """One direction of a pipe, with one reader and one writer on the same event loop."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._chunks: deque[bytes] = deque()
        self._waiting = 0
        self._ended = False
        self._cut = False
        self._stirred = asyncio.Event()

    @property
    def ended(self) -> bool:
        """Whether the writer said that it is done."""
        return self._ended

    @property
    def closed(self) -> bool:
        """Whether no more bytes will be taken."""
        return self._ended or self._cut

    async def read(self) -> bytes:
        """Return the next chunk, `b""` at the end; raise `PeerUnreachable` when cut before the end."""
        while not self._chunks:
            if self._ended:
                return b""
            if self._cut:
                raise PeerUnreachable("the pipe was cut")
            await self._change()
        chunk = self._chunks.popleft()
        self._waiting -= len(chunk)
        self._stir()
        return chunk

    async def write(self, chunk: bytes) -> None:
        """Append a chunk once there is room; raise `PeerUnreachable` when cut."""
        while self._waiting >= self._limit and not self._cut:
            await self._change()
        self.feed(chunk)

    def feed(self, chunk: bytes) -> None:
        """Append a chunk now, for a writer that keeps to the limit by other means."""
        if self._cut or self._ended:
            raise PeerUnreachable("the pipe was cut or finished")
        if chunk:
            self._chunks.append(chunk)
            self._waiting += len(chunk)
            self._stir()

    def end(self) -> None:
        """Say that no more bytes follow."""
        self._ended = True
        self._stir()

    def cut(self) -> None:
        """Refuse more bytes; what waits is lost unless the writer had ended."""
        self._cut = True
        if not self._ended:
            self._chunks.clear()
            self._waiting = 0
        self._stir()

    def _stir(self) -> None:
        self._stirred.set()

    async def _change(self) -> None:
        self._stirred.clear()
        await self._stirred.wait()
