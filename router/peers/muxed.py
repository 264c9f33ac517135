"""Connection between two nodes that carries many streams: the I/O around `router.peers.mux`.

All frames of one turn of the loop leave in one write. A dead connection is noticed and cut, an unused one is closed.
"""

import asyncio
import logging
import socket
from collections.abc import Callable
from typing import Any, Protocol, cast

from registry.errors import ProtocolViolation
from router.http.errors import LinkStuck
from router.peers.mux import Answered, Ended, Event, GoneAway, Mux, Opened, Received, StreamCut
from router.peers.muxed_stream import MuxedStream, StreamProtocol

CHECK_SECONDS = 5.0
"""Seconds between two checks, at which the other side is pinged if it is silent or streams are open.

One that leaves a ping unanswered until the next check gets no new streams: large packets may not pass, while small ones do.
"""

SILENT_CHECKS = 12
"""Pings in a row without a byte in return, after which the connection is cut: a machine that is gone closes nothing."""

STUCK_CHECKS = 2
"""Checks in a row with a ping unanswered and nothing delivered, though the other side is heard, after which it is cut."""

STUCK_RETRANSMISSIONS = 4
"""Transmissions of the same bytes in a row, from which on they count as stuck: some 3 s at a short round trip."""

IDLE_CHECKS = 12
"""Checks in a row without a stream, after which the asking side ends the connection."""

ANSWER_SECONDS = 0.5
"""Seconds within which a connection in doubt has to answer a ping, or no more streams are opened on it."""

TURN_BYTES = 256 * 1024
"""Bytes that are sent in one turn of the loop, and that the transport may hold before streams wait."""

READ_BYTES = 64 * 1024
"""Bytes taken in at once from which on the rest of the loop has a turn before more are read."""

_RETRANSMITS = 2  # offset of `tcpi_retransmits` in Linux's `struct tcp_info`

log = logging.getLogger("modelvine.links")

Factory = Callable[[], StreamProtocol]


class Owner(Protocol):
    """Owner of connections."""

    def add_connection(self, connection: "MuxedConnection") -> None:
        """Take in a connection that is open."""

    def remove_connection(self, connection: "MuxedConnection") -> None:
        """Forget a connection that is gone."""


