"""Writer of responses to callers who may be slow, gone, or waiting for long: one place that writes answers piece by piece.

A caller who takes nothing for `stall_timeout` is cut off, so that its worker is not held. One who waits for a stream hears a
comment now and then, which events do not count (WHATWG, server-sent events, 9.2.6), so that no proxy on its way gives up.

Tap on a stream as it passes: its events are made whole, and its tokens counted, once.
"""

import asyncio
import re
from collections.abc import Mapping
from contextlib import suppress
from typing import cast

from aiohttp import HttpVersion11, web
from aiohttp.abc import AbstractStreamWriter

from node.faces import Serving
from node.faces.access_log import Account
from node.faces.encoder import SpokenAnswer
from node.lane.request import HttpRequest, LaneRequest
from node.lane.response import LaneResponse
from router.answer import Answer
from router.attempt import Routed
from router.http.cut_through import CutThrough
from router.http.timers import Timers
from router.openai.sse import EVENT_ENDS, WholeEvents, has_line
from router.openai.text_writer import DONE
from router.openai.usage import TEXT, Tokens
from router.peers.headers import ATTEMPTS, DROPPED, HEARD, LOAD, NODE, ROUTE, SERVICE_TIME, VERBATIM
from router.state import remote_load, service_time

_LAST_BYTES = 16 * 1024
_LAST_PIECES = 4
_REASON = re.compile(rb'"finish_reason" ?: ?"')


class StreamEnd:
    """Whether a stream of texts, of which whole events pass, lacks only its `[DONE]`: some workers leave it out."""

    __slots__ = ("_last",)

    def __init__(self) -> None:
        self._last: list[bytes] = []

    def seen(self, events: bytes) -> bytes:
        """Take in what goes by, and return it."""
        if events:
            self.keep([events if len(events) <= _LAST_BYTES else events[-_LAST_BYTES:]])
        return events

    def keep(self, pieces: list[bytes]) -> None:
        """Take in pieces, each of which is small."""
        self._last = [*self._last, *pieces][-_LAST_PIECES:]

    @property
    def lacking(self) -> bytes:
        """What a stream lacks that ended well: nothing where it said so, failed, or never said why it ends."""
        last = b"".join(self._last)
        over = has_line(last, b"[DONE]") or has_line(last, b'{"error"')
        if over or not _REASON.search(last):
            return b""
        return DONE if last.endswith(EVENT_ENDS) else b"\n\n" + DONE


class Passage:
    """One event stream on its way through. Whole events come out, without the usage that its caller did not ask for."""

    __slots__ = ("_account", "_answer", "_end", "_events", "_looks", "_tally", "_tokens")

    def __init__(self, routed: Routed, account: Account) -> None:
        self._events = WholeEvents()
        self._end = StreamEnd()
        self._answer = routed.answer
        self._tally = routed.tally
        self._account = account
        # A node that asked for it takes it out itself.
        hides = routed.answer.hides_usage and not account.keeps_usage
        # What another node tells stands in a receipt.
        self._looks = bool(routed.tally) or hides or not account.served
        self._tokens = Tokens(hidden=hides, tells=routed.answer.tells)
        account.streams_text = account.kind in TEXT
        if routed.tally and account.streams_text:
            account.tokens = self._tokens

    def first(self, chunk: bytes) -> bytes:
        """Take in the first bytes and return what is ready to be passed on, nothing perhaps."""
        return self._end.seen(self._tokens.passing(self._events.take(chunk)))

    def take(self, chunk: bytes) -> bytes:
        """Take in the next bytes and return what is ready to be passed on, nothing perhaps."""
        self._counted(chunk)
        whole = not self._events.held and chunk.endswith(EVENT_ENDS)
        ready = chunk if whole else self._events.take(chunk)
        if self._looks and self._tokens.sign in ready:
            ready = self._tokens.passing(ready)
        return self._end.seen(ready)

    def inspect(self, cut_through: CutThrough) -> None:
        """Add what is wanted of what passes by."""
        if self._looks and self._tokens.sign not in cut_through.signs:
            cut_through.signs.append(self._tokens.sign)
        if self._tally is not None:
            cut_through.each.append(self._counted)
        cut_through.kept = self._end.keep
        cut_through.held.append(self._events)

    def rest(self) -> bytes:
        """Return what is left at the end, an event without its blank line or nothing, and note what the answer took."""
        left = self._tokens.passing(self._events.rest) if self._events.held else b""
        if self._tally:
            self._answer.usage = self._tokens.usage()
        elif not self._account.served:
            self._account.hears(self._tokens.usage())
        return self._end.seen(left) if left else b""

    def _counted(self, chunk: bytes) -> None:
        if self._tally is not None:
            self._tokens.events += self._tally.streamed(chunk)

    @property
    def lacking(self) -> bytes:
        """What a stream of texts lacks that ended well, `[DONE]` at most."""
        return self._end.lacking


