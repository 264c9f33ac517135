"""Messages of HTTP: what a handler sees of a request, and what it gives back."""

import asyncio
from collections.abc import Mapping
from functools import lru_cache
from http import HTTPStatus
from typing import Protocol
from urllib.parse import parse_qsl

from node.web.limits import Room
from router.http.connection import header_lines


class Fault(Exception):
    """What a server finds wrong with a request, before or while a handler reads it."""


class Malformed(Fault):
    """These bytes are no HTTP request, or one that two readers could understand in two ways."""


class HeadLimit(Fault):
    """The header fields, or the trailers, are longer or more than what is taken in."""


class UrlLimit(Fault):
    """The target is longer than what is taken in."""


class TooSlow(Fault):
    """The head of a request did not come in time."""


class Full(Fault):
    """There is no place for another connection now."""


class NoRoom(Fault):
    """The bodies of all requests take as much memory as they may."""


class BodyBroken(Fault):
    """The body ended too soon, or is not framed as it says."""


class Wire(Protocol):
    """What a message needs of the connection that it came by, or goes by."""

    transport: asyncio.Transport | None
    address: str

    @property
    def room(self) -> Room:
        """What the bodies of all requests share."""

    def wanted(self, request: "HttpRequest") -> None:
        """A handler waits for more of the body."""

    def begin(self, request: "HttpRequest", *, last: bool) -> str:
        """An answer begins; return the header lines that are the connection's. `last`: only its end will end the answer."""

    async def drained(self) -> None:
        """Wait until the caller has read most of what was sent."""


Headers = dict[str, str]
"""Header fields by lower-case name; the values of fields that may come twice are joined by commas."""


class HttpRequest:
    """A request whose head is there. Its body comes with `some`."""

    __slots__ = (
        "_error",
        "_pieces",
        "_size",
        "_waiter",
        "complete",
        "expects",
        "headers",
        "held",
        "id",
        "keep_alive",
        "lines",
        "method",
        "old",
        "path",
        "query_string",
        "tail",
        "wire",
    )

    def __init__(self, wire: Wire, method: str, target: str, headers: Headers) -> None:
        """Take what the head says."""
        self.wire = wire
        self.method = method
        self.path, _, self.query_string = target.partition("?")
        self.headers = headers
        self.id = ""
        """Set by whoever answers."""
        self.lines = ""
        """Header lines that every answer to it has. Likewise."""
        self.tail = ""
        """What of the path stands in for the `*` of its route."""
        self.keep_alive = True
        self.old = False
        """Whether the caller speaks HTTP/1.0, which knows no chunks."""
        self.expects = False
        """Whether the caller waits for a word before it sends the body."""
        self.complete = False
        """Whether all of the body has come."""
        self.held = 0
        """Bytes of the room for bodies that are this request's until it is answered."""
        self._pieces: list[bytes] = []
        self._size = 0
        self._waiter: asyncio.Future[None] | None = None
        self._error: Fault | None = None

    @property
    def query(self) -> dict[str, str]:
        """The parameters of the query; of those with one name the first."""
        pairs = parse_qsl(self.query_string, keep_blank_values=True)
        return dict(reversed(pairs))

    @property
    def content_type(self) -> str:
        """The media type, lower case, without its parameters; `""` where none is named."""
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()

    @property
    def content_length(self) -> int | None:
        """The body's length where the head says it."""
        given = self.headers.get("content-length")
        return None if given is None else int(given)

    @property
    def body_exists(self) -> bool:
        """Whether the head announces a body."""
        return bool(self.content_length) or "transfer-encoding" in self.headers

    @property
    def transport(self) -> asyncio.Transport | None:
        """The connection's transport, `None` once it is closed."""
        return self.wire.transport

    @property
    def remote(self) -> str:
        """The caller's address, `""` once it is gone."""
        return self.wire.address if self.wire.transport else ""

    @property
    def ended(self) -> bool:
        """Whether nothing of the body is left to read."""
        return self.complete and not self._pieces

    @property
    def waiting(self) -> int:
        """Bytes of the body that have come and were not read."""
        return self._size

    def rest(self) -> bytes:
        """Return what has come of the body and was not read; of one that is complete, all that is left."""
        pieces, self._pieces, self._size = self._pieces, [], 0
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    async def some(self) -> bytes:
        """Return the next bytes of the body as soon as there are any, `b""` at its end; raise a `Fault` when it breaks off."""
        while not self._pieces:
            if self.complete:
                return b""
            if self._error is not None:
                raise self._error
            self.wire.wanted(self)
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        return self.rest()

    def expect(self, size: int) -> None:
        """Raise `NoRoom` where a body of so many bytes could not be held now. None are set aside: it may never come."""
        if not self.wire.room.fits(size - self.held):
            raise NoRoom("too many large requests are under way here; try again")

    def hold(self, size: int) -> None:
        """Hold so many bytes, those that are held already included, until this request is answered; or raise `NoRoom`."""
        self.expect(size)
        self.wire.room.held += size - self.held
        self.held = size

    def release(self) -> None:
        """Nothing of the body is held any more."""
        self.wire.room.held -= self.held
        self.held = 0

    # The connection's side.

    def take(self, piece: bytes) -> None:
        """Take in bytes of the body. Small pieces are joined: each would take more than what it holds."""
        if self._pieces and len(self._pieces[-1]) < _JOINED:
            self._pieces[-1] += piece
        else:
            self._pieces.append(piece)
        self._size += len(piece)
        self._wake()

    def finish(self) -> None:
        """The body is complete."""
        self.complete = True
        self._wake()

    def fail(self, error: Fault) -> None:
        """Nothing more of the body will come."""
        self._error = error
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


