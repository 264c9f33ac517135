"""Connection of one client: limits and timeouts before aiohttp sees it.

A handler of aiohttp's reads requests and writes answers; it is created when there are bytes to read, and gets one request after
another. Pipelined bytes wait until the request in flight has ended, and the socket is not read meanwhile. A periodic check ends
connections that take too long.
"""

import asyncio
from collections.abc import Mapping
from math import inf
from types import MappingProxyType
from typing import Any, cast

from aiohttp import HttpVersion10, HttpVersion11, web

from node import heads
from node.auth.socket_owner import UNASKED
from node.config.web import WebSettings
from node.faces.errors import FaceError, HeadTooLarge, HeadTooSlow, TooManyConnections
from node.faces.request_ids import id_of
from node.http_handler import LINGER_SECONDS, HttpHandler, is_refused, log
from node.lane.request import LaneRequest
from router.http.dial import acknowledge

HELD_BYTES = 64 * 1024
"""Unsent bytes of an answer beyond which its handler waits (high-water mark)."""

PIECE_BYTES, FEW_BYTES, MANY_LINES = 8 * 1024, 512, 128
"""Bytes that are parsed in one turn if no length is known; `FEW_BYTES` if more than `MANY_LINES` lines could be chunks."""

AHEAD_BYTES = 1024 * 1024
"""Received bytes that may wait to be parsed, from several reads if aiohttp resumes reading; more end the connection."""

STALL_SECONDS = 30.0
"""Seconds that a caller may take to read the rest of an answer whose handler is done."""

PROBE_SECONDS = 2.0
"""Seconds between two probes of a caller that has closed its side, as a relay may that leaves later; with HTTP/1.0, ever more."""

_SOON = 0.05  # seconds between two checks of a caller that has closed its side
_HEAD_END = b"\r\n\r\n"
_NOTHING: Mapping[str, str] = MappingProxyType({})


class ListenerContext:
    """What a connection needs from its listener, which is a subclass."""

    def __init__(self, settings: WebSettings, fixed: heads.FixedHeaders, now: float) -> None:
        self.head_timeout, self.idle_timeout = settings.head_timeout, settings.idle_timeout
        self.fixed = fixed
        self.now = now
        """The event loop's time at the last look at all connections."""
        self.closing = False
        """Whether each answer is the last one of its connection."""

    def add_connection(self, connection: "CallerConnection") -> bool:
        """Add an open connection; return whether there is room for it."""
        raise NotImplementedError

    def remove_connection(self, connection: "CallerConnection") -> None:
        """Remove a closed connection."""
        raise NotImplementedError


