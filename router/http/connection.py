"""Client connection of HTTP/1.1, and one exchange over it; the server's counterpart is `node.connections`.

A connection carries one request at a time. An answer's bytes wait in a bounded buffer: while it is full the socket is not read,
so a slow caller slows its worker (backpressure). Bodies are not decompressed, redirects not followed, cookies not kept, and
bytes that answer no request close the connection.
"""

import asyncio
import os
import select
import socket
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol, cast

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

from router.http import heads
from router.http.answer_headers import AnswerHeaders
from router.http.dial import acknowledge, poll_unread
from router.http.errors import HttpError, HungUp, NotHttp, parser_failure
from router.http.reply import FULL_BYTES, Reply
from router.http.write_batch import WriteBatch

HEAD_BYTES = 64 * 1024
"""Bytes of an answer that may come without a byte of its body among them: headers, chunk extensions, trailers."""

# For all connections of event loops in one thread.
_LARGE_BUFFER = memoryview(bytearray(256 * 1024))
_SMALL_BUFFER = _LARGE_BUFFER[:FULL_BYTES]
_PIECE_BYTES = 256 * 1024  # of a request's body, written to the transport at a time
_NO_BODY, _FAILED = frozenset({204, 304}), 500
_HEAD_END = b"\r\n\r\n"


class ConnectionOwner(Protocol):
    """Owner of a connection between requests."""

    def release(self, connection: "Connection") -> None:
        """Take back a connection on which the next request may be sent."""

    def discard(self, connection: "Connection") -> None:
        """Forget a connection that is closed."""


@dataclass(frozen=True, slots=True)
class _KnownHead:
    """The newest head of a whole answer, and what was parsed from it; `has_worker_lines`: a node reported on its worker in it."""

    head: heads.RepeatedHead
    status: int
    headers: AnswerHeaders
    has_worker_lines: bool


