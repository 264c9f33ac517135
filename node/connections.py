"""Connection of one client: limits and timeouts before aiohttp sees it.

aiohttp reads requests and writes answers; it is given the bytes of one request after the other. What comes behind a request
that is under way waits, and the socket is not read meanwhile. A look now and then ends what takes too long.
"""

import asyncio
import logging
import socket
from collections.abc import Mapping
from math import inf
from types import MappingProxyType
from typing import Any, NoReturn, Protocol, cast

from aiohttp import HttpVersion11, web
from aiohttp.http import HttpProcessingError, RawRequestMessage

from node import heads
from node.auth.socket_owner import UNASKED
from node.config.web import WebSettings
from node.faces.errors import (
    FaceError,
    HeadTooLarge,
    HeadTooSlow,
    TooManyConnections,
    Unparseable,
)
from node.faces.request_reader import id_of
from node.lane.request import LaneRequest

log = logging.getLogger("modelvine.http")

HELD_BYTES = 64 * 1024
"""Bytes of an answer that wait for their caller before its handler waits too."""

BODY_BYTES = 128 * 1024
"""Bytes of a body that wait for their handler before the socket is left unread; up to twice as many, with what is in pieces."""

PIECE_BYTES, FEW_BYTES, MANY_LINES = 8 * 1024, 512, 128
"""Bytes that are parsed in one turn where nobody knows how many belong together; few where so many lines could be chunks."""

AHEAD_BYTES = 1024 * 1024
"""Bytes that have come and wait, of more than one read where aiohttp reads on; who sends more is cut off."""

STALL_SECONDS = 30.0
"""Seconds that a caller may take to read the rest of an answer whose handler is done."""

LINGER_SECONDS = 2.0
"""Seconds that what is still being sent is thrown away, so that its sender gets to read why."""

_SOON = 0.05  # seconds after which a caller who has closed its side is looked at
_HEAD_END = b"\r\n\r\n"
_NOT_FRAMED = "the body does not match its framing headers"
_NOTHING: Mapping[str, str] = MappingProxyType({})


class Surroundings(Protocol):
    """What a connection needs of the listener that it belongs to."""

    now: float
    closing: bool
    settings: WebSettings
    fixed: heads.FixedHeaders

    def made(self, connection: "CallerConnection") -> bool:
        """Take in a connection that is open; return whether there is room for it."""

    def lost(self, connection: "CallerConnection") -> None:
        """Forget a connection that is closed."""