class CallerConnection(asyncio.Protocol):
    """One caller's connection."""

    __slots__ = (
        "_deadline", "_drain_waiter", "_handler", "_head_bytes", "_head_deadline", "_is_discarding", "_is_half_closed",
        "_is_head_parsed_alone", "_is_last_answer", "_is_read_paused", "_listener", "_loop", "_parse_handle", "_probe_due",
        "_request", "_server", "_unparsed", "address", "is_write_paused", "owner", "task", "transport",
    )  # fmt: skip

    def __init__(self, server: web.Server, listener: ListenerContext) -> None:
        self._loop = asyncio.get_running_loop()
        self._server = server
        self._listener = listener
        self.address = ""
        """The caller's IP address."""
        self.owner: int | None = UNASKED
        """Uid of the caller's process, `UNASKED` until it is looked up, `None` if unknown."""
        self.task: asyncio.Task[Any] | None = None
        """The task that answers a request of this connection, if any."""
        self.transport: asyncio.Transport | None = None
        """The transport; `None` before the connection is made and after it is lost."""
        self.is_write_paused = False
        """Whether the transport's write buffer is above its high-water mark."""
        self._drain_waiter: asyncio.Future[None] | None = None
        """Done once the transport takes more."""
        self._handler: HttpHandler | None = None
        self._request: web.BaseRequest | LaneRequest | None = None
        self._unparsed: bytes | memoryview = b""
        self._is_read_paused = False
        """Whether reading of the socket is paused because received bytes are not parsed yet."""
        self._parse_handle: asyncio.Handle | None = None
        self._is_head_parsed_alone = False
        """Whether the current head was parsed apart from the bytes behind it."""
        self._head_bytes = 0
        self._head_deadline = self._deadline = inf
        self._is_last_answer = self._is_discarding = False
        """Whether the answer is the last one here; whether received bytes are discarded."""
        self._is_half_closed, self._probe_due = False, inf
        """Whether the caller has closed its side; time of the next probe that finds out if it is still there, after the first."""

    # What the listener calls.

    @property
    def closes_at(self) -> float:
        """Time at which the connection is closed if nothing comes; infinite while a request is in flight."""
        return inf if self._request is not None else min(self._head_deadline, self._deadline)

    def begin_request(self, request: web.BaseRequest) -> None:
        """Make this the request in flight."""
        self._request = request
        self._head_deadline = self._deadline = inf
        self._head_bytes = 0
        if self._unparsed:
            self._schedule_parse()
        elif self.transport is not None and not request.content.is_eof():
            acknowledge(self.transport)

    def note_answered(self) -> None:
        """Start the time limit for the rest of the answer: the handler is done, and its bytes may still be unsent."""
        self._deadline = self._listener.now + STALL_SECONDS

    def is_last(self, request: web.BaseRequest) -> bool:
        """Return whether the answer to this request ends the connection."""
        if self._listener.closing or not request.content.is_eof():
            return True
        # If the head was not parsed apart, the bytes behind the upgrade offer are lost.
        headers = request.headers
        alone = self._is_head_parsed_alone
        return "upgrade" in headers and (not alone or "transfer-encoding" in headers)

    def check_timeouts(self, now: float) -> None:
        """Enforce the time limits; a head that has arrived and only waits for the loop is not too slow."""
        if self._request is not None:
            if now >= self._deadline or (self._is_half_closed and self._is_gone()):
                self.abort()
            elif now >= self._probe_due:
                self._probe(self._request, now)
        elif now >= self._head_deadline and not self._has_queue():
            if self._head_bytes:
                self.refuse(HeadTooSlow("the request's headers did not arrive in time"))
            else:
                self.end()
        elif now >= self._deadline:
            self.abort() if self._is_last_answer or self._is_discarding else self.end()

    def end_after_answer(self) -> None:
        """End the connection, after the answer to a request in flight."""
        if self._request is None and not self._has_queue():
            self.end()
        elif self._handler is not None:
            self._handler.close()

    def end(self) -> None:
        """Close the connection once all bytes are sent, within a time limit."""
        self._is_discarding, self._is_last_answer = True, True
        self._head_deadline, self._deadline = inf, self._listener.now + STALL_SECONDS
        if self._handler is not None:
            self._handler.force_close()
        if self.transport is not None:
            self.transport.close()

    def evict(self) -> None:
        """Close an idle connection at once; one with unsent bytes sends these first."""
        if self.transport is None or self.transport.get_write_buffer_size():
            self.end()
        else:
            self.abort()  # with TLS, `end` would keep the file open until the caller says goodbye

    def abort(self) -> None:
        """Cut the connection."""
        self._is_discarding = True
        if self.transport is not None:
            self.transport.abort()

    def refuse(self, error: FaceError, headers: Mapping[str, str] = _NOTHING) -> None:
        """Answer bytes that are not a valid request, and read no more; `headers` are the headers that could be read."""
        transport = self.transport
        if self._is_discarding or transport is None:
            return
        log.debug("refused an invalid request: %s", type(error).__name__)
        self._is_discarding, self._request, self._unparsed = True, None, b""
        # aiohttp would close the connection at once, and a caller that still sends would lose the answer.
        out = transport if self._handler is None else self._handler.detach() or transport
        self._head_deadline, self._deadline = inf, self._listener.now + LINGER_SECONDS
        out.write(heads.encode_refusal(error, id_of(headers), self._listener.fixed))
        if transport.can_write_eof():
            transport.write_eof()
            transport.resume_reading()
        else:
            transport.close()

    # What the transport calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start the connection, or refuse it if there is no room."""
        connected = self.transport = cast("asyncio.Transport", transport)
        name = connected.get_extra_info("peername")
        self.address = self.address or (str(name[0]) if isinstance(name, tuple) else "")
        connected.set_write_buffer_limits(HELD_BYTES)  # TLS would hold eight times as much
        if not self._listener.add_connection(self):
            self.refuse(TooManyConnections("too many connections are open"))
            connected.close()
            return
        self._head_deadline = self._loop.time() + self._listener.head_timeout

    def connection_lost(self, exc: Exception | None) -> None:
        """Release everything: the caller is gone, and its answer is no longer needed."""
        handler, waiter = self._handler, self._drain_waiter
        self.transport, self._request, self._unparsed, self.task = None, None, b"", None
        self._handler = self._drain_waiter = None  # breaks the reference cycle
        self._listener.remove_connection(self)
        if waiter is not None and not waiter.done():
            waiter.set_exception(ConnectionResetError("the caller is gone"))
        if handler is not None:
            handler.connection_lost(exc)

    def pause_writing(self) -> None:
        """Apply backpressure: the transport's buffer is full."""
        self.is_write_paused = True
        if self._handler is not None:
            self._handler.pause_writing()

    def resume_writing(self) -> None:
        """Resume writers: the transport takes more."""
        self.is_write_paused = False
        waiter, self._drain_waiter = self._drain_waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)
        if self._handler is not None:
            self._handler.resume_writing()

    async def drain(self) -> None:
        """Wait while the transport's buffer is full; raise `ConnectionError` if the caller is gone."""
        if self.transport is None:
            raise ConnectionResetError("the caller is gone")
        if self.is_write_paused:
            waiter = self._drain_waiter or self._loop.create_future()
            self._drain_waiter = waiter
            await waiter

    def data_received(self, data: bytes) -> None:
        """Take in received bytes."""
        if self._is_discarding:
            return
        if not self._unparsed:
            self._unparsed = data
            self._parse_next()
        elif len(self._unparsed) < AHEAD_BYTES:
            self._unparsed = b"".join((self._unparsed, data))
            self._pause()
        else:
            self.abort()

    def eof_received(self) -> bool | None:
        """Handle a half-close: finish the requests received so far; a caller that is gone is noticed when sent to."""
        request, transport = self._request, self.transport
        if self._is_half_closed:
            return True
        if self._is_discarding or transport is None or transport.get_extra_info("sslcontext"):
            return None
        if request is None:
            is_waiting = bool(self._head_bytes or self._has_queue() or self._unparsed)
        else:
            # A caller that closes its side in the middle of an answer has left.
            is_waiting = request.content.is_eof() and not request.writer.output_size
        if not is_waiting:
            return None
        self._is_half_closed = True
        self._loop.call_soon(self._check_half_closed)
        return True

    # What the handler calls.

    def body_resumed(self) -> None:
        """Pause the socket again if received bytes wait: aiohttp, which has room for more of a body, resumed it."""
        if self._unparsed:
            self._pause()

    def note_failure(self) -> None:
        """Cut the connection after a request that could not be answered, unless it is ending already."""
        if not self._is_discarding:
            self.abort()

    def note_sent(self, *, ends: bool) -> None:
        """Finish a request whose answer was sent as far as the caller reads it; go on to the next one unless it `ends`."""
        self._request = self.task = None
        self._is_last_answer = ends
        wait = STALL_SECONDS if ends else self._listener.idle_timeout
        self._deadline = self._listener.now + wait
        if self._is_half_closed:
            self._loop.call_later(_SOON, self._check_half_closed)
        if self._listener.closing:
            if self._handler is not None:
                self._handler.close()
        elif self._unparsed:
            self._schedule_parse()

    # Internals.

    def _schedule_parse(self) -> None:
        """Continue parsing in the next turn of the loop."""
        if self._parse_handle is None:
            self._parse_handle = self._loop.call_soon(self._parse_next)

    def _parse_next(self) -> None:
        """Parse a piece of the received bytes; the rest follows in later turns, or after earlier requests are answered."""
        self._parse_handle = None
        if self._is_discarding or self.transport is None:
            return
        if self._unparsed and not self._is_behind():
            data, size = self._unparsed, self._parse_size()
            self._unparsed = memoryview(data)[size:] if size < len(data) else b""
            self._parse(bytes(data[:size]))
        if not self._unparsed:
            if self._is_read_paused and (self._handler is None or self._handler.has_room):
                self._is_read_paused = False
                self.transport.resume_reading()
            return
        self._pause()
        if not self._is_behind():
            self._schedule_parse()

    def _is_behind(self) -> bool:
        """Return whether the waiting bytes must stay unparsed until an earlier request is answered."""
        return self._has_queue() or (self._request is not None and self._request.content.is_eof())

    def _parse_size(self) -> int:
        """Return how many bytes to parse now: those of one head, of a body of known length, or a piece."""
        request = self._request
        if request is not None:
            length = request.content_length
            if length is not None:
                return max(1, length - request.content.total_bytes)
            lines = bytes(self._unparsed[:PIECE_BYTES]).count(b"\n")
            return FEW_BYTES if lines > MANY_LINES else PIECE_BYTES
        end = bytes(self._unparsed[: heads.MAX_HEAD_BYTES]).find(_HEAD_END)
        # aiohttp loses bytes that are parsed together with an upgrade offer and follow it.
        self._is_head_parsed_alone = end >= 0
        return end + len(_HEAD_END) if self._is_head_parsed_alone else PIECE_BYTES

    def _parse(self, piece: bytes) -> None:
        request = self._request
        if request is None and not self._is_last_answer:
            if self._head_bytes > heads.MAX_HEAD_BYTES:
                self.refuse(HeadTooLarge(f"the headers exceed {heads.MAX_HEAD_BYTES} bytes"))
                return
            if not self._head_bytes:
                self._head_deadline = self._loop.time() + self._listener.head_timeout
                self._deadline = inf
            self._head_bytes += len(piece)
        if self._handler is None:
            self._handler = HttpHandler(self._server, self)
            self._handler.connection_made(cast("asyncio.Transport", self.transport))
            if self.is_write_paused:
                self._handler.pause_writing()
        self._handler.parse(piece, request if isinstance(request, web.BaseRequest) else None)

    def _has_queue(self) -> bool:
        """Return whether parsed requests wait for their turn."""
        return self._handler is not None and self._handler.waits

    def _pause(self) -> None:
        self._is_read_paused = True
        if self.transport is not None:
            self.transport.pause_reading()

    def _check_half_closed(self) -> None:
        """End the connection of a caller that has closed its side, once all is answered or the caller is gone."""
        request = self._request
        if self.transport is None or self._is_discarding:
            return
        if request is None and not self._has_queue() and not self._unparsed:
            self.end()
        elif request is None or (
            self._probe_due == inf and self._probe(request, self._loop.time())
        ):
            self._loop.call_later(_SOON, self._check_half_closed)
        elif self._is_gone():
            self.abort()

    def _probe(self, request: web.BaseRequest | LaneRequest, now: float) -> bool:
        """Send what may begin an answer, and is refused by the kernel of a caller that has left; return whether there was any."""
        if self.transport is None or request.writer.output_size:
            return False
        sent = 0
        if request.version == HttpVersion11:
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            sent = 1
        elif request.version == HttpVersion10 and self._handler is not None:
            sent = self._handler.probe()
        self._probe_due = now + PROBE_SECONDS * (1 << sent) / 2
        return sent > 0

    def _is_gone(self) -> bool:
        """Return whether the caller is known to be gone."""
        return self.transport is not None and is_refused(self.transport)
