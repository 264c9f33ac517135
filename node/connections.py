"""Connection of one client: limits and timeouts before aiohttp sees it.

A handler of aiohttp's reads requests and writes answers; it is made when the first bytes are its to read, and given those of
one request after the other. What comes behind a request that is under way waits, and the socket is not read meanwhile. A look
now and then ends what takes too long.
"""

import asyncio
import socket
from collections.abc import Mapping
from math import inf
from types import MappingProxyType
from typing import Any, Protocol, cast

from aiohttp import HttpVersion11, web

from node import heads
from node.auth.socket_owner import UNASKED
from node.config.web import WebSettings
from node.faces.errors import (
    FaceError,
    HeadTooLarge,
    HeadTooSlow,
    TooManyConnections,
)
from node.faces.request_ids import id_of
from node.http_handler import LINGER_SECONDS, HttpHandler, log
from node.lane.request import LaneRequest

HELD_BYTES = 64 * 1024
"""Bytes of an answer that wait for their caller before its handler waits too."""

PIECE_BYTES, FEW_BYTES, MANY_LINES = 8 * 1024, 512, 128
"""Bytes that are parsed in one turn where nobody knows how many belong together; few where so many lines could be chunks."""

AHEAD_BYTES = 1024 * 1024
"""Bytes that have come and wait, of more than one read where aiohttp reads on; who sends more is cut off."""

STALL_SECONDS = 30.0
"""Seconds that a caller may take to read the rest of an answer whose handler is done."""

_SOON = 0.05  # seconds after which a caller who has closed its side is looked at
_HEAD_END = b"\r\n\r\n"
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