class Connection(asyncio.BufferedProtocol):
    """One connection. `owner` gets it back each time it is free for the next request, and is told once when it is closed."""

    __deletable__ = ("_parser",)  # mypyc asks

    def __init__(self, owner: "ConnectionOwner") -> None:
        self.loop = asyncio.get_running_loop()
        """Cached: each call of `get_running_loop` costs a system call before Python 3.12."""
        self.can_run_inline = False
        """Whether the reader is woken only after all bytes read from the socket have been processed."""
        self.streamed = False
        """Whether the last answer came in chunks, without a length known in advance."""
        self._owner = owner
        self._transport: asyncio.Transport | None = None
        self._parser = HttpResponseParser(self)
        self._reply: Reply | None = None
        self._bytes_without_body = 0
        self._headers = AnswerHeaders()
        self._known_head: _KnownHead | None = None
        self._tries_left = heads.TRIES
        self._until_close = False
        self._between_chunks = False
        """Whether the next byte is the first of a chunk."""
        self._read_buffer = _SMALL_BUFFER
        self._paused = False
        self._unsent = b""
        self._writing = False
        self._writable: asyncio.Future[None] | None = None
        self._spare: socket.socket | None = None
        """Second descriptor of the socket, until a long body is answered."""
        self._unread: select.poll | None = None

    @property
    def is_open(self) -> bool:
        """Whether the connection is open."""
        return self._transport is not None and not self._transport.is_closing()

    @property
    def is_reusable(self) -> bool:
        """Whether it is open with nothing to read, not even an end: else a request might not be read, or not answered alone."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return False
        if not self.can_run_inline:
            return True
        if self._unread is None:
            self._unread = poll_unread(transport)
        return not self._unread.poll(0)

    async def ask(self, head: bytes, body: bytes) -> Reply:
        """Send a request and return the answer once its head is there; raise `HttpError`. Failure or cancellation cuts it."""
        small = len(body) <= _PIECE_BYTES
        try:
            reply = self.begin(head, body if small else b"")
            if not small:
                await self._send(body, reply)
            await reply.wait_for_head()
        except BaseException:
            # The worker shall notice that the request is given up.
            self.abort()
            raise
        return reply

    def begin(self, head: bytes, body: bytes, batch: WriteBatch | None = None) -> Reply:
        """Send a request with a small body, and return its reply, of which nothing has come yet; raise `HttpError`.

        Over a socket it is written with `batch`, if given; a shared connection writes all requests of a turn together anyway.
        """
        transport = self._transport
        if transport is None:
            raise HungUp("the connection is closed", untouched=True)
        reply = self._reply = Reply(self)
        if batch is None or not self.can_run_inline:
            transport.write(head + body)
        else:
            self._unsent = head + body
            batch.add(self)
        return reply

    def flush(self) -> None:
        """Write the request that waited for the end of the turn, unless it was given up."""
        unsent, self._unsent = self._unsent, b""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(unsent)

    def abort(self) -> None:
        """Cut the connection at once: a graceful close waits until the other side has read what was written."""
        if self._transport is not None:
            self._transport.abort()

    def set_large_reads(self, *, large: bool) -> None:
        """Read the socket in large pieces, or in pieces of the usual size."""
        self._read_buffer = _LARGE_BUFFER if large else _SMALL_BUFFER

    def resume_reading(self) -> None:
        """Read the socket again."""
        if self._paused and self._transport is not None:
            self._paused = False
            self._transport.resume_reading()

    def _expect_more(self, reply: Reply, *, begins: bool) -> None:
        """Wake the reader of an answer of which a part has come, the first part if it `begins`."""
        if begins and self.can_run_inline and self._transport is not None:
            acknowledge(self._transport)
        reply.notify()
        is_full = reply.buffered >= max(FULL_BYTES, reply.wake_threshold)
        if is_full and not self._paused and self._transport is not None:
            self._paused = reply.full = True
            self._transport.pause_reading()

    async def _send(self, body: bytes, reply: Reply) -> None:
        self._writing, pieces, wire = True, memoryview(body), self._transport
        if wire is not None and self.can_run_inline and wire.get_extra_info("sslcontext") is None:
            self._spare = socket.socket(fileno=os.dup(wire.get_extra_info("socket").fileno()))
        for start in range(0, len(body), _PIECE_BYTES):
            transport = self._transport
            # A worker may refuse a long body before it has read it.
            if reply.status or transport is None or transport.is_closing():
                return
            transport.write(pieces[start : start + _PIECE_BYTES])
            if self._writable is not None:
                await self._writable
        self._writing = False

    # Called by the transport.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = cast("asyncio.Transport", transport)
        self.can_run_inline = transport.get_extra_info("socket") is not None

    def pause_writing(self) -> None:
        """Make the writer wait: the transport's buffer is full."""
        if self._writable is None:
            self._writable = asyncio.get_running_loop().create_future()

    def resume_writing(self) -> None:
        """Let the writer go on: the transport takes more."""
        writable, self._writable = self._writable, None
        if writable is not None and not writable.done():
            writable.set_result(None)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002
        """Return the buffer for the next bytes: all connections share it, since it is emptied before anything else is read."""
        return self._read_buffer

    def buffer_updated(self, count: int) -> None:
        """Take in bytes from a socket."""
        self.data_received(_LARGE_BUFFER[:count])

    def data_received(self, data: bytes | memoryview) -> None:
        """Take in bytes."""
        reply = self._reply
        if reply is None:
            # The bytes answer no request.
            self.abort()
            return
        if self._between_chunks and reply.try_cut_through(data):
            return
        begins = not (self._bytes_without_body or reply.status)
        known_head = self._known_head if begins else None
        if known_head is not None and self._take_known_head(data, reply, known_head):
            return
        self._bytes_without_body += len(data)
        try:
            self._parser.feed_data(data)
        except (HttpParserError, HttpParserUpgrade) as error:
            self._break(parser_failure(error))
        else:
            # The parser does not tell whether the beginning of the next chunk's size has come.
            self._between_chunks = self._between_chunks and data[-2:] == b"\r\n"
            if self._bytes_without_body > HEAD_BYTES:
                self._break(NotHttp("the response headers are too long"))
        # All bytes are taken in, and the connection is released if it may be, before any reader acts on them.
        if self._reply is reply:
            self._expect_more(reply, begins=begins)
        elif reply.complete:
            self._end(data, reply, begins=begins)

    def connection_lost(self, error: Exception | None) -> None:
        """End the current reply, if any, and tell `owner`."""
        self._transport = None
        self.resume_writing()
        if self._spare is not None:
            if error is not None:
                self._read_refusal(self._spare)
            self._spare.close()
        reply, self._reply = self._reply, None
        if reply is not None:
            if self._until_close and error is None:
                reply.finish()
                reply.wake()
            else:
                untouched = not (self._bytes_without_body or reply.status)
                reply.fail(HungUp("the other side closed the connection", untouched=untouched))
        # The parser refers to the connection: both would stay until the garbage collector runs.
        del self._parser
        self._owner.discard(self)

    # Called by the parser.

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take in a header; of two with one name the last counts."""
        self._headers[name.decode("latin-1").lower()] = value.decode("utf-8", "replace")

    def on_headers_complete(self) -> None:
        """Take in the complete head."""
        status, reply, headers = self._parser.get_status_code(), self._reply, self._headers
        # Headers that come later are trailers, which change nothing.
        self._headers = AnswerHeaders()
        if 100 <= status < 200 or reply is None or reply.status:
            return
        if not 100 <= status <= 599:
            self._break(NotHttp("the response has an invalid status"))
            return
        coding, length = headers.get("transfer-encoding"), headers.get("content-length")
        if coding is not None and coding.lower() != "chunked":
            self._break(NotHttp("the response has an encoding that was not requested"))
            return
        reply.headers = headers
        self.streamed = coding is not None
        if length is not None and length.isdecimal():
            reply.length = int(length)
        self._until_close = reply.length is None and coding is None and status not in _NO_BODY
        reply.status = status

    def on_chunk_header(self) -> None:
        """Note that a chunk begins."""
        self._between_chunks = False

    def on_chunk_complete(self) -> None:
        """Note that a chunk is complete."""
        self._between_chunks = True

    def on_body(self, piece: bytes) -> None:
        """Take in bytes of the body."""
        self._bytes_without_body = 0
        reply = self._reply
        if reply is None:
            return
        if reply.status:
            reply.feed_data(piece)
        else:
            self._break(NotHttp("an informational response has a body"))

    def on_message_complete(self) -> None:
        """Finish the answer, unless it was only an informational response."""
        reply = self._reply
        if reply is not None and reply.status:
            reply.finish()
            # uvicorn closes after an exception, once it has logged it: that may take seconds, in which a request would be lost.
            self._release(stays=reply.status != _FAILED and self._parser.should_keep_alive())

    def _release(self, *, stays: bool) -> None:
        """Free this connection, whose answer is complete, for the next request if it stays open."""
        self._reply, transport = None, self._transport
        if transport is None:
            return
        if self._spare is not None:
            self._spare.close()
            self._spare = None
        # A server that answers before it has read the whole request may take the rest of it for the next one.
        sent = not (self._writing or self._unsent or transport.get_write_buffer_size())
        if self._paused:
            self.resume_reading()
        if sent and stays and not transport.is_closing():
            self._owner.release(self)
        else:
            transport.abort()

    def on_message_begin(self) -> None:
        """Cut the connection if an answer begins without a request."""
        if self._reply is None:
            self.abort()

    def _take_known_head(self, data: bytes | memoryview, reply: Reply, known: _KnownHead) -> bool:
        """Take in a whole answer whose head was parsed before on this connection, and return whether it was one."""
        whole, headers, cut_at = bytes(data), known.headers, 0
        if known.has_worker_lines and (split := heads.split_worker_lines(whole)) is not None:
            whole, added, cut_at = split
            headers = headers.with_worker_headers(added)
        match = known.head.match(whole)
        if match is None or match[0] + match[1] != len(whole) or cut_at + len(_HEAD_END) > match[0]:
            return False
        self._tries_left, self.streamed = heads.TRIES, False
        # The length, request id and date in `headers` are those of the earlier answer; no reader uses them.
        reply.feed_complete(known.status, headers, whole[match[0] :])
        self._release(stays=True)
        reply.wake()
        return True

    def _remember(self, data: bytes | memoryview, reply: Reply) -> None:
        """Remember the head of a whole answer that came in one read, unless the connection ended with it."""
        if reply.length is None or reply.status == _FAILED or not self.is_open:
            return
        whole = bytes(data)
        head_end = len(whole) - reply.length
        begins = whole.startswith(b"HTTP/1.1 %d " % reply.status)
        if begins and whole.find(_HEAD_END) + len(_HEAD_END) == head_end:
            self._known_head = _known_head_of(whole[:head_end], reply)

    def _end(self, data: bytes | memoryview, reply: Reply, *, begins: bool) -> None:
        """Reset the parse state after a complete answer, whose head may be remembered, and wake its reader."""
        if begins:
            self._tries_left -= 1
            if self._tries_left >= 0:
                self._remember(data, reply)
            elif self._tries_left <= -heads.PARSED:
                self._tries_left = 1
        self._bytes_without_body, self._until_close, self._between_chunks = 0, False, False
        self._read_buffer = _SMALL_BUFFER
        if self._headers:
            self._headers = AnswerHeaders()
        reply.wake()

    def _read_refusal(self, wire: socket.socket) -> None:
        """Read what had come when writing failed: a server may refuse a long body, and close before it has read it."""
        with suppress(OSError):
            while self._reply is not None and (data := wire.recv(FULL_BYTES)):
                self.data_received(data)

    def _break(self, error: HttpError) -> None:
        reply, self._reply = self._reply, None
        if reply is not None:
            reply.fail(error)
        self.abort()


def _known_head_of(head: bytes, reply: Reply) -> _KnownHead | None:
    """Return a head and its headers, without a node's reports on its worker, which differ each time."""
    headers, split = reply.headers, heads.split_worker_lines(head)
    if split is not None:
        head, added, _ = split
        headers = AnswerHeaders({n: v for n, v in headers.items() if n not in added})
    # A head with a second pair of these lines is not remembered: of two headers with one name the last counts.
    twice = heads.has_worker_lines(head)
    if twice or (repeated := heads.repeated_head_of(head, dated=True)) is None:
        return None
    return _KnownHead(repeated, reply.status, headers, split is not None)
