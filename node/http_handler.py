"""Handler of the requests on one connection that aiohttp reads and answers, from the bytes that `node.connections` passes in."""

import asyncio
import logging
import socket
from collections.abc import Iterable
from typing import Any, NoReturn, Protocol, cast

from aiohttp import web
from aiohttp.http import HttpProcessingError, RawRequestMessage

from node import heads
from node.faces.errors import FaceError, HeadTooLarge, Unparseable

log = logging.getLogger("modelvine.http")

BODY_BYTES = 128 * 1024
"""Bytes of a body that wait for their handler before the socket is paused; up to twice as many, with what is in pieces."""

LINGER_SECONDS = 2.0
"""Seconds for which bytes that a caller still sends are discarded, so that the caller can read the error."""

ANSWER_START = b"HTTP/1."
"""The bytes with which every answer begins."""

_NOT_FRAMED = "the body does not match its framing headers"


def is_refused(wire: asyncio.Transport) -> bool:
    """Return whether the kernel at the other end refused what was sent: nobody there reads it."""
    known = wire.get_extra_info("socket")
    if known is None or known.family not in (socket.AF_INET, socket.AF_INET6):
        return False
    return bool(known.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] == 7)  # TCP_CLOSE


class HandledConnection(Protocol):
    """The connection that a handler belongs to."""

    address: str
    """The caller's IP address."""

    owner: int | None
    """Uid of the caller's process, if known."""

    def refuse(self, error: FaceError) -> None:
        """Answer bytes that are not a valid request."""

    def note_failure(self) -> None:
        """Note that a request could not be answered."""

    def body_resumed(self) -> None:
        """Note that there is room for more of a body."""

    def note_sent(self, *, ends: bool) -> None:
        """Note that an answer was sent as far as its caller reads it; `ends` says that it ends the connection."""


class ProbingTransport:
    """Transport of an answer whose first bytes were sent as probes; used for one write, which leaves these out."""

    def __init__(self, handler: "HttpHandler", wire: asyncio.Transport) -> None:
        self._handler, self._wire = handler, wire
        self._sent = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._wire, name)

    def probe(self) -> int:
        """Send the next byte, and return how many were sent; 0 if none is left."""
        sent = self._sent
        if sent == len(ANSWER_START):
            return 0
        self._wire.write(ANSWER_START[sent : sent + 1])
        self._sent += 1
        return self._sent

    def write(self, chunk: bytes) -> None:
        """Send the head, and maybe more, without what was sent of it."""
        if self._handler.transport is cast("object", self):
            self._handler.transport = self._wire
        self._wire.write(memoryview(chunk)[self._sent :])

    def writelines(self, chunks: Iterable[bytes]) -> None:
        """Send the head, and maybe more, without what was sent of it."""
        self.write(b"".join(chunks))


class HttpHandler(web.RequestHandler):
    """aiohttp's protocol of one connection."""

    __slots__ = ("connection",)

    def __init__(self, server: web.Server, connection: HandledConnection) -> None:
        super().__init__(
            server,
            loop=asyncio.get_running_loop(),
            keepalive_timeout=1e6,  # `node.connections` enforces the idle timeout
            access_log=cast("logging.Logger", None),
            logger=log,
            auto_decompress=False,
            lingering_time=LINGER_SECONDS,
            read_bufsize=BODY_BYTES,
            max_line_size=heads.MAX_URL_BYTES,
            max_field_size=heads.MAX_FIELD_BYTES,
            max_headers=heads.MAX_FIELDS,
        )
        self.connection = connection

    @property
    def address(self) -> str:
        """The caller's IP address."""
        return self.connection.address

    @property
    def owner(self) -> int | None:
        """Uid of the caller's process, if known."""
        return self.connection.owner

    @owner.setter
    def owner(self, owner: int | None) -> None:
        self.connection.owner = owner

    @property
    def waits(self) -> bool:
        """Whether parsed requests wait for their turn."""
        return bool(self._messages)

    @property
    def has_room(self) -> bool:
        """Whether the handler takes more of a body, or more requests."""
        return not (self._buffer_paused or self._reading_paused)

    def parse(self, piece: bytes, request: web.BaseRequest | None) -> None:
        """Parse bytes while the request `request` is in flight; an error within its body is raised at the body's reader."""
        self.data_received(piece)
        if request is not None and self._messages and not request.content.is_eof():
            message = self._messages[-1][0]
            if not isinstance(message, RawRequestMessage):
                fault = heads.fault_of(message.exc)
                within = fault if isinstance(fault, HeadTooLarge) else Unparseable(_NOT_FRAMED)
                request.content.set_exception(within)

    def probe(self) -> int:
        """Send the next byte of those with which every answer begins, and return how many were sent; 0 if none can be sent."""
        wire = cast("asyncio.Transport | ProbingTransport | None", self.transport)
        if wire is None:
            return 0
        if not isinstance(wire, ProbingTransport):
            wire = ProbingTransport(self, wire)
            self.transport = cast("asyncio.Transport", wire)
        return wire.probe()

    def detach(self) -> asyncio.Transport | None:
        """Return the transport, which aiohttp no longer writes to or closes."""
        wire, self.transport = self.transport, None
        return wire

    # What aiohttp calls.

    def resume_reading(self, resume_parser: bool = True) -> None:  # noqa: FBT001, FBT002 (aiohttp's)
        """Resume reading: there is room for more of a body."""
        super().resume_reading(resume_parser)
        self.connection.body_resumed()

    def log_access(
        self,
        request: web.BaseRequest,  # noqa: ARG002
        response: web.StreamResponse,
        time: float | None,  # noqa: ARG002
    ) -> None:
        """Tell the connection that an answer was sent as far as its caller reads it; nothing is logged here."""
        self.connection.note_sent(ends=not response.keep_alive)

    def handle_error(
        self,
        request: web.BaseRequest,  # noqa: ARG002 (the error says more)
        status: int = 500,  # noqa: ARG002
        exc: BaseException | None = None,
        message: str | None = None,  # noqa: ARG002
    ) -> NoReturn:
        """Refuse a request that the parser could not read; cut the connection after one that a handler could not answer."""
        if isinstance(exc, HttpProcessingError):
            self.connection.refuse(heads.fault_of(exc))
        else:
            self.connection.note_failure()
        raise ConnectionResetError("the connection ends") from exc

    def log_exception(self, *args: Any, **kw: Any) -> None:
        """Log an unexpected error; a `FaceError`, as of a body that was cut off, was reported by the body's reader."""
        if not isinstance(kw.get("exc_info"), FaceError):
            super().log_exception(*args, **kw)