_JOINED = 1024  # bytes of a piece of a body, below which the next one is joined to it
_JOINED_BYTES = 64 * 1024  # of a body, sent in one with its head: more is not copied for that


class Response:
    """An answer that is whole."""

    __slots__ = ("body", "headers", "status")

    def __init__(
        self,
        *,
        status: int = 200,
        headers: Mapping[str, str] | None = None,
        body: bytes = b"",
        content_type: str = "",
    ) -> None:
        self.status = status
        self.headers = dict(headers or {})
        if content_type:
            self.headers["content-type"] = content_type
        self.body = body


class StreamResponse:
    """An answer that is sent as it comes: with its `length` where that is known, else in chunks."""

    __slots__ = ("_chunked", "_head", "_wire", "ended", "headers", "length", "prepared", "status")

    def __init__(
        self,
        *,
        status: int = 200,
        headers: Mapping[str, str] | None = None,
        length: int | None = None,
    ) -> None:
        self.status = status
        self.headers = dict(headers or {})
        self.length = length
        self.prepared = False
        """Whether an answer has begun: then nothing else can be answered any more."""
        self.ended = False
        self._wire: Wire | None = None
        self._head = b""
        self._chunked = False

    def prepare(self, request: HttpRequest) -> None:
        """Begin; the head leaves with the first bytes."""
        self.prepared, self._wire = True, request.wire
        self._chunked = self.length is None and not request.old
        if self.length is None:
            # nginx would keep it back until it has some pages of it.
            framing = "X-Accel-Buffering: no\r\n"
            framing += "Transfer-Encoding: chunked\r\n" if self._chunked else ""
        else:
            framing = f"Content-Length: {self.length}\r\n"
        framing += request.wire.begin(request, last=self.length is None and request.old)
        self._head = head_of(self.status, self.headers, framing)

    def write(self, chunk: bytes) -> None:
        """Send bytes at once; nothing waits. Raise `ConnectionResetError` when the caller is gone."""
        if not chunk:
            return
        if self._chunked:
            self._send(b"%x\r\n%b\r\n" % (len(chunk), chunk))
        else:
            self._send(chunk)

    async def drain(self) -> None:
        """Wait until the caller has read most of what was sent."""
        if self._wire is not None:
            await self._wire.drained()

    def end(self) -> None:
        """Nothing more comes."""
        self.ended = True
        if self._chunked or self._head:
            self._send(b"0\r\n\r\n" if self._chunked else b"")

    def _send(self, data: bytes) -> None:
        transport = self._wire.transport if self._wire else None
        if transport is None or transport.is_closing():
            raise ConnectionResetError("the caller is gone")
        head, self._head = self._head, b""
        if head and len(data) <= _JOINED_BYTES:
            data = head + data
        elif head:
            transport.write(head)
        transport.write(data)


def head_of(status: int, headers: Mapping[str, str], tail: str) -> bytes:
    """Return an answer's head; raise `ValueError` for a header that would be two."""
    return f"{_status_line(status)}{header_lines(headers)}{tail}\r\n".encode()


@lru_cache(maxsize=128)
def _status_line(status: int) -> str:
    try:
        phrase = HTTPStatus(status).phrase
    except ValueError:
        phrase = "Unknown"
    return f"HTTP/1.1 {status} {phrase}\r\n"
