"""Connection that passes plain model calls straight to their handlers; aiohttp reads everything else on it.

A request that the lane takes is in flight like one of aiohttp's: limits, closing and callers that leave are handled alike.
"""

import asyncio
import time
from math import inf
from typing import Any, cast

from aiohttp import web

from node.connections import STALL_SECONDS, CallerConnection
from node.faces.errors import KNOWN
from node.faces.request_ids import ID, is_id, new_id
from node.faces.request_reader import HELD, SMALL, hold, release
from node.lane import direct
from node.lane.calls import CallHandler, LaneCall, LaneCalls
from node.lane.request import MAX_HEAD_BYTES, LaneHead, LaneRequest, read_head
from node.lane.response import COPIED_BYTES, LaneResponse, head_of
from router.http.dial import acknowledge
from router.http.heads import TRIES, RepeatedHead, header_lines, repeated_head_of
from router.peers.muxed_stream import MuxedStream

PIECES = 32
"""Socket reads that one body may take; a body in more pieces is left to aiohttp."""

WAIT_SECONDS = 0.25
"""Seconds that the rest of a body may take; then aiohttp continues, with its own limits."""


_KnownCall = tuple[RepeatedHead, LaneHead, LaneCall]


class LaneConnection(CallerConnection):
    """One caller's connection on a listener with a lane."""

    __slots__ = (
        "_awaited_head",
        "_began",
        "_calls",
        "_direct_call",
        "_expected_call",
        "_last_call",
        "_last_head",
        "_missing_bytes",
        "_pieces",
        "_tries_left",
        "_unsent",
    )

    def __init__(self, server: web.Server, listener: Any, calls: LaneCalls) -> None:
        super().__init__(server, listener)
        self._calls = calls
        self._awaited_head: LaneHead | None = None
        """The head of a request whose body is still to come."""
        self._direct_call: direct.DirectCall | None = None
        self._pieces: list[bytes] = []
        """The pieces of that body received so far; `_missing_bytes` is how many bytes are still to come."""
        self._missing_bytes = 0
        self._began = inf
        self._last_head: tuple[RepeatedHead, LaneHead] | None = None
        """The newest remembered head, as a matcher and as parsed."""
        self._last_call: _KnownCall | None = None
        """The same with its call, if that is one of the lane's."""
        self._expected_call: _KnownCall | None = None
        """The same, set only while the connection is idle and nothing is buffered, so that such a request is taken directly."""
        self._tries_left = TRIES
        self._unsent = b""
        """An answer that waits for the end of the loop's turn; until then its request is in flight."""

    # What the listener calls.

    def check_timeouts(self, now: float) -> None:
        """Enforce the time limits: hand over a slow direct call, and leave a slow body to aiohttp."""
        if self._direct_call is not None and now - self._began >= direct.PATIENCE_SECONDS:
            self._direct_call.hand_over()
        elif self._awaited_head is not None and now - self._began >= WAIT_SECONDS:
            self._leave_to_aiohttp()
        super().check_timeouts(now)

    def end_after_answer(self) -> None:
        """End the connection, after the answer to a request in flight."""
        if isinstance(self._request, LaneRequest):
            self._is_last_answer = True
            if self._direct_call is not None:
                self._direct_call.hand_over()
        else:
            super().end_after_answer()

    # What the transport calls.

    def data_received(self, data: bytes) -> None:
        """Take in received bytes."""
        expected, self._expected_call = self._expected_call, None
        if expected is not None and not self._is_discarding:
            repeated, head, call = expected
            matched = repeated.match(data)
            if matched is not None:
                body_at, length, id_ = matched
                if body_at + length == len(data) and length <= SMALL:
                    self._tries_left = TRIES
                    request = LaneRequest(head, data[body_at:], self._calls.app, self)
                    request[ID] = id_.decode() if id_ else head.id or new_id()
                    self._begin(request, call)
                    return
        if self._awaited_head is None or self._is_discarding:
            super().data_received(data)
            return
        self._pieces.append(data)
        self._missing_bytes -= len(data)
        if self._missing_bytes <= 0:
            self._join_body()
            self._parse_next()
        elif len(self._pieces) >= PIECES:
            self._leave_to_aiohttp()

    def eof_received(self) -> bool | None:
        """Handle a half-close: continue with earlier requests, but end the connection if a body is incomplete."""
        # A caller that closes its side within a request has left.
        return None if self._awaited_head is not None else super().eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the request in flight: its caller is gone."""
        request = self._request
        task = self.task if isinstance(request, LaneRequest) else None
        call, self._direct_call = self._direct_call, None
        self._pieces.clear()
        super().connection_lost(exc)
        if call is not None:
            call.cancel()
        elif task is not None:
            # Cancelled in the next turn: a task that has not begun could not conclude its account.
            self._loop.call_soon(task.cancel)
        if isinstance(request, LaneRequest):
            release(request)

    # What answers call.

    def head(self, status: int, lines: str, length: int | None) -> bytes:
        """Return the bytes of a head with these header lines; an answer of unknown length is chunked."""
        if length is None:
            # Otherwise nginx would buffer the answer until it has some pages of it.
            lines += "x-accel-buffering: no\r\n"
        self._is_last_answer = (
            self._is_last_answer or self._listener.closing or self._calls.leaving()
        )
        if self._is_last_answer:
            lines += "Connection: close\r\n"
        end = self._calls.end_of_head.at(int(time.time()), self._listener.fixed.lines)
        return head_of(status, lines, length, end)

    def send_now(self, *parts: bytes) -> None:
        """Send bytes; raise `ConnectionError` if the caller is gone."""
        transport, request = self.transport, self._request
        if transport is None or request is None or transport.is_closing():
            raise ConnectionResetError("the caller is gone")
        size = sum(map(len, parts))
        if size <= COPIED_BYTES:
            transport.write(b"".join(parts))
        else:
            transport.writelines(parts)
        request.writer.output_size += size

    def send_on(self, piece: bytes) -> None:
        """Send more of an answer that has begun; raise as `send_now` does."""
        transport = self.transport
        if transport is None or self._request is None or transport.is_closing():
            raise ConnectionResetError("the caller is gone")
        transport.write(piece)

    def answer(self, status: int, lines: str, body: bytes) -> None:
        """Send the answer to a direct call, with these header lines."""
        self._direct_call = None
        transport = self.transport
        if transport is None or transport.is_closing():
            return
        self._unsent = self.head(status, lines, len(body)) + body
        large = HELD in cast("LaneRequest", self._request)
        # A shared connection batches each turn's writes anyway. A large request is not kept in memory any longer.
        if large or isinstance(transport, MuxedStream):
            self.flush()
        else:
            self._calls.batch.add(self)

    def flush(self) -> None:
        """Send the answer that waits for the end of the loop's turn, unless its caller has left."""
        transport, unsent, self._unsent = self.transport, self._unsent, b""
        if transport is None or transport.is_closing():
            return
        transport.write(unsent)
        if self.is_write_paused:
            self._deadline = self._listener.now + STALL_SECONDS
            self.task = self._loop.create_task(self._finish_when_drained())
        else:
            self._finish_request()

    def hand_over(self, handler: CallHandler) -> None:
        """Have a handler answer the request in flight."""
        self._direct_call = None
        request = cast("LaneRequest", self._request)
        self.task = self._loop.create_task(self._respond(request, handler))

    # Internals.

    def _parse_next(self) -> None:
        """Take a request if it is plain and complete; have aiohttp parse a piece of anything else."""
        self._parse_handle = None
        if self._unparsed and self._request is None and not (self._head_bytes or self._has_queue()):
            self._take_request()
            if not (self._unparsed or self._is_read_paused):
                return
        if self._awaited_head is None:
            super()._parse_next()

    def _take_request(self) -> None:
        data = self._unparsed
        if self._is_discarding or self._is_last_answer or self.transport is None:
            return
        begins = data if isinstance(data, bytes) else bytes(data[:MAX_HEAD_BYTES])
        head = self._awaited_head or self._head_of(begins)
        call = None if head is None else self._calls.calls.get(head.path)
        if head is None or call is None:
            return
        missing = head.end - len(data)
        if missing > 0:
            self._await_body(head)
            return
        self._awaited_head = None
        body = bytes(data[head.body_at : head.end])
        request = LaneRequest(head, body, self._calls.app, self)
        if len(body) > SMALL and not hold(request, len(body)):
            # There is no room for the body: aiohttp reads the request, and answers with the error.
            return
        self._unparsed = memoryview(data)[head.end :] if missing else b""
        request[ID] = head.id or new_id()
        self._begin(request, call)

    def _head_of(self, data: bytes) -> LaneHead | None:
        if self._last_head is not None:
            repeated, last_head = self._last_head
            matched = repeated.match(data)
            if matched is not None:
                self._tries_left = TRIES
                return last_head.again(*matched)
        head = read_head(data)
        if head is not None and not is_id(head.id):
            head.id = ""
        if head is not None and self._tries_left:
            self._tries_left -= 1
            self._last_head = self._last_call = None
            anew = repeated_head_of(data[: head.body_at])
            if anew is not None:
                self._last_head = anew, head
                if (call := self._calls.calls.get(head.path)) is not None:
                    self._last_call = anew, head, call
        return head

    def _begin(self, request: LaneRequest, call: LaneCall) -> None:
        self._request = request
        self._head_deadline = self._deadline = inf
        self._began = self._listener.now
        if not request.head.admitted:
            try:
                self._calls.admit(request)
            except KNOWN:
                self.hand_over(call.handler)
                return
        try:
            self._direct_call = direct.begin_call(call, request, self)
        except Exception as error:  # noqa: BLE001 (the outermost middleware logs and answers it)
            self.hand_over(direct.raising_handler(error))

    def _await_body(self, head: LaneHead) -> None:
        self._awaited_head, self._began = head, self._loop.time()
        self._missing_bytes = head.end - len(self._unparsed)
        self._head_deadline = self._deadline = inf
        transport = cast("asyncio.Transport", self.transport)
        acknowledge(transport)
        if self._is_read_paused:
            self._is_read_paused = False
            transport.resume_reading()

    def _join_body(self) -> None:
        self._unparsed = b"".join((self._unparsed, *self._pieces))
        self._pieces.clear()

    def _leave_to_aiohttp(self) -> None:
        """Leave a request to aiohttp, with what was received of it."""
        self._awaited_head = None
        self._join_body()
        super()._parse_next()

    async def _respond(self, request: LaneRequest, handler: CallHandler) -> None:
        try:
            response = await self._calls.answer(request, handler)
            self.note_answered()
            if not isinstance(cast("object", response), LaneResponse):
                await self._send_whole(request, response)
        except ConnectionError:
            self.abort()
        except asyncio.CancelledError:
            self.end()
            raise
        finally:
            self._finish_request()

    async def _finish_when_drained(self) -> None:
        try:
            await self.drain()
        except ConnectionError:
            self.abort()
        finally:
            self._finish_request()

    async def _send_whole(self, request: LaneRequest, response: web.StreamResponse) -> None:
        answer = cast("web.Response", response)
        body = cast("bytes", answer.body) or b""
        # An id that is set keeps its place, as in answers to direct calls: nodes need not parse a head that they saw before.
        answer.headers.setdefault("x-request-id", request[ID])
        self.send_now(self.head(answer.status, header_lines({**answer.headers}), len(body)), body)
        await self.drain()

    def _finish_request(self) -> None:
        """Finish a request whose answer was sent as far as the caller reads it, and go on to the next one."""
        request, listener = self._request, self._listener
        if isinstance(request, LaneRequest) and HELD in request:
            release(request)
        self._request = self.task = None
        if self.transport is None or self._is_discarding:
            return
        if self._is_last_answer or listener.closing:
            self.end()
            return
        self._deadline = listener.now + listener.idle_timeout
        if self._is_half_closed:
            self._check_half_closed()
        elif self._unparsed:
            self._schedule_parse()
        else:
            self._expected_call = self._last_call
