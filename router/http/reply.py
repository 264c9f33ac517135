"""Reply of an HTTP server, as it comes on a connection: read to its end by one reader, or closed."""

import asyncio
from collections.abc import Callable
from typing import Protocol

from router.http.answer_headers import NO_HEADERS, AnswerHeaders
from router.http.cut_through import CutThrough
from router.http.errors import CannotConnect, HttpError

FULL_BYTES = 64 * 1024
"""High-water mark: bytes of a body waiting for their reader at which the socket is paused until all of them are taken."""

_PIECE_COST = 64
"""Bytes that a piece of a body counts in addition to its own, which is what tiny pieces take in memory."""


class Source(Protocol):
    """The connection that a reply comes on."""

    loop: asyncio.AbstractEventLoop

    can_run_inline: bool
    """Whether the reader is woken only after all bytes read from a socket have been processed."""

    def resume_reading(self) -> None:
        """Read the socket again."""

    def set_large_reads(self, *, large: bool) -> None:
        """Read the socket in large pieces, or in pieces of the usual size."""

    def abort(self) -> None:
        """Cut the connection."""


class Reply:
    """An answer, once its head is there. Read it with `read_some` to its end, or `close` it; both release the connection."""

    # These defaults are class attributes: most answers come whole, and never change most of them.
    status = 0
    length: int | None = None
    complete = False
    done = False
    """`complete`: whether all of it has come; `done`: whether nothing more will come."""
    full = False
    """Whether the socket is paused until the waiting bytes are taken."""
    listener: Callable[[], None] | None = None
    """Called whenever there is news, instead of waking a waiting reader."""
    cut_through: CutThrough | None = None
    """Takes chunks before they are read in the ordinary way."""
    buffered = 0
    """Approximate number of the body's bytes that wait for their reader."""
    wake_threshold = 0
    """Number of them from which on the reader is woken."""
    _waiter: asyncio.Future[None] | None = None
    _error: HttpError | None = None

    def __init__(self, connection: "Source") -> None:
        self.can_run_inline = connection.can_run_inline
        """Whether a listener may do all its work at once."""
        self.headers = NO_HEADERS
        self._connection: Source | None = connection
        self._loop = connection.loop
        self._pieces: list[bytes] = []

    @property
    def ended(self) -> bool:
        """Whether nothing is left to read."""
        return self.complete and not self._pieces

    async def read_some(self) -> bytes:
        """Return the next bytes as soon as there are any, `b""` at the end; raise `HttpError` if the answer breaks off."""
        while not (piece := self.read_nowait()):
            if self.complete:
                return b""
            if self._error is not None:
                raise self._error
            self.resume_reading()
            await self._wait()
        return piece

    async def peek_first(self) -> bytes:
        """Return the bytes that have come, without taking them, once there are any; raise `HttpError` if it breaks off before."""
        while not (self._pieces or self.complete):
            if self._error is not None:
                raise self._error
            await self._wait()
        return self._pieces[0] if self._pieces else b""

    def resume_reading(self) -> None:
        """Read the socket again."""
        self.full = False
        if self._connection is not None:
            self._connection.resume_reading()

    def read_nowait(self) -> bytes:
        """Return the bytes that have come, empty if there are none."""
        if not self._pieces:
            return b""
        pieces, self._pieces, self.buffered = self._pieces, [], 0
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    async def read_up_to(self, limit: int) -> bytes:
        """Return the rest, or more than `limit` bytes of it, read in large pieces; raise `HttpError` if the answer breaks off."""
        pieces: list[bytes] = []
        size = 0
        if self._connection is not None:
            self._connection.set_large_reads(large=limit >= FULL_BYTES)
        try:
            while size <= limit and not self.ended:
                self.wake_threshold = limit + 1 - size
                piece = await self.read_some()
                pieces.append(piece)
                size += len(piece)
        finally:
            self.wake_threshold = 0
            if self._connection is not None:
                self._connection.set_large_reads(large=False)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def peek(self) -> bytes | None:
        """Return the body without consuming it, `None` unless all of it has come."""
        if not self.complete:
            return None
        pieces = self._pieces
        if len(pieces) > 1:
            pieces[:] = [b"".join(pieces)]
        return pieces[0] if pieces else b""

    @property
    def failed(self) -> bool:
        """Whether nothing more will come although the answer is incomplete."""
        return self._error is not None

    @property
    def refused(self) -> bool:
        """Whether it failed before the request was read."""
        return isinstance(self._error, CannotConnect)

    def close(self) -> None:
        """Release the connection: cut it, unless the answer is complete."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.abort()

    async def wait_for_head_or_abort(self) -> None:
        """Wait until status and headers are there; raise `HttpError`. Cut the connection on failure or cancellation."""
        try:
            await self.wait_for_head()
        except BaseException:
            self.close()
            raise

    # Called by the connection.

    async def wait_for_head(self) -> None:
        """Wait until status and headers are there; raise `HttpError`."""
        while self._error is None and not self.status:
            await self._wait()
        if not self.status and self._error is not None:
            raise self._error

    def try_cut_through(self, data: bytes | memoryview) -> bool:
        """Return whether bytes that begin where a chunk begins were cut through."""
        if self.cut_through is None:
            return False
        return self.cut_through.try_pass(data if isinstance(data, bytes) else data.tobytes())

    def feed_data(self, piece: bytes) -> None:
        """Take in bytes of the body; `notify` has to be called after that."""
        self._pieces.append(piece)
        self.buffered += len(piece) + _PIECE_COST

    def feed_complete(self, status: int, headers: AnswerHeaders, body: bytes) -> None:
        """Take in an answer that came whole, see `finish`."""
        self.status, self.headers = status, headers
        self.length = self.buffered = len(body)
        if body:
            self._pieces.append(body)
        self.complete = self.done = True
        self._connection = None

    def notify(self) -> None:
        """Wake the reader if enough has come for it."""
        if self.complete or (self.status and self.buffered >= self.wake_threshold):
            if self.listener is not None:
                self.listener()
            else:
                self.wake()

    def finish(self) -> None:
        """Mark the answer as complete, and let go of the connection; the reader has still to be woken."""
        self.complete = self.done = True
        self._connection = None

    def fail(self, error: HttpError) -> None:
        """End the answer with an error, and wake the reader."""
        self._error, self.done, self._connection = error, True, None
        self.wake()

    def wake(self) -> None:
        """Wake the reader."""
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
