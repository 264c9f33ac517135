"""Writer of responses, in pieces, to callers that may be slow, gone, or waiting for a long time.

A caller that takes nothing for `stall_timeout` is cut off, so that it does not occupy its worker. A caller that waits for a
stream gets a keep-alive comment now and then, which is not an event (WHATWG, server-sent events, 9.2.6), so that no proxy on
the way times out.
"""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from typing import cast

from aiohttp import web

from node.faces import Serving
from node.faces.access_log import Account
from node.faces.encoder import AnswerForm
from node.faces.request_reader import StreamedResponse
from node.lane.request import HttpRequest, LaneRequest
from node.lane.response import LaneResponse
from router.answer import Answer
from router.attempt import Routed
from router.http.cut_through import CutThrough
from router.http.timers import Timers
from router.openai.sse import EVENT_ENDS
from router.peers.headers import ATTEMPTS, DROPPED, HEARD, LOAD, NODE, ROUTE, SERVICE_TIME, VERBATIM
from router.state import remote_load, service_time

COMMENT = b": keep-alive\n\n"

AT_ONCE_BYTES = 32 * 1024
"""Bytes that are written without waiting: half of what asyncio buffers before it makes a writer wait."""


_SANDBOX = {"content-security-policy": "sandbox; default-src 'none'"}
"""Header with which a browser that is led to an answer runs no script in it: a worker's page is not one of this node's."""

# Types that no browser shows as a page. Each is a whole header: of several types in one, browsers take the last.
_DATA = frozenset(
    {
        "application/json",
        "application/json; charset=utf-8",
        "text/event-stream",
        "text/event-stream; charset=utf-8",
    }
)

_NOT_BEGUN = StreamedResponse()
_LONGEST_END = 3
_PIECE_BYTES = 64 * 1024
_CHECKS = 16  # checks of a slow caller's progress within the time that it may take nothing


