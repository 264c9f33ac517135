"""Multiplexer with bounds on what one connection holds of our memory. Yamux that closes a connection whose peer breaks its rules.

The library's yamux only warns of bytes beyond the window and keeps them, counts no streams that a peer opens, and goes on
reading, and complaining, after a connection on which it can no longer write.
"""

from typing import Any

import trio
from libp2p.stream_muxer.yamux.yamux import Yamux, YamuxStream

MAX_STREAMS = 768
"""Streams of one connection, ours and the peer's; the questions and pipes of a full node are half as many."""

MAX_BUFFERED = 32 * 1024 * 1024
"""Bytes that wait to be read on all streams of one connection; four questions of the greatest length."""

# The library sometimes grants a little more than the window that it aims at.
_WINDOWS = 2


class GuardedYamux(Yamux):
    """Yamux with bounds. A peer beyond one of them loses its connection."""

    def __init__(self, *positional: Any, **named: Any) -> None:
        super().__init__(*positional, **named)
        self.streams = _Streams()
        self.stream_buffers = _Buffers(self)

    async def _write_frame(self, data: bytes) -> None:
        try:
            await super()._write_frame(data)
        except Exception:
            # The library would read on as long as there is something to read, and log each answer that it cannot send.
            self.event_shutting_down.set()
            raise


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
        """Raise unless a stream may hold `size` bytes, and all streams together as many as they would then."""
        stream = self._connection.streams.get(number)
        if stream is not None and size > _WINDOWS * stream.target_recv_window:
            raise _enough("bytes beyond the window")
        if size + sum(len(b) for n, b in self.items() if n != number) > MAX_BUFFERED:
            raise _enough("unread bytes")


class _Buffer(bytearray):
    """What came in on one stream and was not read."""

    def __init__(self, buffers: _Buffers, number: int, content: bytearray) -> None:
        super().__init__(content)
        self._buffers = buffers
        self._number = number

    def extend(self, more: Any) -> None:
        self._buffers.require_room(self._number, len(self) + len(more))
        super().extend(more)


def _enough(of_what: str) -> trio.TooSlowError:
    # Of all that may be raised while the library reads a frame, only this ends the connection wherever it is raised.
    return trio.TooSlowError(f"too many {of_what}")
