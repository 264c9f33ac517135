"""Reply of an HTTP server, as it comes on a connection: read to its end by one reader, or let go."""

import asyncio
from collections.abc import Callable
from typing import Protocol

from router.http.answer_headers import NO_HEADERS, AnswerHeaders
from router.http.cut_through import CutThrough
from router.http.errors import CannotConnect, HttpError

FULL_BYTES = 64 * 1024
"""Bytes of a body that wait for their reader before the socket is left unread, until all of them are taken."""

_PIECE_COST = 64
"""What a piece of a body counts for beyond its bytes: of tiny ones, that is what they take in memory."""


class Source(Protocol):
    """The connection that a reply comes on."""

    loop: asyncio.AbstractEventLoop

    prompt: bool
    """Whether news is told last of all that is done with what a socket had."""

    def resume(self) -> None:
        """Read the socket again."""

    def widen(self, *, much: bool) -> None:
        """Read much of the socket at once, or as much as usual."""

    def abort(self) -> None:
        """Cut the connection."""


class Reply:
    """An answer, once its head is there. Read it with `some` to its end, or `close` it; both let go of the connection."""

    # Defaults that stand in the class: most answers come whole, and never have another value for most of these.
    status = 0
    length: int | None = None
    complete = False
    done = False
    """Whether all of it came; whether nothing more will."""
    full = False
    """Whether the socket is left unread until what is here was taken."""
    listener: Callable[[], None] | None = None
    """Called whenever there is news, instead of a reader who waits."""
    cut_through: CutThrough | None = None
    """What takes chunks before they are read as ordinary ones are."""
    held = 0
    """How many bytes of the body wait for their reader, about."""
    enough = 0
    """How many are worth telling it, for now."""
    _waiter: asyncio.Future[None] | None = None
    _error: HttpError | None = None

    def __init__(self, connection: "Source") -> None:
        self.prompt = connection.prompt
        """Whether a listener may do all its work at once."""
        self.headers = NO_HEADERS
        self._connection: Source | None = connection
        self._loop = connection.loop
        self._pieces: list[bytes] = []

    @property
    def ended(self) -> bool:
        """Whether nothing is left to read."""
        return self.complete and not self._pieces

    async def some(self) -> bytes:
        """Return the next bytes as soon as there are any, `b""` at the end; raise `HttpError` when it breaks off."""
        while not (piece := self.here()):
            if self.complete:
                return b""
            if self._error is not None:
                raise self._error
            self.read_on()
            await self._wait()
        return piece

    def read_on(self) -> None:
        """Read the socket again."""
        self.full = False
        if self._connection is not None:
            self._connection.resume()

    def here(self) -> bytes:
        """Return the bytes that are here, nothing where none are."""
        if not self._pieces:
            return b""
        pieces, self._pieces, self.held = self._pieces, [], 0
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    async def at_most(self, limit: int) -> bytes:
        """Return the rest, or more than `limit` bytes of it, read in big pieces; raise `HttpError` when it breaks off."""
        pieces: list[bytes] = []
        size = 0
        if self._connection is not None:
            self._connection.widen(much=limit >= FULL_BYTES)
        try:
            while size <= limit and not self.ended:
                self.enough = limit + 1 - size
                piece = await self.some()
                pieces.append(piece)
                size += len(piece)
        finally:
            self.enough = 0
            if self._connection is not None:
                self._connection.widen(much=False)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def peek(self) -> bytes | None:
        """Return the body where all of it is here, and leave it to be read."""
        if not self.complete:
            return None
        pieces = self._pieces
        if len(pieces) > 1:
            pieces[:] = [b"".join(pieces)]
        return pieces[0] if pieces else b""

    @property
    def failed(self) -> bool:
        """Whether nothing more will come though it is not complete."""
        return self._error is not None

    @property
    def refused(self) -> bool:
        """Whether it failed before anybody read the request."""
        return isinstance(self._error, CannotConnect)

    def close(self) -> None:
        """Let go of the connection: cut it, unless the answer is complete."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.abort()

    async def sent(self) -> None:
        """Wait until status and headers are there; raise `HttpError`. Cut the connection when given up."""
        try:
            await self.head()
        except BaseException:
            self.close()
            raise

    # The connection's side.

    async def head(self) -> None:
        """Wait until status and headers are there; raise `HttpError`."""
        while self._error is None and not self.status:
            await self._wait()
        if not self.status and self._error is not None:
            raise self._error

    def passes(self, data: bytes | memoryview) -> bool:
        """Say whether bytes that begin where a chunk does are cut through."""
        if self.cut_through is None:
            return False
        return self.cut_through.take(data if isinstance(data, bytes) else data.tobytes())

    def take(self, piece: bytes) -> None:
        """Take in bytes of the body; `news` is yet to be told."""
        self._pieces.append(piece)
        self.held += len(piece) + _PIECE_COST

    def came_whole(self, status: int, headers: AnswerHeaders, body: bytes) -> None:
        """The answer is complete at once, see `finish`."""
        self.status, self.headers = status, headers
        self.length = self.held = len(body)
        if body:
            self._pieces.append(body)
        self.complete = self.done = True
        self._connection = None

    def news(self) -> None:
        """Let the reader look, where what has come is enough for it."""
        if self.complete or (self.status and self.held >= self.enough):
            if self.listener is not None:
                self.listener()
            else:
                self.wake()

    def finish(self) -> None:
        """The answer is complete, and the connection somebody else's; the reader is yet to be told."""
        self.complete = self.done = True
        self._connection = None

    def fail(self, error: HttpError) -> None:
        """Nothing more will come."""
        self._error, self.done, self._connection = error, True, None
        self.wake()

    def wake(self) -> None:
        """Let the reader look."""
        if self.listener is not None:
            self.listener()
        elif self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def _wait(self) -> None:
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None