class ResponseWriter:
    """Writer of one response to its caller."""

    __slots__ = (
        "_cut_through",
        "_ended",
        "_event_stream",
        "_http",
        "_lane",
        "_last_bytes",
        "_patience",
        "_response",
        "_sent",
    )

    def __init__(self, http: HttpRequest, *, patience: float) -> None:
        self._http = http
        self._patience = patience
        self._response: StreamedResponse | LaneResponse = _NOT_BEGUN
        self._lane: LaneResponse | None = None
        """The same response where the lane sends it, else `None`."""
        self._cut_through: CutThrough | None = None
        self._last_bytes = b""
        """The last bytes sent outside the cut-through, which passes only whole events, and only while no event is incomplete."""
        self._ended = self._event_stream = False
        self._sent = 0

    @property
    def sent(self) -> int:
        """Bytes of the answer that were sent, without comments."""
        cut_through = self._cut_through
        return self._sent if cut_through is None else self._sent + cut_through.sent

    @property
    def begun(self) -> bool:
        """Whether status and headers have been sent."""
        return self._response.prepared

    @property
    def streamed(self) -> bool:
        """Whether an event stream has begun."""
        return self.begun and self._event_stream

    def cut_through(self) -> CutThrough | None:
        """Return a cut-through to the caller; `None` unless the lane sends the answer in chunks."""
        lane, transport = self._lane, self._http.transport
        if lane is None or lane.content_length is not None or transport is None:
            return None
        self.count(self._cut_through.sent if self._cut_through else 0)
        self._cut_through = CutThrough(transport)
        return self._cut_through

    def count(self, size: int) -> None:
        """Count bytes that are sent by other means."""
        self._sent += size

    @property
    def in_chunks(self) -> bool:
        """Whether the headers have been sent and the body follows in chunks."""
        return self._lane is not None and self._lane.chunked

    @property
    def response(self) -> web.StreamResponse:
        """The response that a handler returns to the server."""
        # The lane recognises its own responses.
        return cast("web.StreamResponse", self._response)

    async def begin(
        self, status: int, headers: Mapping[str, str], *, length: int | None = None
    ) -> None:
        """Begin the answer: status and headers leave with the first bytes."""
        self._event_stream = headers["content-type"].startswith("text/event-stream")
        http = self._http
        if isinstance(http, LaneRequest):
            self._response = self._lane = LaneResponse(http.wire, status, headers, length)
            return
        self._response = StreamedResponse(status=status, headers=headers)
        self._response.content_length = length
        await self._response.prepare(http)

    def send_now(self, chunk: bytes) -> bool:
        """Send bytes if that needs no waiting, and return whether they were sent; raise `ConnectionError`."""
        lane, transport = self._lane, self._http.transport
        if lane is None or transport is None or len(chunk) > AT_ONCE_BYTES:
            return False
        if transport.get_write_buffer_size():
            return False
        self._sent += len(chunk)
        self._last_bytes = chunk[-_LONGEST_END:]
        lane.write_now(chunk)
        return True

    async def send(self, chunk: bytes) -> None:
        """Send bytes; raise `ConnectionError` when the caller does not take them."""
        if not chunk:
            return
        self._sent += len(chunk)
        self._last_bytes = chunk[-_LONGEST_END:]
        if self._can_write_at_once(chunk):
            await self._response.write(chunk)
            return
        # In pieces where the transport copies unread bytes, which it does for chunks and for TLS.
        step = len(chunk) if self._is_uncopied() else _PIECE_BYTES
        for start in range(0, len(chunk), step):
            await self._write_watched(chunk[start : start + step])

    async def end(self, last: bytes = b"") -> None:
        """Send the last bytes, and end the answer."""
        if last:
            await self.send(last)
        self._ended = True
        await self._response.write_eof()

    async def comment(self) -> None:
        """Send a comment, unless it would split an event, or the caller has not yet read everything sent so far."""
        between = not self._last_bytes or self._last_bytes.endswith(EVENT_ENDS)
        if between and not self._ended and self._unsent_bytes() == 0:
            await self._response.write(COMMENT)

    def cut(self) -> None:
        """Abort the connection, so that a partial answer does not look like a whole one."""
        cut(self._http)

    def _can_write_at_once(self, chunk: bytes) -> bool:
        """Return whether `chunk` can be written without a timer: one for every token would cost more than the token."""
        return len(chunk) <= AT_ONCE_BYTES and self._unsent_bytes() == 0

    def _is_uncopied(self) -> bool:
        transport = self._http.transport
        plain = transport is not None and transport.get_extra_info("sslcontext") is None
        return plain and self._response.content_length is not None

    def _unsent_bytes(self) -> int:
        transport = self._http.transport
        return transport.get_write_buffer_size() if transport is not None else -1

    async def _write_watched(self, piece: bytes) -> None:
        """Send bytes and wait until the transport takes more; raise `ConnectionResetError` if the caller reads nothing.

        Reading a part of the unread bytes counts as progress.
        """
        sending = asyncio.ensure_future(self._response.write(piece))
        clock = asyncio.get_running_loop().time
        since, unread = clock(), -1
        try:
            while not (await asyncio.wait({sending}, timeout=self._patience / _CHECKS))[0]:
                before, unread = unread, self._unsent_bytes()
                if unread != before:
                    since = clock()
                elif clock() - since >= self._patience:
                    self.cut()
                    raise ConnectionResetError("the caller stopped reading")
            await sending
        finally:
            sending.cancel()


def cut(http: HttpRequest) -> None:
    """Abort the connection, so that a partial answer does not look like a whole one."""
    if http.transport is not None:
        http.transport.abort()


