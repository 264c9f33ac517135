"""Connection of HTTP/1.1, and one exchange over it: its other end is `node.connections`.

One request at a time; then the connection may serve the next. An answer's bytes wait in a bounded buffer: while it is full the
socket is not read, so a slow caller slows its worker. Nothing is unpacked, followed or remembered, and what comes when nobody
asked for it is nobody's answer.
"""

import asyncio
import select
from dataclasses import dataclass
from typing import Protocol, cast

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

from router.http.answer_headers import AnswerHeaders
from router.http.errors import HttpError, HungUp, NotHttp
from router.http.repeated_head import TRIES, RepeatedHead, remembered, tells, without_told
from router.http.reply import FULL_BYTES, Reply
from router.http.write_batch import WriteBatch

HEAD_BYTES = 64 * 1024
"""Bytes of an answer that may come without a byte of its body among them: headers, chunk extensions, trailers."""

_INWARD = memoryview(bytearray(256 * 1024))  # of all connections of event loops in one thread
_LITTLE = _INWARD[:FULL_BYTES]

_PIECE_BYTES = 256 * 1024  # of a request's body, handed to the transport at once
_NO_BODY = frozenset({204, 304})
_FAILED = 500
_HEAD_END = b"\r\n\r\n"


class Home(Protocol):
    """Where a connection lives between requests."""

    def free(self, connection: "Connection") -> None:
        """Take back a connection on which the next request may be sent."""

    def lost(self, connection: "Connection") -> None:
        """Forget a connection that is closed."""


@dataclass(frozen=True, slots=True)
class _Seen:
    """The newest head of a whole answer, and what was read in it."""

    head: RepeatedHead
    status: int
    headers: AnswerHeaders


