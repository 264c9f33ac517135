"""How does an answer get from a worker to the caller? Byte for byte, flushed as it comes, counted and logged once.

Nothing is sent before the worker's first byte is there, so a failure until then is an ordinary error status. After
it, an event stream ends with an error event and without `[DONE]`, and any other body breaks off visibly.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from aiohttp import hdrs, web

from node.faces import REQUEST_ID, Serving
from node.faces.errors import KNOWN, refusal
from router.dialects import Answer
from router.errors import RouterError
from router.reports import HEADER, written
from router.requests import Kind, Request
from router.trying import Routed
from router.usage import TEXT, Tokens, Usage

log = logging.getLogger("modelvine.requests")

CALLER_LEFT = 499
"""The status that is logged when nobody was left to see one; nginx coined it."""

# An answer up to this size is sent in one piece, with its length; an event up to this size is held until it is whole.
_WHOLE_BYTES = 1024 * 1024
# Half of what asyncio buffers before it makes a writer wait.
_AT_ONCE_BYTES = 32 * 1024
_EVENT_ENDS = (b"\n\n", b"\r\n\r\n")


@dataclass(slots=True)
class _Report:
    """What becomes of one request, for its log line and the metrics; never what was said in it."""

    id: str
    kind: Kind
    began: float
    model: str = "?"
    node: str = "-"
    route: str = "-"
    attempts: int = 0
    status: int = 500
    taken: int = 0
    sent: int = 0
    to_peer: bool = False
    served: str = ""
    """The name of the model whose tokens are ours to count: the worker is this machine's."""
    usage: Usage | None = None
    tokens: Tokens | None = None

    def spent(self) -> Usage | None:
        """Return the tokens that were used at a worker of this machine, as far as anything tells."""
        return self.tokens.usage() if self.tokens else self.usage


async def answer(
    context: Serving,
    http: web.Request,
    kind: Kind,
    ask: Callable[[], Awaitable[Request]],
    *,
    to_peer: bool = False,
) -> web.StreamResponse:
    """Take in a request with `ask`, have it answered, and pass the answer on; a peer is told how busy the worker is."""
    report = _Report(http[REQUEST_ID], kind, time.monotonic(), to_peer=to_peer)
    context.metrics.begun()
    try:
        request = await ask()
        report.model, report.taken = request.model, len(request.body)
        return await _pass_on(context, http, request, report)
    except KNOWN as error:
        return _refused(error, report)
    except (asyncio.CancelledError, ConnectionError):
        report.status = CALLER_LEFT
        raise
    finally:
        _conclude(context, report)


async def _pass_on(
    context: Serving, http: web.Request, request: Request, report: _Report
) -> web.StreamResponse:
    patience = context.settings.router.idle_timeout
    response = web.StreamResponse()
    streamed = False
    try:
        async with context.router.answer(request) as routed:
            context.metrics.answering(report.kind, time.monotonic() - report.began)
            headers = _headers(routed, report)
            if report.to_peer and routed.candidate.worker:
                headers[HEADER] = written(context.router.load_of(routed.candidate.worker))
            streamed = routed.answer.streamed
            if routed.candidate.worker:
                report.served, report.usage = routed.candidate.service.model, routed.answer.usage
            whole = None if streamed else await _whole(routed.answer)
            if whole is not None:
                report.sent = len(whole)
                return web.Response(status=report.status, headers=headers, body=whole)
            response = web.StreamResponse(status=report.status, headers=headers)
            await _copy(http, routed, response, report, patience)
    except RouterError as error:
        if not response.prepared:
            raise
        refused = refusal(error)
        report.status = refused.status
        if not streamed:
            # Ending it properly would make half an answer look like a whole one.
            _cut(http)
            return response
        await _end(http, response, refused.event(), patience)
    return response


async def _whole(answer: Answer) -> bytes | None:
    """Read a short answer to its end; `None` for one that is long, with what was read put back."""
    if (answer.length or 0) > _WHOLE_BYTES:
        return None
    pieces, size = [answer.first], len(answer.first)
    async for piece in answer.rest:
        pieces.append(piece)
        size += len(piece)
        if size > _WHOLE_BYTES:
            answer.first = b"".join(pieces)
            return None
    return b"".join(pieces)


async def _copy(
    http: web.Request,
    routed: Routed,
    response: web.StreamResponse,
    report: _Report,
    patience: float,
) -> None:
    answer, last = routed.answer, b""
    if not answer.streamed:
        response.content_length = answer.length
    await response.prepare(http)
    if answer.streamed:
        last = await _copy_events(http, routed, response, report, patience)
    else:
        report.sent += len(answer.first)
        await _send(http, response, answer.first, patience)
        async for chunk in answer.rest:
            report.sent += len(chunk)
            await _send(http, response, chunk, patience)
    await _end(http, response, last, patience)


