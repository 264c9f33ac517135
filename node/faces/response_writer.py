"""Writer of responses to callers who may be slow, gone, or waiting for long: one place that writes answers piece by piece.

A caller who takes nothing for `stall_timeout` is cut off, so that its worker is not held. One who waits for a stream hears a
comment now and then, which events do not count (WHATWG, server-sent events, 9.2.6), so that no proxy on its way gives up.
"""

import asyncio
from collections.abc import Mapping
from contextlib import suppress

from node import web

EVENT_ENDS = (b"\n\n", b"\n\r\n", b"\r\r")
"""The ends of events; that of CRLF is covered by the second."""

COMMENT = b": keep-alive\n\n"

AT_ONCE_BYTES = 32 * 1024
"""Bytes that nobody has to wait for: half of what asyncio buffers before it makes a writer wait."""

_NOT_BEGUN = web.StreamResponse()
_LONGEST_END = 3
_PIECE_BYTES = 64 * 1024
_LOOKS = 16  # at what a slow caller takes, in the time that it may take nothing


class Outgoing:
    """One answer on its way to its caller. `sent` counts its bytes, comments not among them."""

    __slots__ = ("_ended", "_event_stream", "_http", "_patience", "_response", "_tail", "sent")

    def __init__(self, http: web.HttpRequest, *, patience: float) -> None:
        self._http = http
        self._patience = patience
        self._response = _NOT_BEGUN
        self._tail = b""
        self._ended = self._event_stream = False
        self.sent = 0

    @property
    def begun(self) -> bool:
        """Whether status and headers have gone."""
        return self._response.prepared

    @property
    def streamed(self) -> bool:
        """Whether an event stream has begun."""
        return self.begun and self._event_stream

    @property
    def response(self) -> web.StreamResponse:
        """What a handler hands back to the server."""
        return self._response

    def begin(self, status: int, headers: Mapping[str, str], *, length: int | None = None) -> None:
        """Send status and headers, with the first bytes."""
        self._response = web.StreamResponse(status=status, headers=headers, length=length)
        self._event_stream = headers["content-type"].startswith("text/event-stream")
        self._response.prepare(self._http)

    async def send(self, chunk: bytes) -> None:
        """Send some bytes; raise `ConnectionError` when nobody takes them."""
        if not chunk:
            return
        self.sent += len(chunk)
        self._tail = chunk[-_LONGEST_END:]
        # This will not make anybody wait: a timer for every token would cost more than the token.
        if len(chunk) <= AT_ONCE_BYTES and self._unread() == 0:
            self._response.write(chunk)
            return
        # In pieces where the transport holds a copy of what is not read: in chunks, and in TLS.
        step = len(chunk) if self._uncopied() else _PIECE_BYTES
        for start in range(0, len(chunk), step):
            self._response.write(chunk[start : start + step])
            await self._drained()

    async def end(self, last: bytes = b"") -> None:
        """Send the last bytes, and say that they were."""
        await self.send(last)
        self._ended = True
        self._response.end()
        await self._drained()

    def comment(self) -> None:
        """Send a comment, unless it would stand in the middle of an event, or wait for its reader."""
        between = not self._tail or self._tail.endswith(EVENT_ENDS)
        if between and not self._ended and self._unread() == 0:
            self._response.write(COMMENT)

    def cut(self) -> None:
        """Break the connection: what was sent shall not look like a whole answer."""
        if self._http.transport is not None:
            self._http.transport.abort()

    def _uncopied(self) -> bool:
        transport = self._http.transport
        plain = transport is not None and transport.get_extra_info("sslcontext") is None
        return plain and self._response.length is not None

    def _unread(self) -> int:
        transport = self._http.transport
        return transport.get_write_buffer_size() if transport is not None else -1

    async def _drained(self) -> None:
        unread = self._unread()
        if unread == 0:
            return
        clock = asyncio.get_running_loop().time
        taken = clock()
        while unread:
            try:
                async with asyncio.timeout(self._patience / _LOOKS):
                    await self._response.drain()
            except TimeoutError as error:
                # Of much at once, some may have been taken.
                before, unread = unread, self._unread()
                if unread != before:
                    taken = clock()
                elif clock() - taken >= self._patience:
                    self.cut()
                    raise ConnectionResetError("the caller stopped reading") from error
            else:
                return


class KeepAlive:
    """Sends a comment whenever nothing was sent to a caller for `seconds`, from entering to leaving; never if they are 0.

    The first begins the answer, with a status of success: what fails later can only be told in an error event.
    """

    __slots__ = ("_headers", "_out", "_seconds", "_seen", "_timer")

    def __init__(self, out: Outgoing, seconds: float, headers: Mapping[str, str]) -> None:
        """`headers` go with the first comment, if the answer has not begun by then."""
        self._out = out
        self._seconds = seconds
        self._headers = headers
        self._seen = 0
        self._timer: asyncio.TimerHandle | None = None

    def __enter__(self) -> "KeepAlive":
        if self._seconds:
            self._timer = asyncio.get_running_loop().call_later(self._seconds, self._tick)
        return self

    def __exit__(self, *_: object) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _tick(self) -> None:
        quiet, self._seen = self._out.sent == self._seen, self._out.sent
        if quiet:
            self._speak()
        # One timer that looks now and then, instead of one that is set anew for every chunk.
        self._timer = asyncio.get_running_loop().call_later(self._seconds, self._tick)

    def _speak(self) -> None:
        # Of a caller who left the server tells the handler itself.
        with suppress(ConnectionError):
            if not self._out.begun:
                self._out.begin(200, {**self._headers, "content-type": "text/event-stream"})
            self._out.comment()