class KeepAlive:
    """Context manager that sends a comment whenever a caller was sent nothing for `seconds`; never if they are 0.

    The first comment begins the answer with status 200: a later failure can only be reported in an error event.
    """

    __slots__ = (
        "_comment_task",
        "_id",
        "_out",
        "_seconds",
        "_sent_before",
        "_timer_slot",
        "_timers",
    )

    def __init__(self, out: ResponseWriter, seconds: float, timers: Timers, id_: str) -> None:
        """`id_`, the request's id, is sent with the first comment if the answer has not begun by then."""
        self._out = out
        self._seconds = seconds
        self._timers = timers
        self._id = id_
        self._sent_before = 0
        self._timer_slot: int | None = None
        self._comment_task: asyncio.Task[None] | None = None

    def __enter__(self) -> "KeepAlive":
        if self._seconds:
            self._timer_slot = self._timers.start(self, self._seconds)
        return self

    def __exit__(self, *_: object) -> None:
        if self._timer_slot is not None:
            self._timers.stop(self, self._timer_slot)
        if self._comment_task is not None:
            self._comment_task.cancel()

    def fire(self) -> None:
        """Check whether anything was sent since the last check: resetting a timer for every chunk would cost more."""
        quiet, self._sent_before = self._out.sent == self._sent_before, self._out.sent
        if quiet:
            self._comment_task = asyncio.ensure_future(self._send_comment())
        self._timer_slot = self._timers.start(self, self._seconds)

    async def _send_comment(self) -> None:
        # The server itself informs the handler of a caller that has left.
        with suppress(ConnectionError):
            if not self._out.begun:
                headers = {"x-request-id": self._id, "content-type": "text/event-stream"}
                await self._out.begin(200, headers)
            await self._out.comment()


def headers_of(
    context: Serving, routed: Routed, account: Account, form: AnswerForm | None = None
) -> dict[str, str]:
    """Return the headers of an answer: the worker's public ones, and what the router did for it.

    `form` may be omitted where the face drops none of the caller's parameters. For the lane, `SteadyLines` writes the same.
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
    if not account.asker and answer.content_type not in _DATA:
        headers |= _SANDBOX
    if answer.headers or (form is not None and form.dropped):
        _add_dropped(headers, answer, account, form)
    if account.asker or account.ticket is not None:
        headers |= more_headers_of(context, routed, account)
    return headers


def more_headers_of(context: Serving, routed: Routed, account: Account) -> dict[str, str]:
    """Return the further headers of an answer: load reports for an asking node, when due, and the caller's quota."""
    more: dict[str, str] = {}
    asker, worker = account.asker, routed.candidate.worker
    if asker and worker:
        now = account.began + account.first_byte_seconds
        kind = account.kind
        report_times = context.report_times
        if report_times.is_due(asker, worker.api, LOAD, now):
            more[LOAD] = remote_load.format_load(context.loads.load_of(worker))
            learnt = context.router.service_time(worker, kind)
            pause = remote_load.SERVICE_TIME_INTERVAL
            if learnt and report_times.is_due(asker, worker.api, kind, now, pause):
                more[SERVICE_TIME] = service_time.format_service_time(learnt)
    if account.ticket is not None:
        more |= account.ticket.headers()
    if asker and routed.answer.verbatim:
        more[VERBATIM] = routed.answer.verbatim
    return more


def _add_dropped(
    headers: dict[str, str], answer: Answer, account: Account, form: AnswerForm | None
) -> None:
    heard_names = headers.get(HEARD, "") if account.asker else headers.pop(HEARD, "")
    dropped_names = form.dropped if form else ()
    dropped = [name for name in dropped_names if name not in heard_names.split(", ")]
    lost = [] if answer.verbatim else dropped
    # Parameters that the worker does not support come after those that the face does not.
    lost += _caller_names(headers.pop(DROPPED, ""), form.names if form else None)
    if lost:
        headers[DROPPED] = ", ".join(lost)


def _caller_names(text: str, names: Mapping[str, str] | None) -> list[str]:
    """Return the parameters that did not reach the worker, by the caller's names for them."""
    lost = [name for name in text.split(", ") if name]
    return lost if names is None else [names[name] for name in lost if name in names]