class CallerConnection(asyncio.Protocol):
    """One caller's connection."""

    __slots__ = (
        "_ahead", "_apart", "_asked_back", "_deaf", "_due", "_handler", "_head_bytes", "_head_due", "_last", "_left", "_loop",
        "_place", "_room", "_server", "_turn", "_under_way", "_waits", "address", "full", "owner", "task", "transport",
    )  # fmt: skip

    def __init__(self, server: web.Server, place: Surroundings) -> None:
        self._loop = asyncio.get_running_loop()
        self._server = server
        self._place = place
        self.address = ""
        """The caller's IP address."""
        self.owner: int | None = UNASKED
        """Uid of the caller's process, where that is known."""
        self.task: asyncio.Task[Any] | None = None
        """The task that answers a request of this connection, if there is one."""
        self.transport: asyncio.Transport | None = None
        """What it is sent on; `None` before and after."""
        self.full = False
        """Whether the transport holds enough of an answer."""
        self._room: asyncio.Future[None] | None = None
        """Done once it takes more."""
        self._handler: HttpHandler | None = None
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
        elif now >= self._head_due and not self._has_queue():
            if self._head_bytes:
                self.refuse(HeadTooSlow("the request's headers did not arrive in time"))
            else:
                self.end()
        elif now >= self._due:
            self.abort() if self._last or self._deaf else self.end()

    def leave(self) -> None:
        """End the connection, with the answer to a request that is under way."""
        if self._under_way is None and not self._has_queue():
            self.end()
        elif self._handler is not None:
            self._handler.close()

    def end(self) -> None:
        """Close the connection once what was sent is taken, for which there is a time limit."""
        self._deaf, self._last = True, True
        self._head_due, self._due = inf, self._place.now + STALL_SECONDS
        if self._handler is not None:
            self._handler.force_close()
        if self.transport is not None:
            self.transport.close()

    def abort(self) -> None:
        """Cut the connection."""
        self._deaf = True
        if self.transport is not None:
            self.transport.abort()

    def refuse(self, error: FaceError, said: Mapping[str, str] = _NOTHING) -> None:
        """Answer what is no request, and listen no more; `said` are the headers that could be read."""
        wire = self.transport
        if self._deaf or wire is None:
            return
        log.debug("refused an invalid request: %s", type(error).__name__)
        self._deaf, self._under_way, self._ahead = True, None, b""
        if self._handler is not None:
            # aiohttp would close it at once, and who still sends would lose the answer.
            self._handler.transport = None
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
        wire = self.transport = cast("asyncio.Transport", transport)
        name = wire.get_extra_info("peername")
        self.address = self.address or (str(name[0]) if isinstance(name, tuple) else "")
        wire.set_write_buffer_limits(HELD_BYTES)  # TLS would hold eight times as much
        if not self._place.made(self):
            self.refuse(TooManyConnections("too many connections are open"))
            wire.close()
            return
        self._head_due = self._place.now + self._place.settings.head_timeout

    def connection_lost(self, exc: Exception | None) -> None:
        """The caller is gone: nobody wants its answer any more."""
        handler, room = self._handler, self._room
        self.transport, self._under_way, self._ahead, self.task = None, None, b"", None
        # Else each would refer to the other.
        self._handler = self._room = None
        self._place.lost(self)
        if room is not None and not room.done():
            room.set_exception(ConnectionResetError("the caller is gone"))
        if handler is not None:
            handler.connection_lost(exc)

    def pause_writing(self) -> None:
        """The transport holds enough."""
        self.full = True
        if self._handler is not None:
            self._handler.pause_writing()

    def resume_writing(self) -> None:
        """The transport takes more."""
        self.full = False
        room, self._room = self._room, None
        if room is not None and not room.done():
            room.set_result(None)
        if self._handler is not None:
            self._handler.resume_writing()

    async def drain(self) -> None:
        """Wait while the transport holds enough; raise `ConnectionError` when nobody takes it."""
        if self.transport is None:
            raise ConnectionResetError("the caller is gone")
        if self.full:
            room = self._room or self._loop.create_future()
            self._room = room
            await room

    def data_received(self, data: bytes) -> None:
        """Take in bytes."""
        if self._deaf:
            return
        if not self._ahead:
            self._ahead = data
            self._read()
        elif len(self._ahead) < AHEAD_BYTES:
            self._ahead = b"".join((self._ahead, data))
            self._pause()
        else:
            self.abort()

    def eof_received(self) -> bool | None:
        """Go on with what was asked before, though nothing more will be; a caller who is gone is noticed when it is sent to."""
        asked, wire = self._under_way, self.transport
        if self._left:
            return True
        if self._deaf or wire is None or wire.get_extra_info("sslcontext") is not None:
            return None
        if asked is None:
            waits = bool(self._head_bytes or self._has_queue() or self._ahead)
        else:
            # Whoever closes it in the middle of an answer has left.
            waits = asked.content.is_eof() and not asked.writer.output_size
        if not waits:
            return None
        self._left = True
        self._loop.call_soon(self._look_again)
        return True

    # What the handler calls.

    def body_resumed(self) -> None:
        """There is room for more of a body."""
        if self._ahead:
            self._pause()

    def failed(self) -> None:
        """A request could not be answered: cut the connection, unless it ends already."""
        if not self._deaf:
            self.abort()

    def sent(self, *, ends: bool) -> None:
        """An answer is sent as far as its caller reads it, and the next request may come."""
        self._under_way = self.task = None
        self._last = ends
        wait = STALL_SECONDS if ends else self._place.settings.idle_timeout
        self._due = self._place.now + wait
        if self._left:
            self._loop.call_later(_SOON, self._look_again)
        if self._place.closing:
            if self._handler is not None:
                self._handler.close()
        elif self._ahead:
            self._go_on()

    # How.

    def _go_on(self) -> None:
        """Parse on in the next turn of the loop."""
        if self._turn is None:
            self._turn = self._loop.call_soon(self._read)

    def _read(self) -> None:
        """Parse a piece of what has come; the rest has its turn later, or when what is before it is answered."""
        self._turn = None
        if self._deaf or self.transport is None:
            return
        if self._ahead and not self._is_behind():
            ahead, size = self._ahead, self._share()
            self._ahead = memoryview(ahead)[size:] if size < len(ahead) else b""
            self._parse(bytes(ahead[:size]))
        if not self._ahead:
            if self._waits and (self._handler is None or self._handler.has_room):
                self._waits = False
                self.transport.resume_reading()
            return
        self._pause()
        if not self._is_behind():
            self._go_on()

    def _is_behind(self) -> bool:
        """Whether what came last has to wait until something else is answered."""
        return self._has_queue() or (self._under_way is not None and heads.is_read(self._under_way))

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
        if self._handler is None:
            self._handler = HttpHandler(self._server, self)
            self._handler.connection_made(cast("asyncio.Transport", self.transport))
            if self.full:
                self._handler.pause_writing()
        self._handler.parse(piece, asked if isinstance(asked, web.BaseRequest) else None)

    def _has_queue(self) -> bool:
        """Whether requests that were read wait for their turn."""
        return self._handler is not None and self._handler.waits

    def _pause(self) -> None:
        self._waits = True
        if self.transport is not None:
            self.transport.pause_reading()

    def _look_again(self) -> None:
        """End the connection of a caller who sends nothing more, once all is answered or it is gone."""
        asked, wire = self._under_way, self.transport
        if wire is None or self._deaf:
            return
        if asked is None and not self._has_queue() and not self._ahead:
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
        known = self.transport.get_extra_info("socket") if self.transport is not None else None
        if known is None or known.family not in (socket.AF_INET, socket.AF_INET6):
            return False
        return bool(known.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] == 7)  # TCP_CLOSE
