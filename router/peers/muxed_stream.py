"""Stream of a shared connection as a transport, for a protocol that would otherwise have a connection of its own.

A stalled reader holds up this stream alone: what it has not taken is bounded by the window of `router.peers.mux`.
"""

import asyncio
from collections import deque
from collections.abc import Iterable
from typing import Any, Protocol, cast

from router.peers.mux import Mux

_REPORTED_BYTES = 4 * 1024
"""Bytes that a protocol takes before the connection is told: few compared to a window, so that no writer waits for them."""

_HELD_BYTES = 64 * 1024  # default high-water mark of a stream's unsent bytes


class StreamProtocol(Protocol):
    """Methods of asyncio's protocols; a buffered one, which has a buffer for a socket, takes a stream's bytes this way too."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the transport."""

    def data_received(self, data: bytes) -> None:
        """Take in bytes."""

    def eof_received(self) -> bool | None:
        """Take in the other side's end; return whether the stream stays open."""

    def pause_writing(self) -> None:
        """Stop writing: the transport holds enough."""

    def resume_writing(self) -> None:
        """Write again: the transport takes more."""

    def connection_lost(self, exc: Exception | None) -> None:
        """Take in that the stream is over."""


class Carrier(Protocol):
    """What a stream needs of the connection that carries it."""

    loop: asyncio.AbstractEventLoop
    mux: Mux

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return what the transport knows."""

    def flush_soon(self) -> None:
        """Send what is ready at the end of this turn of the loop."""

    def consumed(self, number: int, count: int) -> None:
        """Note that a stream's reader has taken bytes."""

    def watch(self, stream: "MuxedStream") -> None:
        """Tell a stream from now on when something was sent."""

    def unwatch(self, stream: "MuxedStream") -> None:
        """Stop telling a stream, unless it is closing."""

    def forget(self, stream: "MuxedStream") -> None:
        """Forget a stream that is over."""


class MuxedStream(asyncio.Transport):
    """Transport of one stream, for a protocol that would otherwise have a connection of its own."""

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
        self._unreported = 0
        """Bytes that the protocol has taken and the connection was not yet told of."""
        self._ended = False
        """Whether the other side has ended and the protocol was not yet told."""

    # Called by the protocol.

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return what the connection knows of itself."""
        return self._connection.get_extra_info(name, default)

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Use another protocol from now on."""
        self._protocol = cast("StreamProtocol", protocol)

    def get_protocol(self) -> asyncio.BaseProtocol:
        """Return the protocol."""
        return cast("asyncio.BaseProtocol", self._protocol)

    def is_closing(self) -> bool:
        """Return whether nothing more can be written."""
        return self._closing

    def is_reading(self) -> bool:
        """Return whether bytes are handed over as they come."""
        return not (self._paused or self._closing)

    def pause_reading(self) -> None:
        """Keep what comes, which is at most what the other side has credit for."""
        self._paused = True

    def resume_reading(self) -> None:
        """Hand over what comes, and soon what was kept."""
        if self._paused:
            self._paused = False
            if self._unread or self._ended:
                self._connection.loop.call_soon(self._hand_over)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Set the high-water mark of unsent bytes, above which the protocol is paused, and the low-water mark to resume it."""
        if high is None:
            high = _HELD_BYTES if low is None else 4 * low
        self._high, self._low = high, high // 4 if low is None else low
        self._pause_if_full()

    def get_write_buffer_limits(self) -> tuple[int, int]:
        """Return the low-water and the high-water mark."""
        return self._low, self._high

    def get_write_buffer_size(self) -> int:
        """Return how many bytes wait for credit, or for their turn."""
        return self._connection.mux.unsent(self.number)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send bytes at the end of this turn of the loop."""
        if data and not self._closing:
            unsent = self._connection.mux.send(self.number, data)
            self._connection.flush_soon()
            if unsent > self._high:
                self._pause_if_full()

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        """Send several pieces."""
        self.write(b"".join(list_of_data))

    def can_write_eof(self) -> bool:
        """Return true: each direction has an end of its own."""
        return True

    def write_eof(self) -> None:
        """Half-close: send nothing more, and read on."""
        self._connection.mux.end(self.number)
        self._connection.flush_soon()

    def close(self) -> None:
        """Send what waits and the end, and read no more."""
        if not self._closing:
            self._closing = True
            self._unread.clear()
            self._connection.mux.close(self.number)
            self._connection.flush_soon()
            self._connection.watch(self)

    def abort(self) -> None:
        """Cut the stream at once."""
        if not self._lost:
            self._connection.mux.reset(self.number)
            self._connection.flush_soon()
            self.fail(None)

    # Called by the connection.

    def feed(self, data: bytes) -> None:
        """Take in bytes."""
        if self._unread or self._paused or self._closing:
            self._unread.append(data)
            return
        self._protocol.data_received(data)
        self._unreported += len(data)
        if self._unreported >= _REPORTED_BYTES:
            self._report_consumed()

    def feed_eof(self) -> None:
        """Take in the other side's end."""
        self._ended = True
        self._hand_over()

    def on_sent(self) -> None:
        """Note that something was sent: resume the protocol if few bytes are left, and end a closing stream if none are."""
        unsent = self.get_write_buffer_size()
        if self._full and unsent <= self._low:
            self._full = False
            self._connection.unwatch(self)
            self._protocol.resume_writing()
        if self._closing and not unsent:
            self.fail(None)

    def fail(self, error: Exception | None) -> None:
        """End the stream; the protocol is told soon."""
        if not self._lost:
            self._closing = self._lost = True
            self._unread.clear()
            self._connection.forget(self)
            self._connection.loop.call_soon(self._protocol.connection_lost, error)

    # Internals.

    def _pause_if_full(self) -> None:
        if not self._full and self.get_write_buffer_size() > self._high:
            self._full = True
            self._connection.watch(self)
            self._protocol.pause_writing()

    def _hand_over(self) -> None:
        while self._unread and self.is_reading():
            data = self._unread.popleft()
            self._protocol.data_received(data)
            self._unreported += len(data)
            self._report_consumed()
        if self._ended and self.is_reading():
            self._ended = False
            if not self._protocol.eof_received():
                self.close()

    def _report_consumed(self) -> None:
        taken, self._unreported = self._unreported, 0
        self._connection.consumed(self.number, taken)
