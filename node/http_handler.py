"""Handler of the requests of one connection that aiohttp reads and answers, in the bytes that `node.connections` gives it."""

import asyncio
import logging
from typing import Any, NoReturn, Protocol, cast

from aiohttp import web
from aiohttp.http import HttpProcessingError, RawRequestMessage

from node import heads
from node.faces.errors import FaceError, HeadTooLarge, Unparseable

log = logging.getLogger("modelvine.http")

BODY_BYTES = 128 * 1024
"""Bytes of a body that wait for their handler before the socket is left unread; up to twice as many, with what is in pieces."""

LINGER_SECONDS = 2.0
"""Seconds that what is still being sent is thrown away, so that its sender gets to read why."""

_NOT_FRAMED = "the body does not match its framing headers"


class HandledConnection(Protocol):
    """The connection that a handler belongs to."""

    address: str
    """The caller's IP address."""

    owner: int | None
    """Uid of the caller's process, where that is known."""

    def refuse(self, error: FaceError) -> None:
        """Answer what is no request."""

    def failed(self) -> None:
        """A request could not be answered."""

    def body_resumed(self) -> None:
        """There is room for more of a body."""

    def sent(self, *, ends: bool) -> None:
        """An answer is sent as far as its caller reads it."""


class HttpHandler(web.RequestHandler):
    """What aiohttp keeps of one connection."""

    __slots__ = ("connection",)

    def __init__(self, server: web.Server, connection: HandledConnection) -> None:
        super().__init__(
            server,
            loop=asyncio.get_running_loop(),
            keepalive_timeout=1e6,  # the connection itself ends where it is idle
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
        """Uid of the caller's process, where that is known."""
        return self.connection.owner

    @owner.setter
    def owner(self, owner: int | None) -> None:
        self.connection.owner = owner

    @property
    def waits(self) -> bool:
        """Whether requests that were read wait for their turn."""
        return bool(self._messages)

    @property
    def has_room(self) -> bool:
        """Whether it takes more of a body, or more requests."""
        return not (self._buffer_paused or self._reading_paused)

    def parse(self, piece: bytes, asked: web.BaseRequest | None) -> None:
        """Take in bytes, while this request is under way; what the parser cannot read of a body its reader is told."""
        self.data_received(piece)
        if asked is not None and self._messages and not asked.content.is_eof():
            said = self._messages[-1][0]
            if not isinstance(said, RawRequestMessage):
                found = heads.fault_of(said.exc)
                within = found if isinstance(found, HeadTooLarge) else Unparseable(_NOT_FRAMED)
                asked.content.set_exception(within)

    # What aiohttp calls.

    def resume_reading(self, resume_parser: bool = True) -> None:  # noqa: FBT001, FBT002 (aiohttp's)
        """There is room for more of a body."""
        super().resume_reading(resume_parser)
        self.connection.body_resumed()

    def log_access(
        self,
        request: web.BaseRequest,  # noqa: ARG002
        response: web.StreamResponse,
        time: float | None,  # noqa: ARG002
    ) -> None:
        """An answer is sent as far as its caller reads it, and the next request may come."""
        self.connection.sent(ends=not response.keep_alive)

    def handle_error(
        self,
        request: web.BaseRequest,  # noqa: ARG002 (the error says more)
        status: int = 500,  # noqa: ARG002
        exc: BaseException | None = None,
        message: str | None = None,  # noqa: ARG002
    ) -> NoReturn:
        """Refuse what the parser could not read; what a handler could not answer ends the connection."""
        if isinstance(exc, HttpProcessingError):
            self.connection.refuse(heads.fault_of(exc))
        else:
            self.connection.failed()
        raise ConnectionResetError("the connection ends") from exc

    def log_exception(self, *args: Any, **kw: Any) -> None:
        """Log what is wrong here; of a body that was cut its reader has told."""
        if not isinstance(kw.get("exc_info"), FaceError):
            super().log_exception(*args, **kw)
