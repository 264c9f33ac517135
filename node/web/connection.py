"""Connection of one caller: requests are taken off it, and answers put on it. HTTP/1.1 (RFC 9112), and 1.0.

Strict where two readers could disagree: what is ambiguous is refused, and its connection ends. Requests are answered one
after the other; a few more may have come meanwhile, beyond them the socket is not read.
"""

import asyncio
from collections import deque
from collections.abc import Coroutine
from math import inf
from typing import Any, Protocol, cast

from node.web.limits import Room
from node.web.messages import (
    BodyBroken,
    Fault,
    Full,
    Headers,
    HeadLimit,
    HttpRequest,
    Response,
    StreamResponse,
    TooSlow,
    head_of,
)
from node.web.parser import Parser, RequestHead, Unspoken
from node.web.settings import WebSettings

FULL_BYTES = 256 * 1024
"""Bytes of a body that wait for their handler, or of requests that wait for their turn, before the socket is left unread."""

PIECE_BYTES = 8 * 1024
"""Bytes that are parsed in one turn of the loop, where they are no body of known length: they could be hundreds of requests."""

HELD_BYTES = 64 * 1024
"""Bytes of an answer that wait for their caller before its handler waits too."""

WAITING = 16
"""Requests that wait for the one before them to be answered, before the socket is left unread."""

STALL_SECONDS = 30.0
"""Seconds that a caller may take to read a whole answer before the next request is looked at."""

LINGER_SECONDS = 2.0
"""Seconds that what is still being sent is thrown away, so that its sender gets to read why."""

_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class Surroundings(Protocol):
    """What a connection needs of the server that it belongs to."""

    now: float
    closing: bool
    settings: WebSettings
    room: Room

    def answer(self, request: HttpRequest) -> Coroutine[Any, Any, Response | StreamResponse]:
        """Answer a request; raises nothing but `ConnectionError`."""

    def refuse(self, fault: Fault, said: Headers) -> Response:
        """Return the answer to what is no request; `said` is what of its head could be read."""

    def lines(self) -> str:
        """Return the header lines that every answer has."""

    def made(self, connection: "CallerConnection") -> bool:
        """Take in a connection that is open; return whether there is room for it."""

    def lost(self, connection: "CallerConnection") -> None:
        """Forget a connection that is closed."""