class Connection(asyncio.BufferedProtocol):
    """One connection. `home` is told once each time when it is free for the next request, or will never be."""

    __deletable__ = ("_parser",)  # mypyc asks

    def __init__(self, home: "Home") -> None:
        self.loop = asyncio.get_running_loop()
        """Asked for once: each answer of `get_running_loop` costs a system call before Python 3.12."""
        self.prompt = False
        """Whether news is told last of all that is done with what its socket had."""
        self.streamed = False
        """Whether its last answer came in chunks, of a length that nobody knew before."""
        self._home = home
        self._transport: asyncio.Transport | None = None
        self._parser = HttpResponseParser(self)
        self._reply: Reply | None = None
        self._barren = 0
        self._headers = AnswerHeaders()
        self._seen: _Seen | None = None
        self._tries = TRIES
        self._until_close = False
        self._between = False
        """Whether the next byte is the first of a chunk."""
        self._inward = _LITTLE
        self._paused = False
        self._unsent = b""
        self._writing = False
        self._writable: asyncio.Future[None] | None = None
        self._unread: select.poll | None = None

    @property
    def open(self) -> bool:
        """Whether it stands."""
        return self._transport is not None and not self._transport.is_closing()

    @property
    def quiet(self) -> bool:
        """Whether it stands and nothing has come, an end neither: nobody would read what is written, or answer that alone."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return False
        if not self.prompt:
            return True
        if self._unread is None:
            self._unread = _unread_of(transport)
        return not self._unread.poll(0)

    async def ask(self, head: bytes, body: bytes) -> Reply:
        """Send a request and return the answer once its head is there; raise `HttpError`. Cut when given up."""
        small = len(body) <= _PIECE_BYTES
        try:
            reply = self.begin(head, body if small else b"")
            if not small:
                await self._send(body, reply)
            await reply.head()
        except BaseException:
            # Whoever works on it shall notice that nobody waits any more.
            self.abort()
            raise
        return reply

    def begin(self, head: bytes, body: bytes, batch: WriteBatch | None = None) -> Reply:
        """Send a request whose body is small, and return what its answer will be; raise `HttpError`.

        Over a socket it is sent with `batch`, where there is one; a shared connection sends all of one turn anyway.
        """
        transport = self._transport
        if transport is None:
            raise HungUp("the connection is closed", untouched=True)
        reply = self._reply = Reply(self)
        if batch is None or not self.prompt:
            transport.write(head + body)
        else:
            self._unsent = head + body
            batch.add(self)
        return reply

    def flush(self) -> None:
        """Send a request that waits for the end of a turn, unless it was given up."""
        unsent, self._unsent = self._unsent, b""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(unsent)

    def abort(self) -> None:
        """Cut the connection at once: closing politely waits until the other side has read what we wrote."""
        if self._transport is not None:
            self._transport.abort()

    def widen(self, *, much: bool) -> None:
        """Read much of the socket at once, or as much as usual."""
        self._inward = _INWARD if much else _LITTLE

    def resume(self) -> None:
        """Read the socket again."""
        if self._paused and self._transport is not None:
            self._paused = False
            self._transport.resume_reading()

    def _pause(self, reply: Reply) -> None:
        if reply.held >= reply.enough and self._transport is not None:
            self._paused = reply.full = True
            self._transport.pause_reading()

    async def _send(self, body: bytes, reply: Reply) -> None:
        self._writing = True
        pieces = memoryview(body)
        for start in range(0, len(body), _PIECE_BYTES):
            transport = self._transport
            # A worker may refuse a long body before it has read it.
            if reply.status or transport is None or transport.is_closing():
                return
            transport.write(pieces[start : start + _PIECE_BYTES])
            if self._writable is not None:
                await self._writable
        self._writing = False

    # What the transport calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self._transport = cast("asyncio.Transport", transport)
        self.prompt = transport.get_extra_info("socket") is not None

    def pause_writing(self) -> None:
        """The transport holds enough."""
        if self._writable is None:
            self._writable = asyncio.get_running_loop().create_future()

    def resume_writing(self) -> None:
        """The transport takes more."""
        writable, self._writable = self._writable, None
        if writable is not None and not writable.done():
            writable.set_result(None)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002
        """Return where the next bytes go: one place for all, since they are taken out before anything else is read."""
        return self._inward

    def buffer_updated(self, count: int) -> None:
        """Take in bytes of a socket."""
        self.data_received(_INWARD[:count])

    def data_received(self, data: bytes | memoryview) -> None:
        """Take in bytes."""
        reply = self._reply
        if reply is None:
            # Nobody asked for anything.
            self.abort()
            return
        if self._between and reply.passes(data):
            return
        begins = not (self._barren or reply.status)
        if begins and self._seen is not None and self._takes_repeated(data, reply, self._seen):
            return
        self._barren += len(data)
        try:
            self._parser.feed_data(data)
        except (HttpParserError, HttpParserUpgrade):
            self._break(NotHttp("the response is not HTTP"))
        else:
            # What the parser does not tell: the beginning of the next chunk's size may have come.
            self._between = self._between and data[-2:] == b"\r\n"
            if self._barren > HEAD_BYTES:
                self._break(NotHttp("the response headers are too long"))
        # Nobody acts on what came before all of it is taken in, and the connection is free where it may be.
        if self._reply is reply:
            reply.news()
            if reply.held >= FULL_BYTES and not self._paused:
                self._pause(reply)
        elif reply.complete:
            self._end(data, reply, begins=begins)

    def connection_lost(self, error: Exception | None) -> None:
        """The connection is gone."""
        self._transport = None
        self.resume_writing()
        reply, self._reply = self._reply, None
        if reply is not None:
            if self._until_close and error is None:
                reply.finish()
                reply.wake()
            else:
                untouched = not (self._barren or reply.status)
                reply.fail(HungUp("the other side closed the connection", untouched=untouched))
        # It refers to us: together they would stay until the garbage collector comes.
        del self._parser
        self._home.lost(self)

    # What the parser calls.

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take in a header; of two with one name the last counts."""
        self._headers[name.decode("latin-1").lower()] = value.decode("utf-8", "replace")

    def on_headers_complete(self) -> None:
        """The head is there."""
        status, reply, headers = self._parser.get_status_code(), self._reply, self._headers
        # What comes later under these names are trailers, which change nothing.
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
        """A chunk begins."""
        self._between = False

    def on_chunk_complete(self) -> None:
        """A chunk is here."""
        self._between = True

    def on_body(self, piece: bytes) -> None:
        """Take in bytes of the body."""
        self._barren = 0
        reply = self._reply
        if reply is None:
            return
        if reply.status:
            reply.take(piece)
        else:
            self._break(NotHttp("an informational response has a body"))

    def on_message_complete(self) -> None:
        """The answer is complete, unless it was only the notice of one."""
        reply = self._reply
        if reply is not None and reply.status:
            reply.finish()
            # uvicorn hangs up after an exception, once it has logged it: that may take seconds, in which a request would be lost.
            self._release(stays=reply.status != _FAILED and self._parser.should_keep_alive())

    def _release(self, *, stays: bool) -> None:
        """Leave this connection, whose answer is complete, to whoever asks next if it stays open."""
        self._reply, transport = None, self._transport
        if transport is None:
            return
        # Whoever answers before it has the whole request may take the rest of it for the next one.
        sent = not (self._writing or self._unsent or transport.get_write_buffer_size())
        if self._paused:
            self.resume()
        if sent and stays and not transport.is_closing():
            self._home.free(self)
        else:
            transport.abort()

    def on_message_begin(self) -> None:
        """Whoever begins an answer that nobody asked for is not asked again."""
        if self._reply is None:
            self.abort()

    def _takes_repeated(self, data: bytes | memoryview, reply: Reply, seen: _Seen) -> bool:
        """Take in a whole answer whose head was read before on this connection, and say whether it was one."""
        whole, headers = bytes(data), seen.headers
        found = seen.head.found_in(whole)
        if found is None and (other := without_told(whole)) is not None:
            whole, told = other
            found, headers = seen.head.found_in(whole), headers.with_told(told)
        if found is None or found[0] + found[1] != len(whole):
            return False
        self._tries, self.streamed = TRIES, False
        # Of their length and their request id nobody reads what stands there.
        reply.came_whole(seen.status, headers, whole[found[0] :])
        self._release(stays=True)
        reply.wake()
        return True

    def _remember(self, data: bytes | memoryview, reply: Reply) -> None:
        """Remember the head of a whole answer that came in one read, unless this connection has ended with it."""
        if reply.length is None or reply.status == _FAILED or not self.open:
            return
        whole = bytes(data)
        at = len(whole) - reply.length
        begins = whole.startswith(b"HTTP/1.1 %d " % reply.status)
        self._tries -= 1
        if begins and whole.find(_HEAD_END) + len(_HEAD_END) == at:
            self._seen = _seen_in(whole[:at], reply)

    def _end(self, data: bytes | memoryview, reply: Reply, *, begins: bool) -> None:
        """Forget what the parser told of an answer that is complete, but for its head perhaps, and let its reader look."""
        if begins and self._tries:
            self._remember(data, reply)
        self._barren, self._until_close, self._between = 0, False, False
        self._inward = _LITTLE
        if self._headers:
            self._headers = AnswerHeaders()
        reply.wake()

    def _break(self, error: HttpError) -> None:
        reply, self._reply = self._reply, None
        if reply is not None:
            reply.fail(error)
        self.abort()


def _unread_of(transport: asyncio.Transport) -> select.poll:
    """Return what tells whether a transport's socket has something that was not read, or an end."""
    # TLS says things of its own, tickets for example: there only the end counts.
    secured = transport.get_extra_info("sslcontext") is not None
    unread = select.poll()
    wire = transport.get_extra_info("socket")
    unread.register(wire.fileno(), select.POLLRDHUP | (not secured and select.POLLIN))
    return unread


def _seen_in(head: bytes, reply: Reply) -> _Seen | None:
    """Return a head and what was read in it, but for what a node tells of its worker, which differs each time."""
    headers = reply.headers
    if (other := without_told(head)) is not None:
        head, told = other
        headers = AnswerHeaders({n: v for n, v in headers.items() if n not in told})
    # Of two with one name the last counts.
    pattern = None if tells(head) else remembered(head)
    return None if pattern is None else _Seen(pattern, reply.status, headers)