COMMENT = b": keep-alive\n\n"

AT_ONCE_BYTES = 32 * 1024
"""Bytes that nobody has to wait for: half of what asyncio buffers before it makes a writer wait."""


class Streaming(web.StreamResponse):
    """An answer that is sent as it comes. Its head leaves with its first bytes."""

    _send_headers_immediately = False

    async def prepare(self, request: web.BaseRequest) -> AbstractStreamWriter | None:
        """Begin; where the caller's HTTP has no chunks, the connection's end is the end of the answer."""
        if self.content_length is None and request.version < HttpVersion11:
            self.force_close()
        return await super().prepare(request)


_NOT_BEGUN = Streaming()
_LONGEST_END = 3
_PIECE_BYTES = 64 * 1024
_LOOKS = 16  # at what a slow caller takes, in the time that it may take nothing


class Outgoing:
    """One answer on its way to its caller. `sent` counts its bytes, comments not among them."""

    __slots__ = (
        "_ended",
        "_event_stream",
        "_http",
        "_lane",
        "_patience",
        "_response",
        "last",
        "sent",
    )

    def __init__(self, http: HttpRequest, *, patience: float) -> None:
        self._http = http
        self._patience = patience
        self._response: Streaming | LaneResponse = _NOT_BEGUN
        self._lane: LaneResponse | None = None
        """The same where it is one of the lane."""
        self.last = b""
        """What was sent last."""
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

    def cut_through(self) -> CutThrough | None:
        """Return a cut-through to its caller, `None` where the lane does not write it in chunks."""
        lane, transport = self._lane, self._http.transport
        if lane is None or lane.content_length is not None or transport is None:
            return None
        return CutThrough(self, transport)

    @property
    def in_chunks(self) -> bool:
        """Whether the next bytes are those of a chunk: its head has left."""
        return self._lane is not None and self._lane.chunked

    @property
    def response(self) -> web.StreamResponse:
        """What a handler hands back to the server."""
        # The lane knows its own.
        return cast("web.StreamResponse", self._response)

    async def begin(
        self, status: int, headers: Mapping[str, str], *, length: int | None = None
    ) -> None:
        """Send status and headers, with the first bytes."""
        self._event_stream = headers["content-type"].startswith("text/event-stream")
        http = self._http
        if isinstance(http, LaneRequest):
            self._response = self._lane = LaneResponse(http.line, status, headers, length)
            return
        self._response = Streaming(status=status, headers=headers)
        self._response.content_length = length
        await self._response.prepare(http)

    def send_now(self, chunk: bytes) -> bool:
        """Send some bytes if nobody has to wait for that, and say whether it was so; raise `ConnectionError`."""
        lane, transport = self._lane, self._http.transport
        if lane is None or transport is None or len(chunk) > AT_ONCE_BYTES:
            return False
        if transport.get_write_buffer_size():
            return False
        self.sent += len(chunk)
        self.last = chunk
        lane.write_now(chunk)
        return True

    async def send(self, chunk: bytes) -> None:
        """Send some bytes; raise `ConnectionError` when nobody takes them."""
        if not chunk:
            return
        self.sent += len(chunk)
        self.last = chunk[-_LONGEST_END:]
        if self._is_read(chunk):
            await self._response.write(chunk)
            return
        # In pieces where the transport holds a copy of what is not read: in chunks, and in TLS.
        step = len(chunk) if self._uncopied() else _PIECE_BYTES
        for start in range(0, len(chunk), step):
            await self._taken(chunk[start : start + step])

    async def end(self, last: bytes = b"") -> None:
        """Send the last bytes, and say that they were."""
        if last:
            await self.send(last)
        self._ended = True
        await self._response.write_eof()

    async def comment(self) -> None:
        """Send a comment, unless it would stand in the middle of an event, or wait for its reader."""
        between = not self.last or self.last.endswith(EVENT_ENDS)
        if between and not self._ended and self._unread() == 0:
            await self._response.write(COMMENT)

    def cut(self) -> None:
        """Break the connection: what was sent shall not look like a whole answer."""
        cut(self._http)

    def _is_read(self, chunk: bytes) -> bool:
        """Whether it will make nobody wait: a timer for every token would cost more than the token."""
        return len(chunk) <= AT_ONCE_BYTES and self._unread() == 0

    def _uncopied(self) -> bool:
        transport = self._http.transport
        plain = transport is not None and transport.get_extra_info("sslcontext") is None
        return plain and self._response.content_length is not None

    def _unread(self) -> int:
        transport = self._http.transport
        return transport.get_write_buffer_size() if transport is not None else -1

    async def _taken(self, piece: bytes) -> None:
        """Send bytes, and wait until the transport takes more; of much at once, some may have been read meanwhile."""
        sending = asyncio.ensure_future(self._response.write(piece))
        clock = asyncio.get_running_loop().time
        since, unread = clock(), -1
        try:
            while not (await asyncio.wait({sending}, timeout=self._patience / _LOOKS))[0]:
                before, unread = unread, self._unread()
                if unread != before:
                    since = clock()
                elif clock() - since >= self._patience:
                    self.cut()
                    raise ConnectionResetError("the caller stopped reading")
            await sending
        finally:
            sending.cancel()


