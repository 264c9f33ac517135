"""Stream of a shared connection as a transport, for a protocol that would else have a connection of its own.

A reader who stalls holds up this stream alone: what it has not taken is bounded by the window of `router.peers.mux`.
"""

import asyncio
from collections import deque
from collections.abc import Iterable
from typing import Any, Protocol, cast

from router.peers.mux import Mux

_TOLD_BYTES = 4 * 1024
"""Bytes that a protocol takes before the connection is told: few beside a window, so that no writer waits for them."""

_HELD_BYTES = 64 * 1024  # before its writer is told to wait; it may say otherwise


class StreamProtocol(Protocol):
    """What asyncio's protocols have: one whose bytes a socket puts into a buffer takes them from a stream as they are."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""

    def data_received(self, data: bytes) -> None:
        """Take in bytes."""

    def eof_received(self) -> bool | None:
        """Nothing more comes; return whether the stream stays open."""

    def pause_writing(self) -> None:
        """The transport holds enough."""

    def resume_writing(self) -> None:
        """The transport takes more."""

    def connection_lost(self, exc: Exception | None) -> None:
        """The stream is over."""


class Carrier(Protocol):
    """What a stream needs of the connection that carries it."""

    loop: asyncio.AbstractEventLoop
    mux: Mux

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return what the transport knows."""

    def flush_soon(self) -> None:
        """Send what there is at the end of this turn of the loop."""

    def consumed(self, number: int, count: int) -> None:
        """A stream's reader has taken bytes."""

    def watch(self, stream: "MuxedStream") -> None:
        """Tell a stream when something was sent."""

    def unwatch(self, stream: "MuxedStream") -> None:
        """Tell it no more, unless it is closing."""

    def forget(self, stream: "MuxedStream") -> None:
        """A stream is over."""


class MuxedStream(asyncio.Transport):
    """Transport of one stream, for a protocol that would else have a connection of its own."""

    def __init__(self, connection: Carrier, number: int, protocol: StreamProtocol) -> None:
        super().__init__()
        self.number = number
        self._connection = connection
        self._protocol = protocol
        self._high, self._low = _HELD_BYTES, _HELD_BYTES // 4
        self._full = False
        self._closing = self._lost = False
        self._paused = False
        self._unread: deque[bytes] = deque()
        self._taken = 0
        """Bytes that the protocol has taken, and the connection was not told of."""
        self._ended = False
        """Whether the other side has ended, and the protocol was not told."""

    # What the protocol calls.

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return what the connection knows of itself."""
        return self._connection.get_extra_info(name, default)

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Have another protocol from now on."""
        self._protocol = cast("StreamProtocol", protocol)

    def get_protocol(self) -> asyncio.BaseProtocol:
        """Return the protocol."""
        return cast("asyncio.BaseProtocol", self._protocol)

    def is_closing(self) -> bool:
        """Whether nothing more can be written."""
        return self._closing

    def is_reading(self) -> bool:
        """Whether bytes are handed over as they come."""
        return not (self._paused or self._closing)

    def pause_reading(self) -> None:
        """Keep what comes: so much as the other side has credit for, and no more."""
        self._paused = True

    def resume_reading(self) -> None:
        """Hand over what was kept, soon."""
        if self._paused:
            self._paused = False
            if self._unread or self._ended:
                self._connection.loop.call_soon(self._hand_over)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Say how many bytes may wait before the protocol is told to wait, and how few before it may go on."""
        if high is None:
            high = _HELD_BYTES if low is None else 4 * low
        self._high, self._low = high, high // 4 if low is None else low
        self._fill()

    def get_write_buffer_limits(self) -> tuple[int, int]:
        """Return both."""
        return self._low, self._high

    def get_write_buffer_size(self) -> int:
        """Return how many bytes wait for credit, or for their turn."""
        return self._connection.mux.unsent(self.number)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send bytes with this turn's."""
        if data and not self._closing:
            unsent = self._connection.mux.send(self.number, data)
            self._connection.flush_soon()
            if unsent > self._high:
                self._fill()

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        """Send several."""
        self.write(b"".join(list_of_data))

    def can_write_eof(self) -> bool:
        """Each way has an end of its own."""
        return True

    def write_eof(self) -> None:
        """Send nothing more, and read on."""
        self._connection.mux.end(self.number)
        self._connection.flush_soon()

    def close(self) -> None:
        """Send what waits and the end, read no more."""
        if not self._closing:
            self._closing = True
            self._unread.clear()
            self._connection.mux.close(self.number)
            self._connection.flush_soon()
            self._connection.watch(self)

    def abort(self) -> None:
        """Cut the stream at once."""
        if not self._lost:
            self._connection.mux.cut(self.number)
            self._connection.flush_soon()
            self.lose(None)

    # What the connection calls.

    def feed(self, data: bytes) -> None:
        """Take in bytes."""
        if self._unread or self._paused or self._closing:
            self._unread.append(data)
            return
        self._protocol.data_received(data)
        self._taken += len(data)
        if self._taken >= _TOLD_BYTES:
            self._tell()

    def feed_end(self) -> None:
        """The other side has ended."""
        self._ended = True
        self._hand_over()

    def sent(self) -> None:
        """Something was sent: go on writing if enough was, and end when all was that had to be."""
        unsent = self.get_write_buffer_size()
        if self._full and unsent <= self._low:
            self._full = False
            self._connection.unwatch(self)
            self._protocol.resume_writing()
        if self._closing and not unsent:
            self.lose(None)

    def lose(self, error: Exception | None) -> None:
        """The stream is over; the protocol is told soon."""
        if not self._lost:
            self._closing = self._lost = True
            self._unread.clear()
            self._connection.forget(self)
            self._connection.loop.call_soon(self._protocol.connection_lost, error)

    # How.

    def _fill(self) -> None:
        if not self._full and self.get_write_buffer_size() > self._high:
            self._full = True
            self._connection.watch(self)
            self._protocol.pause_writing()

    def _hand_over(self) -> None:
        while self._unread and self.is_reading():
            data = self._unread.popleft()
            self._protocol.data_received(data)
            self._taken += len(data)
            self._tell()
        if self._ended and self.is_reading():
            self._ended = False
            if not self._protocol.eof_received():
                self.close()

    def _tell(self) -> None:
        taken, self._taken = self._taken, 0
        self._connection.consumed(self.number, taken)
