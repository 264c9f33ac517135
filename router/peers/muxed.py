"""Connection between two nodes that carries many streams, each a transport of its own: the shell around `router.peers.mux`.

All frames of one turn of the loop leave in one write. A reader who stalls holds up its own stream alone.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Protocol, cast

from registry.errors import ProtocolViolation
from router.peers.mux import Cut, Ended, Event, GoneAway, Mux, Opened, Received

LOOK_SECONDS = 15.0
"""Seconds without a word after which the other side is asked whether it lives."""

SILENT_LOOKS = 4
"""Such questions in a row without a word, after which the connection is cut: a machine that is gone closes nothing."""

IDLE_LOOKS = 4
"""Such looks in a row without a stream, after which the asking side ends the connection."""

TURN_BYTES = 256 * 1024
"""Bytes that are sent in one turn of the loop, and that the transport may hold before streams wait."""

_HELD_BYTES = 64 * 1024  # of a stream, before its writer is told to wait; it may say otherwise

log = logging.getLogger("modelvine.links")

Streaming = asyncio.Protocol | asyncio.BufferedProtocol
Factory = Callable[[], Streaming]


class MuxedStream(asyncio.Transport):
    """Transport of one stream, for a protocol that would else have a connection of its own."""

    def __init__(self, connection: "MuxedConnection", number: int, protocol: Streaming) -> None:
        super().__init__()
        self.number = number
        self._connection = connection
        self._protocol = protocol
        self._high, self._low = _HELD_BYTES, _HELD_BYTES // 4
        self._full = False
        self._closing = self._lost = False
        self._paused = False
        self._unread: deque[bytes] = deque()
        self._ended = False
        """Whether the other side has ended, and the protocol was not told."""

    # What the protocol calls.

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return what the connection knows of itself."""
        return self._connection.get_extra_info(name, default)

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Have another protocol from now on."""
        self._protocol = cast("Streaming", protocol)

    def get_protocol(self) -> asyncio.BaseProtocol:
        """Return the protocol."""
        return self._protocol

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
            self._connection.mux.send(self.number, data)
            self._connection.flush_soon()
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
        self._unread.append(data)
        self._hand_over()

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
            taken = self._deliver(data)
            self._connection.consumed(self.number, taken)
            if taken < len(data) and not self._closing:
                self._unread.appendleft(data[taken:])
        if self._ended and self.is_reading():
            self._ended = False
            if not self._protocol.eof_received():
                self.close()

    def _deliver(self, data: bytes) -> int:
        """Hand bytes to the protocol; return how many it took before it paused."""
        protocol = self._protocol
        if not isinstance(protocol, asyncio.BufferedProtocol):
            protocol.data_received(data)
            return len(data)
        taken = 0
        while taken < len(data) and self.is_reading():
            buffer = memoryview(protocol.get_buffer(len(data) - taken))
            piece = data[taken : taken + len(buffer)]
            buffer[: len(piece)] = piece
            protocol.buffer_updated(len(piece))
            taken += len(piece)
        return taken


class Owner(Protocol):
    """Whoever has connections."""

    def begun(self, connection: "MuxedConnection") -> None:
        """Take in a connection that stands."""

    def ended(self, connection: "MuxedConnection") -> None:
        """Forget a connection that is gone."""


class MuxedConnection(asyncio.Protocol):
    """One connection, and its streams."""

    def __init__(self, owner: "Owner", *, accept: Factory | None = None) -> None:
        """With `accept`, which makes the protocol of each stream, this is the side that is asked."""
        self.loop = asyncio.get_running_loop()
        self.mux = Mux(asking=accept is None)
        self.draining = False
        """Whether no new requests are sent on it: its streams go on, and it ends with them."""
        self._accept = accept
        self._owner = owner
        self._transport: asyncio.Transport | None = None
        self._streams: dict[int, MuxedStream] = {}
        self._watched: dict[MuxedStream, None] = {}
        self._flush: asyncio.Handle | None = None
        self._blocked = False
        self._heard = True
        self._silent = self._idle = 0
        self._look: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._streams)

    @property
    def open(self) -> bool:
        """Whether it stands."""
        return self._transport is not None and not self._transport.is_closing()

    def stream(self, protocol: Streaming) -> None:
        """Open a stream for a protocol."""
        self._begin(self.mux.open(), protocol)
        self.flush_soon()

    def drain(self) -> None:
        """Open nothing more on it, and end with the last stream."""
        self.draining = True
        self._end_when_idle()

    def go_away(self) -> None:
        """Take no new streams, and tell the other side so, which ends the connection with its last stream."""
        if not self.mux.leaving and self._transport is not None:
            self.draining = True
            self.mux.go_away()
            self.flush_soon()

    def abort(self) -> None:
        """Cut it."""
        if self._transport is not None:
            self._transport.abort()

    # What streams call.

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return what the transport knows."""
        return default if self._transport is None else self._transport.get_extra_info(name, default)

    def flush_soon(self) -> None:
        """Send what there is at the end of this turn of the loop."""
        if self._flush is None and not self._blocked:
            self._flush = self.loop.call_soon(self._flushed)

    def consumed(self, number: int, count: int) -> None:
        """A stream's reader has taken bytes."""
        self.mux.consumed(number, count, self.loop.time())
        if self.mux.wants_to_send:
            self.flush_soon()

    def watch(self, stream: MuxedStream) -> None:
        """Tell a stream when something was sent."""
        self._watched[stream] = None

    def unwatch(self, stream: MuxedStream) -> None:
        """Tell it no more, unless it is closing."""
        if not stream.is_closing():
            self._watched.pop(stream, None)

    def forget(self, stream: MuxedStream) -> None:
        """A stream is over."""
        self._streams.pop(stream.number, None)
        self._watched.pop(stream, None)
        self._end_when_idle()

    # What the transport calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(TURN_BYTES)
        self._look = self.loop.call_later(LOOK_SECONDS, self._see_to_it)
        self._owner.begun(self)

    def data_received(self, data: bytes) -> None:
        """Take in bytes."""
        self._heard = True
        try:
            events = self.mux.receive(data, self.loop.time())
        except ProtocolViolation as error:
            log.warning("a link to another node is cut: %s", error)
            self.abort()
            return
        for event in events:
            self._happened(event)
        if self.mux.wants_to_send:
            self.flush_soon()

    def pause_writing(self) -> None:
        """The transport holds enough: streams keep what they have."""
        self._blocked = True

    def resume_writing(self) -> None:
        """The transport takes more."""
        self._blocked = False
        self.flush_soon()

    def connection_lost(self, error: Exception | None) -> None:
        """The connection is gone, and every stream with it."""
        self._transport = None
        self.draining = True
        for handle in (self._flush, self._look):
            if handle is not None:
                handle.cancel()
        for stream in tuple(self._streams.values()):
            stream.lose(error or ConnectionResetError("the link is gone"))
        self._owner.ended(self)

    # How.

    def _begin(self, number: int, protocol: Streaming) -> None:
        stream = self._streams[number] = MuxedStream(self, number, protocol)
        protocol.connection_made(stream)

    def _happened(self, event: Event) -> None:
        match event:
            case Opened(number) if self._accept is not None:
                self._begin(number, self._accept())
            case Received(number, data) if (stream := self._streams.get(number)) is not None:
                stream.feed(data)
            case Ended(number) if (stream := self._streams.get(number)) is not None:
                stream.feed_end()
            case Cut(number, taken) if (stream := self._streams.get(number)) is not None:
                # Nobody has read a byte of what is refused.
                stream.lose(ConnectionResetError() if taken else ConnectionRefusedError())
            case GoneAway():
                self.drain()
            case _:
                pass  # of a stream that was closed by an event before

    def _flushed(self) -> None:
        self._flush = None
        self._send()
        for stream in tuple(self._watched):
            stream.sent()
        self._end_when_idle()
        if self.mux.wants_to_send:
            self.flush_soon()

    def _send(self) -> None:
        if not self._blocked and self._transport is not None:
            data = self.mux.data_to_send(TURN_BYTES)
            if data:
                self._transport.write(data)

    def _end_when_idle(self) -> None:
        # The asked side may still have to refuse what is on its way.
        over = self.draining and self._accept is None and not self._streams
        if over and self._transport is not None:
            self._send()
            if not self.mux.wants_to_send:
                self._transport.close()

    def _see_to_it(self) -> None:
        """End what nobody uses; ask whether the other end lives where nothing comes, and cut what is dead."""
        self._silent = 0 if self._heard else self._silent + 1
        self._idle = 0 if self._streams else self._idle + 1
        self._heard = False
        if self._silent > SILENT_LOOKS:
            log.warning("a link to another node is cut: nothing was heard of it")
            self.abort()
            return
        if self._idle > IDLE_LOOKS:
            self.drain()
        if self._silent:
            self.mux.ping()
            self.flush_soon()
        self._look = self.loop.call_later(LOOK_SECONDS, self._see_to_it)