class CallerConnection(web.RequestHandler):
    """One caller's connection."""

    __slots__ = (
        "_ahead",
        "_apart",
        "_asked_back",
        "_deaf",
        "_due",
        "_head_bytes",
        "_head_due",
        "_last",
        "_left",
        "_place",
        "_turn",
        "_under_way",
        "_waits",
        "_wire",
        "address",
        "owner",
        "task",
    )

    def __init__(self, server: web.Server, place: Surroundings) -> None:
        super().__init__(
            server,
            loop=asyncio.get_running_loop(),
            keepalive_timeout=1e6,  # this module itself ends idle connections
            access_log=cast("logging.Logger", None),
            logger=log,
            auto_decompress=False,
            lingering_time=LINGER_SECONDS,
            read_bufsize=BODY_BYTES,
            max_line_size=heads.MAX_URL_BYTES,
            max_field_size=heads.MAX_FIELD_BYTES,
            max_headers=heads.MAX_FIELDS,
        )
        self._place = place
        self.address = ""
        """The caller's IP address."""
        self.owner: int | None = UNASKED
        """Uid of the caller's process, where that is known."""
        self.task: asyncio.Task[Any] | None = None
        """The task that answers a request of this connection, if there is one."""
        self._wire: asyncio.Transport | None = None
        self._under_way: web.BaseRequest | LaneRequest | None = None
        self._ahead: bytes | memoryview = b""
        self._waits = False
        """Whether the socket was left unread for what has come and was not parsed."""
        self._turn: asyncio.Handle | None = None
        self._apart = False
        """Whether the present head was parsed apart from what came behind it."""
        self._head_bytes = 0
        self._head_due = self._due = inf
        self._last = self._deaf = False
        """Whether the answer was the last one here; what still comes is thrown away."""
        self._left = self._asked_back = False
        """Whether the caller has closed its side; was sent something to find out whether it is there."""

    # What the listener calls.

    @property
    def ends(self) -> float:
        """When the connection is closed if nothing comes; infinite while a request is under way."""
        return inf if self._under_way is not None else min(self._head_due, self._due)

    def begin(self, request: web.BaseRequest) -> None:
        """It is this request's turn."""
        self._under_way = request
        self._head_due = self._due = inf
        self._head_bytes = 0
        if self._ahead:
            self._go_on()

    def answered(self) -> None:
        """The handler is done; what it answered may still be on its way."""
        self._due = self._place.now + STALL_SECONDS

    def is_last(self, request: web.BaseRequest) -> bool:
        """Whether the answer to this request ends the connection."""
        if self._place.closing or not request.content.is_eof():
            return True
        # Where nothing was kept apart, what came behind the offer is lost.
        return heads.offers(request) and (not self._apart or "transfer-encoding" in request.headers)

    def look(self, now: float) -> None:
        """End what takes too long; a head that has come and waits for the loop does not."""
        if self._under_way is not None:
            if now >= self._due or (self._left and self._is_gone()):
                self.abort()
        elif now >= self._head_due and not self._messages:
            if self._head_bytes:
                self.refuse(HeadTooSlow("the request's headers did not arrive in time"))
            else:
                self.end()
        elif now >= self._due:
            self.abort() if self._last or self._deaf else self.end()

    def leave(self) -> None:
        """End the connection, with the answer to a request that is under way."""
        if self._under_way is None and not self._messages:
            self.end()
        else:
            self.close()

    def end(self) -> None:
        """Close the connection once what was sent is taken, for which there is a time limit."""
        self._deaf, self._last = True, True
        self._head_due, self._due = inf, self._place.now + STALL_SECONDS
        self.force_close()
        if self._wire is not None:
            self._wire.close()

    def abort(self) -> None:
        """Cut the connection."""
        self._deaf = True
        if self._wire is not None:
            self._wire.abort()

    def refuse(self, error: FaceError, said: Mapping[str, str] = _NOTHING) -> None:
        """Answer what is no request, and listen no more; `said` are the headers that could be read."""
        wire = self._wire
        if self._deaf or wire is None:
            return
        log.debug("refused an invalid request: %s", type(error).__name__)
        self._deaf, self._under_way, self._ahead = True, None, b""
        # aiohttp would close it at once, and who still sends would lose the answer.
        self.transport = None
        self._head_due, self._due = inf, self._place.now + LINGER_SECONDS
        wire.write(heads.spelt(error, id_of(said), self._place.fixed))
        if wire.can_write_eof():
            wire.write_eof()
            wire.resume_reading()
        else:
            wire.close()

    # What the transport calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin, where there is room."""
        wire = self._wire = cast("asyncio.Transport", transport)
        name = wire.get_extra_info("peername")
        self.address = self.address or (str(name[0]) if isinstance(name, tuple) else "")
        wire.set_write_buffer_limits(HELD_BYTES)  # TLS would hold eight times as much
        if not self._place.made(self):
            self.refuse(TooManyConnections("too many connections are open"))
            wire.close()
            return
        self._head_due = self._place.now + self._place.settings.head_timeout
        # Nothing is aiohttp's to read yet; it would start a task for that.
        super(web.RequestHandler, self).connection_made(transport)

    def connection_lost(self, exc: BaseException | None) -> None:
        """The caller is gone: nobody wants its answer any more."""
        self._wire, self._under_way, self._ahead, self.task = None, None, b"", None
        self._place.lost(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take in bytes; none where aiohttp goes on with what it has."""
        if self._deaf:
            return
        if not data:
            super().data_received(data)
        elif not self._ahead:
            self._ahead = data
            self._read()
        elif len(self._ahead) < AHEAD_BYTES:
            self._ahead = b"".join((self._ahead, data))
            self._pause()
        else:
            self.abort()

    def resume_reading(self, resume_parser: bool = True) -> None:  # noqa: FBT001, FBT002 (aiohttp's)
        """There is room for more of a body."""
        super().resume_reading(resume_parser)
        if self._ahead:
            self._pause()

    def eof_received(self) -> bool | None:  # type: ignore[override]  # asyncio's, which aiohttp makes narrower
        """Go on with what was asked before, though nothing more will be; a caller who is gone is noticed when it is sent to."""
        asked, wire = self._under_way, self._wire
        if self._left:
            return True
        if self._deaf or wire is None or wire.get_extra_info("sslcontext") is not None:
            return None
        if asked is None:
            waits = bool(self._head_bytes or self._messages or self._ahead)
        else:
            # Whoever closes it in the middle of an answer has left.
            waits = asked.content.is_eof() and not asked.writer.output_size
        if not waits:
            return None
        self._left = True
        self._loop.call_soon(self._look_again)
        return True

    # What aiohttp calls.

    def log_access(
        self,
        request: web.BaseRequest,  # noqa: ARG002
        response: web.StreamResponse,
        time: float | None,  # noqa: ARG002
    ) -> None:
        """An answer is sent as far as its caller reads it, and the next request may come."""
        self._under_way = self.task = None
        self._last = not response.keep_alive
        wait = STALL_SECONDS if self._last else self._place.settings.idle_timeout
        self._due = self._place.now + wait
        if self._left:
            self._loop.call_later(_SOON, self._look_again)
        if self._place.closing:
            self.close()
        elif self._ahead:
            self._go_on()

    def handle_error(
        self,
        request: web.BaseRequest,  # noqa: ARG002 (the error says more)
        status: int = 500,  # noqa: ARG002
        exc: BaseException | None = None,
        message: str | None = None,  # noqa: ARG002
    ) -> NoReturn:
        """Refuse what the parser could not read; what a handler could not answer ends the connection."""
        if isinstance(exc, HttpProcessingError):
            self.refuse(heads.fault_of(exc))
        elif not self._deaf:
            self.abort()
        raise ConnectionResetError("the connection ends") from exc

    def log_exception(self, *args: Any, **kw: Any) -> None:
        """Log what is wrong here; of a body that was cut its reader has told."""
        if not isinstance(kw.get("exc_info"), FaceError):
            super().log_exception(*args, **kw)

    def _go_on(self) -> None:
        """Parse on in the next turn of the loop."""
        if self._turn is None:
            self._turn = self._loop.call_soon(self._read)

    def _read(self) -> None:
        """Parse a piece of what has come; the rest has its turn later, or when what is before it is answered."""
        self._turn = None
        if self._deaf or self._wire is None:
            return
        if self._ahead and not self._is_behind():
            ahead, size = self._ahead, self._share()
            self._ahead = memoryview(ahead)[size:] if size < len(ahead) else b""
            self._parse(bytes(ahead[:size]))
        if not self._ahead:
            if self._waits and not self._buffer_paused and not self._reading_paused:
                self._waits = False
                self._wire.resume_reading()
            return
        self._pause()
        if not self._is_behind():
            self._go_on()

    def _is_behind(self) -> bool:
        """Whether what came last has to wait until something else is answered."""
        return bool(self._messages) or (
            self._under_way is not None and heads.is_read(self._under_way)
        )

    def _share(self) -> int:
        """Return how many bytes are parsed now: those of one head, of a body of known length, or a few."""
        asked = self._under_way
        if asked is not None:
            length = asked.content_length
            if length is not None:
                return max(1, length - asked.content.total_bytes)
            lines = bytes(self._ahead[:PIECE_BYTES]).count(b"\n")
            return FEW_BYTES if lines > MANY_LINES else PIECE_BYTES
        end = bytes(self._ahead[: heads.MAX_HEAD_BYTES]).find(_HEAD_END)
        # aiohttp loses what is parsed together with an offer of another protocol, and behind it.
        self._apart = end >= 0
        return end + len(_HEAD_END) if self._apart else PIECE_BYTES

    def _parse(self, piece: bytes) -> None:
        asked = self._under_way
        if asked is None and not self._last:
            if self._head_bytes > heads.MAX_HEAD_BYTES:
                self.refuse(HeadTooLarge(f"the headers exceed {heads.MAX_HEAD_BYTES} bytes"))
                return
            if not self._head_bytes:
                self._head_due, self._due = self._place.now + self._place.settings.head_timeout, inf
            self._head_bytes += len(piece)
        if self._task_handler is None:
            super().connection_made(cast("asyncio.Transport", self._wire))
        super().data_received(piece)
        if isinstance(asked, web.BaseRequest) and self._messages and not asked.content.is_eof():
            said = self._messages[-1][0]
            # What the parser could not read it does not tell whoever reads the body.
            if not isinstance(said, RawRequestMessage):
                found = heads.fault_of(said.exc)
                within = found if isinstance(found, HeadTooLarge) else Unparseable(_NOT_FRAMED)
                asked.content.set_exception(within)

    def _pause(self) -> None:
        self._waits = True
        if self._wire is not None:
            self._wire.pause_reading()

    def _look_again(self) -> None:
        """End the connection of a caller who sends nothing more, once all is answered or it is gone."""
        asked, wire = self._under_way, self._wire
        if wire is None or self._deaf:
            return
        if asked is None and not self._messages and not self._ahead:
            self.end()
        elif asked is None:
            self._loop.call_later(_SOON, self._look_again)
        elif (
            not self._asked_back and asked.version == HttpVersion11 and not asked.writer.output_size
        ):
            # To close its side looks like leaving. Who has left refuses this, and who has not passes over it.
            wire.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            self._asked_back = True
            self._loop.call_later(_SOON, self._look_again)
        elif self._is_gone():
            self.abort()

    def _is_gone(self) -> bool:
        """Whether the kernel knows that nobody is there any more: it does once something was sent in vain."""
        known = self._wire.get_extra_info("socket") if self._wire is not None else None
        if known is None or known.family not in (socket.AF_INET, socket.AF_INET6):
            return False
        return bool(known.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] == 7)  # TCP_CLOSE
