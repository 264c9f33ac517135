"""How does an answer get from a worker to the caller? Byte for byte, flushed as it comes, counted and logged once.

Nothing is sent before the worker's first byte is there, so a failure until then is an ordinary error status; only who waits
long for a stream hears comments before. After it, an event stream ends with an error event and without `[DONE]`, and any
other body breaks off visibly.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field

from node import web
from node.faces import Serving
from node.faces.errors import KNOWN, Refusal, refusal
from node.faces.outgoing import AT_ONCE_BYTES, EVENT_ENDS, KeepAlive, Outgoing
from router import continuing
from router.dialects import Answer
from router.errors import AnswerBroken, RouterError
from router.reports import HEADER, written
from router.requests import Kind, Request
from router.seams import Continued
from router.trying import Routed
from router.usage import TEXT, Tokens, Usage

log = logging.getLogger("modelvine.requests")

CALLER_LEFT = 499
"""The status that is logged when nobody was left to see one; nginx coined it."""

# An answer up to this size is sent in one piece, with its length; an event up to this size is held until it is whole.
_WHOLE_BYTES = 1024 * 1024
_LONGEST_END = 4


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
    parts: list[tuple[str, Usage]] = field(default_factory=list)
    """The same of the parts of a stream that several workers wrote."""

    def spent(self) -> list[tuple[str, Usage]]:
        """Return the tokens that workers of this machine used, by model, as far as anything tells."""
        usage = self.tokens.usage() if self.tokens else self.usage
        return [*self.parts, (self.served, usage)] if usage else self.parts


async def answer(
    context: Serving,
    http: web.Request,
    kind: Kind,
    ask: Callable[[], Awaitable[Request]],
    *,
    to_peer: bool = False,
) -> web.Answer:
    """Take in a request with `ask`, have it answered, and pass the answer on; a peer is told how busy the worker is."""
    report = _Report(http.id, kind, time.monotonic(), to_peer=to_peer)
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
) -> web.Answer:
    settings = context.settings.router
    out = Outgoing(http, patience=settings.stall_timeout)
    # Another node tells its own callers that it waits.
    audible = request.stream and report.kind in TEXT and not report.to_peer
    with KeepAlive(out, settings.keep_alive if audible else 0, {"x-request-id": report.id}):
        try:
            async with _asked(context, request, report) as routed:
                context.metrics.answering(str(report.kind), time.monotonic() - report.began)
                if request.fallbacks:
                    report.model = routed.candidate.service.model
                headers = _headers(context, routed, report)
                whole = await _passed_on(routed, out, headers, report)
            if whole is not None:
                return await _at_once(out, whole, headers, report)
        except RouterError as error:
            if not out.begun:
                raise
            await _break_off(out, refusal(error), report)
        finally:
            report.sent = out.sent
    return out.response


def _asked(
    context: Serving, request: Request, report: _Report
) -> AbstractAsyncContextManager[Routed]:
    stream = continuing.of(request) if request.continues else None
    if stream is None:
        return context.router.answer(request)
    return Continued(
        context.router.answer,
        request,
        stream,
        max_event_bytes=context.settings.router.max_event_bytes,
        spent=lambda model, usage: report.parts.append((model, usage)),
    )


async def _passed_on(
    routed: Routed, out: Outgoing, headers: Mapping[str, str], report: _Report
) -> bytes | None:
    """Pass on an answer as it comes, or return it where it is short: then its worker need not wait for its reader."""
    answer = routed.answer
    if routed.candidate.worker:
        report.served, report.usage = routed.candidate.service.model, answer.usage
    if not answer.streamed:
        if out.begun:
            raise AnswerBroken("the worker does not stream, and the wait for it was long")
        whole = await _whole(answer)
        if whole is not None:
            return whole
    if not out.begun:
        out.begin(answer.status, headers, length=answer.length)
    if answer.streamed:
        await out.end(await _copy_events(routed, out, report))
        return None
    await out.send(answer.first)
    async for chunk in answer.rest:
        await out.send(chunk)
    await out.end()
    return None


async def _at_once(
    out: Outgoing, whole: bytes, headers: Mapping[str, str], report: _Report
) -> web.Answer:
    if len(whole) <= AT_ONCE_BYTES:
        out.sent = len(whole)
        return web.Response(status=report.status, headers=headers, body=whole)
    out.begin(report.status, headers, length=len(whole))
    await out.end(whole)
    return out.response


async def _break_off(out: Outgoing, refused: Refusal, report: _Report) -> None:
    report.status = refused.status
    if out.streamed:
        await out.end(refused.event())
    else:
        # Ending it properly would make half an answer look like a whole one.
        out.cut()


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


async def _copy_events(routed: Routed, out: Outgoing, report: _Report) -> bytes:
    """Pass on whole events, and return what is left at the end: an event without its blank line, or nothing."""
    answer, tally, held = routed.answer, routed.tally, WholeEvents()
    tokens = Tokens(hidden=answer.hides_usage)
    if tally and report.kind in TEXT:
        report.tokens = tokens
    await out.send(tokens.passing(held.take(answer.first)))
    async for chunk in answer.rest:
        ready = held.take(chunk)
        if tally:
            tokens.events += tally.streamed(chunk)
            ready = tokens.passing(ready)
        # While a slow caller reads, nobody holds it twice.
        del chunk
        await out.send(ready)
    return tokens.passing(held.rest)


class WholeEvents:
    """Holds back the beginning of an event until it is whole: half of one could not be followed by our error event."""

    __slots__ = ("_held",)

    def __init__(self) -> None:
        # It grows in place: joined anew for every chunk, an event of small chunks would be copied again and again.
        self._held = bytearray()

    @property
    def rest(self) -> bytes:
        """What is held back."""
        return bytes(self._held)

    def take(self, chunk: bytes) -> bytes:
        """Take in the next bytes and return what is ready to be sent, nothing perhaps."""
        if not self._held and chunk.endswith(EVENT_ENDS):
            return chunk
        # What is held has no end in it, but may have the beginning of one.
        before = bytes(self._held[-_LONGEST_END:])
        looked = before + chunk
        end = max(looked.rfind(mark) + len(mark) if mark in looked else 0 for mark in EVENT_ENDS)
        if end == 0 and len(self._held) + len(chunk) < _WHOLE_BYTES:
            self._held += chunk
            return b""
        cut = end - len(before) if end else len(chunk)
        ready = b"".join((self._held, chunk[:cut]))
        # A new one, for what was once long keeps its room.
        self._held = bytearray(chunk[cut:])
        return ready


def _headers(context: Serving, routed: Routed, report: _Report) -> dict[str, str]:
    answer, worker = routed.answer, routed.candidate.worker
    report.node, report.route = routed.candidate.node, str(answer.route)
    report.attempts, report.status = routed.attempts, answer.status
    headers = {
        **answer.headers,
        "content-type": answer.content_type,
        "x-request-id": report.id,
        "x-modelvine-node": report.node,
        "x-modelvine-route": report.route,
        "x-modelvine-attempts": str(report.attempts),
    }
    if report.to_peer and worker:
        headers[HEADER] = written(context.load_of(worker))
    return headers


def _refused(error: Exception, report: _Report) -> web.Response:
    refused = refusal(error)
    report.status = refused.status
    response = refused.response()
    report.sent = len(response.body)
    if isinstance(error, RouterError):
        report.attempts = error.attempts
        response.headers["x-modelvine-attempts"] = str(error.attempts)
    return response


def _conclude(context: Serving, report: _Report) -> None:
    seconds = time.monotonic() - report.began
    context.metrics.ended(
        str(report.kind),
        status=report.status,
        seconds=seconds,
        taken=report.taken,
        sent=report.sent,
    )
    spent = report.spent()
    for model, usage in spent:
        context.metrics.spent(model, usage)
    log.info(
        "request=%s model=%s kind=%s node=%s route=%s attempts=%d status=%d seconds=%.3f tokens=%s",
        report.id,
        report.model,
        report.kind,
        report.node,
        report.route,
        report.attempts,
        report.status,
        seconds,
        _in_words([usage for _, usage in spent]),
    )


def _in_words(spent: list[Usage]) -> str:
    """Write `prompt+completion`, `~` before it where part is estimated, `-` where the worker is not ours or tells nothing."""
    if not spent:
        return "-"
    first, *others = spent
    total = sum(others, start=first)
    return f"{'~' if total.estimated else ''}{total.prompt}+{total.completion}"