class CallerConnection(asyncio.Protocol):
    """One caller's connection."""

    def __init__(self, server: Surroundings) -> None:
        self._server = server
        # Asked for once: each answer costs a system call before Python 3.12.
        self._loop = asyncio.get_running_loop()
        self.transport: asyncio.Transport | None = None
        self.address = ""
        """The caller's IP address."""
        self._parser = Parser(self)
        self._arriving: HttpRequest | None = None
        """The request whose body is coming."""
        self._unread: bytes | memoryview = b""
        """What has come and was not parsed."""
        self._turn: asyncio.Handle | None = None
        """The turn of the loop in which more of it is parsed."""
        self._waiting: deque[HttpRequest | Response] = deque()
        self._ahead = 0
        """Bytes that were parsed since a request began to wait for the one before it."""
        self._task: asyncio.Task[None] | None = None
        self._begun = False
        """Whether an answer to the present request has begun."""
        self._last = False
        """Whether the present answer is the last one on this connection."""
        self._deaf = False
        """Whether what still comes is thrown away."""
        self._paused = False
        self._writable: asyncio.Future[None] | None = None
        self._head_due = inf
        self._due = inf

    # What the server calls.

    @property
    def busy(self) -> asyncio.Task[None] | None:
        """The task that answers a request of this connection, if there is one."""
        return self._task

    @property
    def ends(self) -> float:
        """When the connection is closed if nothing comes; infinite while a request is under way."""
        return inf if self._task is not None else min(self._head_due, self._due)

    def look(self, now: float) -> None:
        """End what takes too long."""
        if now >= self._head_due:
            # Where nobody reads, it is not the caller who is slow.
            self._head_due = now + self._server.settings.head_timeout if self._paused else inf
            if self._paused:
                return
            if self._parser.in_head:
                self._refuse(TooSlow("the head of the request did not come in time"))
            else:
                self.close()
        elif now >= self._due:
            self.abort()

    def close(self) -> None:
        """End the connection, after the answer that has begun if there is one."""
        if self._task is None and self.transport is not None:
            self._deaf = True
            self.transport.close()

    def abort(self) -> None:
        """Cut the connection."""
        self._deaf = True
        if self.transport is not None:
            self.transport.abort()

    # What messages call.

    @property
    def room(self) -> Room:
        """What the bodies of all requests to this server share."""
        return self._server.room

    def wanted(self, request: HttpRequest) -> None:
        """Read on, and tell a caller that waits for it to send the body."""
        if request.expects and self.transport is not None:
            request.expects = False
            self.transport.write(_CONTINUE)
        self._continue()

    def begin(self, request: HttpRequest, *, last: bool) -> str:
        """Return the header lines that are the connection's, and note that an answer begins."""
        self._begun = True
        kept = request.keep_alive and request.complete and not (last or self._server.closing)
        self._last = not kept
        lines = self._server.lines() + request.lines
        if not kept:
            return f"{lines}Connection: close\r\n"
        if request.old:
            return f"{lines}Connection: keep-alive\r\n"
        return lines

    async def drained(self) -> None:
        """Wait until the transport takes more."""
        if self._writable is not None:
            await asyncio.shield(self._writable)

    # What the transport calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self.transport = cast("asyncio.Transport", transport)
        name = transport.get_extra_info("peername")
        self.address = str(name[0]) if isinstance(name, tuple) else ""
        # TLS would hold eight times as much for a caller who does not read.
        self.transport.set_write_buffer_limits(HELD_BYTES)
        if self._server.made(self):
            self._head_due = self._server.now + self._server.settings.head_timeout
        else:
            self._deaf = True
            self._send(None, self._server.refuse(Full("too many connections are open here"), {}))
            self.transport.close()

    def connection_lost(self, error: Exception | None) -> None:  # noqa: ARG002 (however it ended)
        """The caller is gone: nobody wants its answer any more."""
        self.transport = None
        self.resume_writing()
        self._waiting.clear()
        self._unread = b""
        if self._turn is not None:
            self._turn.cancel()
        if self._task is not None:
            self._task.cancel()
        self._parser.close()
        self._arriving = None
        self._server.lost(self)

    def pause_writing(self) -> None:
        """The transport holds enough."""
        if self._writable is None:
            self._writable = asyncio.get_running_loop().create_future()

    def resume_writing(self) -> None:
        """The transport takes more."""
        writable, self._writable = self._writable, None
        if writable is not None and not writable.done():
            writable.set_result(None)

    def data_received(self, data: bytes) -> None:
        """Take in bytes."""
        if self._deaf:
            return
        if self._unread:
            data = b"".join((self._unread, data))
        self._unread = data if len(data) <= PIECE_BYTES else memoryview(data)
        if self._turn is None:
            self._read()

    # What the parser calls.

    def head_began(self) -> None:
        """A head begins."""
        self._arriving = None
        self._head_due = self._server.now + self._server.settings.head_timeout

    def head_ended(self, head: RequestHead, method: str, *, version: str, kept: bool) -> None:
        """The head is there."""
        self._head_due = inf
        request = HttpRequest(self, method, head.url.decode(), head.fields)
        request.keep_alive, request.old = kept, version == "1.0"
        expects = head.fields.get("expect", "").lower() == "100-continue"
        request.expects = expects and not request.old
        self._arriving = request
        self._put(request)

    def body_came(self, piece: bytes) -> None:
        """Take in bytes of the body."""
        if self._arriving is not None:
            self._arriving.take(piece)

    def body_ended(self) -> None:
        """The body is complete."""
        if self._arriving is not None:
            self._arriving.finish()

    # How.

    def _read(self) -> None:
        """Parse a piece of what has come; the rest has its turn later, or when less waits."""
        self._turn = None
        if not self._deaf and not self._full():
            size = max(PIECE_BYTES, self._parser.left)
            piece, self._unread = self._unread[:size], self._unread[size:]
            self._ahead = self._ahead + len(piece) if self._waiting else 0
            try:
                self._parser.feed(piece)
            except Fault as fault:
                self._refuse(fault)
        if self._deaf:
            self._unread = b""
        elif self._full():
            self._pause()
        elif self._unread:
            self._pause()
            self._continue()
        else:
            self._resume()

    def _continue(self) -> None:
        """Read on in the next turn of the loop, if reading was stopped."""
        if self._paused and self._turn is None and self.transport is not None:
            self._turn = self._loop.call_soon(self._read)

    def _put(self, item: HttpRequest | Response) -> None:
        if self._task is not None:
            self._waiting.append(item)
            return
        self._due = inf
        self._task = self._loop.create_task(self._serve(item))

    def _refuse(self, fault: Fault) -> None:
        """Answer what is no request when its turn comes, and listen no more."""
        if self._deaf:
            return
        self._deaf = True
        if isinstance(fault, Unspoken):
            self.abort()
            return
        arriving = self._arriving
        if arriving is not None and not arriving.complete:
            # Its handler may be reading, and answers for it.
            large = isinstance(fault, HeadLimit)
            arriving.fail(fault if large else BodyBroken("the body is not framed as it says"))
        else:
            said = self._parser.head.fields if self._parser.in_head else {}
            self._put(self._server.refuse(fault, said))

    async def _serve(self, item: HttpRequest | Response) -> None:
        """Answer one request after the other, as long as there are any."""
        while True:
            self._begun = self._last = False
            if isinstance(item, Response):
                self._send(None, item)
            else:
                await self._answer(item)
            if self._last or self.transport is None:
                self._task = None
                self._finish(whole=isinstance(item, HttpRequest) and item.complete)
                return
            if self._writable is not None:
                self._due = self._server.now + STALL_SECONDS
                await self.drained()
                self._due = inf
            self._continue()
            if not self._waiting:
                break
            # Answers that wait for nothing would else follow one another while everybody else waits.
            await asyncio.sleep(0)
            item = self._waiting.popleft()
        self._task = None
        self._due = self._server.now + self._server.settings.idle_timeout
        if self._server.closing:
            self.close()

    async def _answer(self, request: HttpRequest) -> None:
        try:
            answer = await self._server.answer(request)
            if isinstance(answer, Response) and not self._begun:
                self._send(request, answer)
            elif isinstance(answer, Response) or not answer.ended:
                # Half an answer must not look like a whole one.
                self.abort()
        except ConnectionError:
            self.abort()
        except BaseException:
            self.abort()
            raise
        finally:
            if request.held:
                request.release()

    def _send(self, request: HttpRequest | None, answer: Response) -> None:
        if request is None:
            self._last = True
            lines = f"{self._server.lines()}Connection: close\r\n"
        else:
            lines = self.begin(request, last=False)
        body = b"" if request is not None and request.method == "HEAD" else answer.body
        lines += f"Content-Length: {len(answer.body)}\r\n"
        if self.transport is not None:
            self.transport.write(head_of(answer.status, answer.headers, lines) + body)

    def _finish(self, *, whole: bool) -> None:
        """Close, once the caller has had the time to read the last answer: what it still sends would make it lose that."""
        transport = self.transport
        self._waiting.clear()
        self._unread = b""
        self._deaf = True
        if transport is None:
            return
        self._due = self._server.now + (STALL_SECONDS if whole else LINGER_SECONDS)
        if whole or not transport.can_write_eof():
            transport.close()
            return
        transport.write_eof()
        self._resume()

    def _full(self) -> bool:
        """Whether enough waits: requests, or bytes of them, or of a body."""
        if self._waiting:
            return len(self._waiting) > WAITING or self._ahead >= FULL_BYTES
        arriving = self._arriving
        return arriving is not None and not arriving.complete and arriving.waiting >= FULL_BYTES

    def _pause(self) -> None:
        if not self._paused and self.transport is not None:
            self._paused = True
            self.transport.pause_reading()

    def _resume(self) -> None:
        if self._paused and self.transport is not None:
            self._paused = False
            self.transport.resume_reading()