async def _copy_events(
    http: web.Request,
    routed: Routed,
    response: web.StreamResponse,
    report: _Report,
    patience: float,
) -> bytes:
    """Pass on whole events, and return what is left at the end: an event without its blank line, or nothing."""
    answer, tally, held = routed.answer, routed.tally, WholeEvents()
    tokens = Tokens(hidden=answer.hides_usage)
    if tally and report.kind in TEXT:
        report.tokens = tokens
    ready = tokens.passing(held.take(answer.first))
    report.sent += len(ready)
    await _send(http, response, ready, patience)
    async for chunk in answer.rest:
        ready = held.take(chunk)
        if tally:
            tokens.events += tally.streamed(chunk)
            ready = tokens.passing(ready)
        report.sent += len(ready)
        await _send(http, response, ready, patience)
    return tokens.passing(held.rest)


@dataclass(slots=True)
class WholeEvents:
    """Holds back the beginning of an event until it is whole: half of one could not be followed by our error event."""

    rest: bytes = b""

    def take(self, chunk: bytes) -> bytes:
        """Take in the next bytes and return what is ready to be sent, nothing perhaps."""
        ready = self.rest + chunk if self.rest else chunk
        end = len(ready)
        if not ready.endswith(_EVENT_ENDS) and end < _WHOLE_BYTES:
            end = max(ready.rfind(mark) + len(mark) if mark in ready else 0 for mark in _EVENT_ENDS)
        self.rest = ready[end:]
        return ready[:end]


async def _send(
    http: web.Request, response: web.StreamResponse, chunk: bytes, patience: float
) -> None:
    if not chunk:
        return
    transport = http.transport
    # Nothing waits to be sent, and this will not make it wait: a timer for every token would cost more than the token.
    if transport and len(chunk) <= _AT_ONCE_BYTES and not transport.get_write_buffer_size():
        await response.write(chunk)
        return
    await _within(http, response.write(chunk), patience)


async def _end(
    http: web.Request, response: web.StreamResponse, last: bytes, patience: float
) -> None:
    await _send(http, response, last, patience)
    await _within(http, response.write_eof(), patience)


async def _within(http: web.Request, writing: Awaitable[None], patience: float) -> None:
    try:
        async with asyncio.timeout(patience):
            await writing
    except TimeoutError as error:
        _cut(http)
        raise ConnectionResetError("the caller stopped reading") from error


def _cut(http: web.Request) -> None:
    if http.transport is not None:
        http.transport.abort()


def _headers(routed: Routed, report: _Report) -> dict[str, str]:
    answer = routed.answer
    report.node, report.route = routed.candidate.node, answer.route.value
    report.attempts, report.status = routed.attempts, answer.status
    return {
        **answer.headers,
        hdrs.CONTENT_TYPE: answer.content_type,
        "x-request-id": report.id,
        "x-modelvine-node": report.node,
        "x-modelvine-route": report.route,
        "x-modelvine-attempts": str(report.attempts),
    }


def _refused(error: Exception, report: _Report) -> web.Response:
    refused = refusal(error)
    report.status = refused.status
    response = refused.response()
    report.sent = len(response.body) if isinstance(response.body, bytes) else 0
    if isinstance(error, RouterError):
        report.attempts = error.attempts
        response.headers["x-modelvine-attempts"] = str(error.attempts)
    return response


def _conclude(context: Serving, report: _Report) -> None:
    seconds = time.monotonic() - report.began
    context.metrics.ended(
        report.kind.value,
        status=report.status,
        seconds=seconds,
        taken=report.taken,
        sent=report.sent,
    )
    usage = report.spent()
    if usage is not None:
        context.metrics.spent(report.served, usage)
    log.info(
        "request=%s model=%s kind=%s node=%s route=%s attempts=%d status=%d seconds=%.3f tokens=%s",
        report.id,
        report.model,
        report.kind.value,
        report.node,
        report.route,
        report.attempts,
        report.status,
        seconds,
        _in_words(usage),
    )


def _in_words(usage: Usage | None) -> str:
    """Write `prompt+completion`, `~completion` where it is estimated, `-` where the worker is not ours or tells nothing."""
    if usage is None:
        return "-"
    if usage.estimated:
        return f"~{usage.completion}"
    return f"{usage.prompt}+{usage.completion}"