def cut(http: HttpRequest) -> None:
    """Break the connection: what was sent shall not look like a whole answer."""
    if http.transport is not None:
        http.transport.abort()


class KeepAlive:
    """Sends a comment whenever nothing was sent to a caller for `seconds`, from entering to leaving; never if they are 0.

    The first begins the answer, with a status of success: what fails later can only be told in an error event.
    """

    __slots__ = ("_id", "_out", "_seconds", "_seen", "_slot", "_speaking", "_timers")

    def __init__(self, out: Outgoing, seconds: float, timers: Timers, id_: str) -> None:
        """The request's id goes with the first comment, if the answer has not begun by then."""
        self._out = out
        self._seconds = seconds
        self._timers = timers
        self._id = id_
        self._seen = 0
        self._slot: int | None = None
        self._speaking: asyncio.Task[None] | None = None

    def __enter__(self) -> "KeepAlive":
        if self._seconds:
            self._slot = self._timers.start(self, self._seconds)
        return self

    def __exit__(self, *_: object) -> None:
        if self._slot is not None:
            self._timers.stop(self, self._slot)
        if self._speaking is not None:
            self._speaking.cancel()

    def fire(self) -> None:
        """Look whether it was quiet, now and then: to set a timer anew for every chunk would cost more."""
        quiet, self._seen = self._out.sent == self._seen, self._out.sent
        if quiet:
            self._speaking = asyncio.ensure_future(self._speak())
        self._slot = self._timers.start(self, self._seconds)

    async def _speak(self) -> None:
        # Of a caller who left the server tells the handler itself.
        with suppress(ConnectionError):
            if not self._out.begun:
                headers = {"x-request-id": self._id, "content-type": "text/event-stream"}
                await self._out.begin(200, headers)
            await self._out.comment()


def headers_of(
    context: Serving, routed: Routed, account: Account, spoken: SpokenAnswer | None = None
) -> dict[str, str]:
    """Return the headers of an answer: the worker's that may be seen, and what the router did for it.

    `spoken` may be left out where its face has a word for all that its caller says. See `steady_lines`.
    """
    answer = routed.answer
    headers = {
        **answer.headers,
        "content-type": answer.content_type,
        "x-request-id": account.id,
        NODE: account.node,
        ROUTE: account.route,
        ATTEMPTS: str(account.attempts),
    }
    if answer.headers or (spoken is not None and spoken.dropped):
        _tell_dropped(headers, answer, account, spoken)
    if account.asker or account.ticket is not None:
        headers |= more_headers_of(context, routed, account)
    return headers


def more_headers_of(context: Serving, routed: Routed, account: Account) -> dict[str, str]:
    """Return what an answer's headers say to a node that asks, now and then, and to whom a quota limits."""
    more: dict[str, str] = {}
    asker, worker = account.asker, routed.candidate.worker
    if asker and worker:
        now = account.began + account.first
        if context.tellings.is_due(asker, worker.api, account.kind, now):
            more[LOAD] = remote_load.written(context.load_of(worker))
            if learnt := context.router.service_time(worker, account.kind):
                more[SERVICE_TIME] = service_time.written(learnt)
    if account.ticket is not None:
        more |= account.ticket.headers()
    if asker and routed.answer.verbatim:
        more[VERBATIM] = routed.answer.verbatim
    return more


def _tell_dropped(
    headers: dict[str, str], answer: Answer, account: Account, spoken: SpokenAnswer | None
) -> None:
    heard = headers.get(HEARD, "") if account.asker else headers.pop(HEARD, "")
    said = spoken.dropped if spoken else ()
    dropped = [name for name in said if name not in heard.split(", ")]
    lost = [] if answer.verbatim else dropped
    # What the worker has no word for comes after what the face has none for.
    lost += _named(headers.pop(DROPPED, ""), spoken.names if spoken else None)
    if lost:
        headers[DROPPED] = ", ".join(lost)


def _named(said: str, names: Mapping[str, str] | None) -> list[str]:
    """Return the parameters that a worker did not hear, as their caller calls them."""
    lost = [name for name in said.split(", ") if name]
    return lost if names is None else [names[name] for name in lost if name in names]