class MuxedConnection(asyncio.Protocol):
    """One connection, and its streams."""

    def __init__(self, owner: "Owner", *, accept: Factory | None = None) -> None:
        """Start the asked side if there is `accept`, which makes the protocol of each stream, else the asking side."""
        self.loop = asyncio.get_running_loop()
        self.mux = Mux(is_client=accept is None)
        self.draining = False
        """Whether no new requests are sent on it: its streams go on, and it ends with the last."""
        self.heard_at = self.loop.time()
        """When the last bytes came, on the event loop's clock."""
        self._accept = accept
        self._owner = owner
        self._transport: asyncio.Transport | None = None
        self._streams: dict[int, MuxedStream] = {}
        self._watched: dict[MuxedStream, None] = {}
        self._flush_handle: asyncio.Handle | None = None
        self._is_write_paused = False
        self._has_heard = True
        self._silent_checks = self._idle_checks = 0
        self._ping_pending = False
        """Whether a ping of an earlier check is not answered yet."""
        self._unanswered_checks = self._stuck_checks = 0
        self._pinged_stream = self._read_stream = 0
        """The newest stream when the last ping was sent, and when the last one that was answered was."""
        self.was_stuck = False
        """Whether it ended because bytes of one side did not arrive, as far as this side can tell."""
        self.loses_large = False
        """Whether these were the bytes of large packets alone."""
        self._check_timer: asyncio.TimerHandle | None = None
        self._pings: list[asyncio.Future[None]] = []

    def __len__(self) -> int:
        return len(self._streams)

    @property
    def is_open(self) -> bool:
        """Whether the connection is open."""
        return self._transport is not None and not self._transport.is_closing()

    def open_stream(self, protocol: StreamProtocol) -> None:
        """Open a stream for a protocol."""
        self._begin(self.mux.open(), protocol)
        self.draining = self.draining or self.mux.is_exhausted
        self.flush_soon()

    async def check(self, within: float = ANSWER_SECONDS, *, cut: bool = False) -> None:
        """Ping the other side, and drain unless it answers within so many seconds; with `cut`, cut it if it is silent so long."""
        answer = self.loop.create_future()
        self._pings.append(answer)
        self._ping()
        try:
            async with asyncio.timeout(within):
                await answer
        except TimeoutError:
            self.drain()
            if cut and self.heard_at < self.loop.time() - within:
                self._give_up()

    def drain(self) -> None:
        """Open no more streams, and end with the last one."""
        self.draining = True
        self._end_when_idle()

    def go_away(self) -> None:
        """Take no new streams, and tell the other side so, which ends the connection with its last stream."""
        if not self.mux.is_leaving and self._transport is not None:
            self.draining = True
            self.mux.go_away()
            self.flush_soon()

    def abort(self) -> None:
        """Cut the connection."""
        if self._transport is not None:
            self._transport.abort()

    # Called by streams.

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return what the transport knows."""
        return default if self._transport is None else self._transport.get_extra_info(name, default)

    def flush_soon(self) -> None:
        """Send what is ready at the end of this turn of the loop."""
        if self._flush_handle is None and not self._is_write_paused and self._transport is not None:
            self._flush_handle = self.loop.call_soon(self._run_flush)

    def consumed(self, number: int, count: int) -> None:
        """Note that a stream's reader has taken bytes."""
        if self.mux.consumed(number, count, self.loop.time()):
            self.flush_soon()

    def watch(self, stream: MuxedStream) -> None:
        """Tell a stream from now on when something was sent."""
        self._watched[stream] = None

    def unwatch(self, stream: MuxedStream) -> None:
        """Stop telling a stream, unless it is closing."""
        if not stream.is_closing():
            self._watched.pop(stream, None)

    def forget(self, stream: MuxedStream) -> None:
        """Forget a stream that is over."""
        self._streams.pop(stream.number, None)
        self._watched.pop(stream, None)
        self._end_when_idle()

    # Called by the transport.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport, start the checks, and tell the owner."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(TURN_BYTES)
        _limit_silence(transport.get_extra_info("socket"))
        self._check_timer = self.loop.call_later(CHECK_SECONDS, self._check_connection)
        self._owner.add_connection(self)

    def data_received(self, data: bytes) -> None:
        """Take in bytes."""
        self._has_heard, self.heard_at = True, self.loop.time()
        try:
            events = self.mux.receive(data, self.heard_at)
        except ProtocolViolation as error:
            log.warning("a link to another node is closed: %s", error)
            self.abort()
            return
        for event in events:
            # The common case; the other events need more checks.
            if type(event) is Received:
                number, piece = event
                if (stream := self._streams.get(number)) is not None:
                    stream.feed(piece)
            else:
                self._handle_event(event)
        if self.mux.wants_to_send:
            self.flush_soon()
        if len(data) >= READ_BYTES and self._transport is not None:
            # uvloop reads a socket up to 32 times in a row: so many short frames that they would hold up everything else.
            self._transport.pause_reading()
            self.loop.call_soon(self._read_on)

    def pause_writing(self) -> None:
        """Stop sending: the transport's buffer is full, so streams keep what they have."""
        self._is_write_paused = True

    def resume_writing(self) -> None:
        """Send again: the transport takes more."""
        self._is_write_paused = False
        self.flush_soon()

    def connection_lost(self, error: Exception | None) -> None:
        """End every stream, and tell the owner."""
        self._transport = None
        self.draining = True
        # The other side resets a connection on which its own bytes are stuck.
        reset = isinstance(error, ConnectionResetError)
        if self._unanswered_checks and reset:
            self.was_stuck = self.loses_large = True
        elif isinstance(error, TimeoutError):
            self.was_stuck = True
        for handle in (self._flush_handle, self._check_timer):
            if handle is not None:
                handle.cancel()
        self._ping_answered()
        lost = error or ConnectionResetError("the link is closed")
        for number, stream in tuple(self._streams.items()):
            stuck = self.was_stuck and not reset and number > self._read_stream
            stream.fail(LinkStuck() if stuck else lost)
        self._owner.remove_connection(self)

    # Internals.

    def _begin(self, number: int, protocol: StreamProtocol) -> None:
        stream = self._streams[number] = MuxedStream(self, number, protocol)
        protocol.connection_made(stream)

    def _handle_event(self, event: Event) -> None:
        match event:
            case Opened(number) if self._accept is not None:
                self._begin(number, self._accept())
            case Ended(number) if (stream := self._streams.get(number)) is not None:
                stream.feed_eof()
            case StreamCut(number, taken) if (stream := self._streams.get(number)) is not None:
                # No byte of a refused stream was read.
                stream.fail(ConnectionResetError() if taken else ConnectionRefusedError())
            case GoneAway():
                self.drain()
            case Answered():
                self._read_stream = self._pinged_stream
                self._ping_answered()
            case _:
                pass  # of a stream that an earlier event closed

    def _read_on(self) -> None:
        if self._transport is not None:
            self._transport.resume_reading()

    def _ping(self) -> None:
        self._pinged_stream = max(self._streams, default=self._pinged_stream)
        self.mux.ping()
        self.flush_soon()

    def _ping_answered(self) -> None:
        self._ping_pending, self._unanswered_checks = False, 0
        answers, self._pings = self._pings, []
        for answer in answers:
            if not answer.done():
                answer.set_result(None)

    def _run_flush(self) -> None:
        self._flush_handle = None
        self._send()
        if self._watched:
            for stream in tuple(self._watched):
                stream.on_sent()
        if self.draining:
            self._end_when_idle()
        if self.mux.wants_to_send:
            self.flush_soon()

    def _send(self) -> None:
        if not self._is_write_paused and self._transport is not None:
            data = self.mux.data_to_send(TURN_BYTES)
            if data:
                self._transport.write(data)

    def _end_when_idle(self) -> None:
        # The asked side does not close: it may still have to refuse streams that are on their way.
        finished = self.draining and self._accept is None and not self._streams
        if finished and self._transport is not None:
            self._send()
            if not self.mux.wants_to_send:
                self._transport.close()

    def _give_up(self) -> None:
        self.was_stuck = True
        self.abort()

    def _is_stuck(self) -> bool:
        """Return whether the same bytes were transmitted again and again without any of them being acknowledged."""
        wire = self.get_extra_info("socket")
        if not hasattr(socket, "TCP_INFO") or wire is None or not _is_tcp(wire):
            return False  # macOS has none, nor has a pipe
        info: bytes = wire.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _RETRANSMITS + 1)
        return info[_RETRANSMITS] >= STUCK_RETRANSMISSIONS

    def _check_connection(self) -> None:
        """Drain the connection if it is unused, ping the other side if it is silent, and cut the connection if that is dead."""
        self._silent_checks = 0 if self._has_heard else self._silent_checks + 1
        self._idle_checks = 0 if self._streams else self._idle_checks + 1
        self._unanswered_checks += self._ping_pending
        stuck = self._ping_pending and self._has_heard and self._is_stuck()
        self._stuck_checks = self._stuck_checks + 1 if stuck else 0
        self._has_heard = False
        if self._silent_checks > SILENT_CHECKS:
            log.warning("a link to another node is closed: it was silent")
            self._give_up()
            return
        if self._stuck_checks >= STUCK_CHECKS:
            log.warning(
                "a link to another node is closed: only small packets arrive there; check the MTU of the path"
            )
            self.loses_large = True
            self._give_up()
            return
        if self._idle_checks > IDLE_CHECKS or self._ping_pending:
            self.drain()
        # TLS that waits for a frozen peer's goodbye takes no more bytes, and warns of each.
        if self.is_open and (self._silent_checks or self._streams):
            self._ping_pending = True
            self._ping()
        self._check_timer = self.loop.call_later(CHECK_SECONDS, self._check_connection)


def _limit_silence(wire: socket.socket | None) -> None:
    """Have the kernel end a connection whose bytes stay unacknowledged for as long as a silent one may be silent."""
    if not hasattr(socket, "TCP_USER_TIMEOUT"):
        return  # macOS has none
    if wire is not None and _is_tcp(wire):
        milliseconds = int(1000 * CHECK_SECONDS * SILENT_CHECKS)
        wire.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, milliseconds)


def _is_tcp(wire: socket.socket) -> bool:
    return wire.family in (socket.AF_INET, socket.AF_INET6)
