"""Yamux that writes each frame whole or ends its connection, and bounds the memory that one connection may hold.

The library cancels a write at any point, so a question that timed out could leave half a frame, or a frame that was encrypted
and not sent: after either, the other end can read nothing more. The library also keeps bytes beyond the window with only a
warning, does not limit the streams that a peer opens, and continues to read, and to log, on a connection on which it can no
longer write.
"""

import struct
from collections.abc import Awaitable, Callable
from typing import Any

import trio
from libp2p.stream_muxer.yamux.yamux import (
    FLAG_SYN,
    TYPE_WINDOW_UPDATE,
    YAMUX_HEADER_FORMAT,
    Yamux,
    YamuxStream,
)

WRITE_SECONDS = 5.0
"""Seconds within which a whole frame must be written; as long as yamux waits for a window."""

MAX_STREAMS = 768
"""Streams of one connection, ours and the peer's; the questions and pipes of a full node need half as many."""

MAX_BUFFERED = 32 * 1024 * 1024
"""Unread bytes on all streams of one connection; four answers of the greatest length."""

# The library sometimes grants a little more than its target window.
_WINDOWS = 2


class GuardedYamux(Yamux):
    """Yamux with whole frames and with bounds. A peer that exceeds a bound loses its connection."""

    def __init__(self, *positional: Any, **keywords: Any) -> None:
        super().__init__(*positional, **keywords)
        self.streams = _Streams()
        self.stream_buffers = _Buffers(self)
        self.heard = float("-inf")
        """When data arrived last, on trio's clock."""
        self._remote: tuple[str, int] | None = None

    def get_remote_address(self) -> tuple[str, int] | None:
        """Return the address of the other end, asked for once: `Watch` wants it of all connections at each change."""
        if self._remote is None:
            self._remote = super().get_remote_address()
        return self._remote

    async def _read_data_body(self, length: int) -> bytes:
        data: bytes = await super()._read_data_body(length)
        self.heard = trio.current_time()
        return data

    async def _write_frame(self, data: bytes) -> None:
        try:
            await self._write_lock.acquire()
        except trio.Cancelled:
            self._forget_unopened(data)
            raise
        try:
            with trio.CancelScope(shield=True):
                await self._write_whole(data)
        finally:
            self._write_lock.release()

    async def _write_whole(self, data: bytes) -> None:
        written = False
        try:
            with trio.fail_after(WRITE_SECONDS):
                await self.secured_conn.write(data)
                written = True
        finally:
            if not written:
                # The library would read on as long as bytes arrive, and log each answer that it cannot send.
                self.event_shutting_down.set()
                await self.secured_conn.close()

    def _forget_unopened(self, frame: bytes) -> None:
        """Forget a stream whose first frame is not sent: the library would keep it, and its slot among those being opened."""
        _, kind, flags, number, _ = struct.unpack_from(YAMUX_HEADER_FORMAT, frame)
        if kind == TYPE_WINDOW_UPDATE and flags & FLAG_SYN and number in self.streams:
            self._finalize_stream_locked(self.streams[number], fully_closed=True)


class _Streams(dict[int, YamuxStream]):
    def __setitem__(self, number: int, stream: YamuxStream) -> None:
        if len(self) >= MAX_STREAMS:
            raise _enough("streams")
        super().__setitem__(number, stream)


class _Buffers(dict[int, bytearray]):
    def __init__(self, connection: Yamux) -> None:
        super().__init__()
        self._connection = connection

    def __setitem__(self, number: int, content: bytearray) -> None:
        super().__setitem__(number, _Buffer(self, number, content))

    def require_room(self, number: int, size: int) -> None:
        """Raise unless a stream may hold `size` bytes and all streams together then stay within `MAX_BUFFERED`."""
        stream = self._connection.streams.get(number)
        if stream is not None and size > _WINDOWS * stream.target_recv_window:
            raise _enough("bytes beyond the window")
        if size + sum(len(b) for n, b in self.items() if n != number) > MAX_BUFFERED:
            raise _enough("unread bytes")


class _Buffer(bytearray):
    """The bytes that arrived on one stream and are not read yet."""

    def __init__(self, buffers: _Buffers, number: int, content: bytearray) -> None:
        super().__init__(content)
        self._buffers = buffers
        self._number = number

    def extend(self, more: Any) -> None:
        self._buffers.require_room(self._number, len(self) + len(more))
        super().extend(more)


def _enough(of_what: str) -> trio.TooSlowError:
    # Of all exceptions while the library reads a frame, only this one ends the connection wherever it is raised.
    return trio.TooSlowError(f"too many {of_what}")


WINDOW_BATCH = 16 * 1024
"""Bytes read before a window update is sent; libp2p sends one for each read, even of one byte."""


def batching(original: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
    """Wrap the library's window update so that one is sent for `WINDOW_BATCH` bytes instead of for each read."""

    async def _batched_window_update(self: Any, *, bytes_read: int = 0) -> None:
        total = self.__dict__.get("_read_since_update", 0) + bytes_read
        if total < WINDOW_BATCH and self.recv_window > self.target_recv_window // 2:
            self._read_since_update = total
            return
        self._read_since_update = 0
        await original(self, bytes_read=total)

    return _batched_window_update
