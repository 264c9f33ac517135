"""Response to a caller from a worker's answer: byte for byte, flushed as it arrives, counted and logged once.

Nothing is sent before the worker's first byte arrives, so a failure until then has an ordinary error status. The exception is
a caller that waits long for a stream: it gets comments before. When the answer fails after its first byte, an event stream ends
with an error event and without `[DONE]`, and any other body breaks off visibly.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager

from aiohttp import web

from node.auth.principal import ANYBODY, PRINCIPAL, Principal
from node.auth.quotas import QuotaTicket
from node.faces import Serving
from node.faces.access_log import Account, OpenAccount, open_account
from node.faces.encoder import EVENT_STREAM, AnswerForm, Encoder, Homing
from node.faces.errors import KNOWN, Refusal, refusal
from node.faces.pump import Pump
from node.faces.request_ids import ID
from node.faces.response_writer import (
    AT_ONCE_BYTES,
    KeepAlive,
    ResponseWriter,
    headers_of,
)
from node.faces.stream_tap import StreamTap
from node.lane.request import HttpRequest
from registry.values import replace_fields
from router import failover
from router.answer import Answer, Flow
from router.attempt import Attempt, Routed
from router.errors import AnswerBroken, RouterError, WorkerFailed
from router.failover_stream import ContinuedAnswer
from router.openai.usage import TEXT
from router.peers.headers import ATTEMPTS, READY, USAGE, WAIT
from router.requests import Kind, Request
from router.services.ids import MAX_HOMED_BYTES

MAX_WHOLE_BYTES = 64 * 1024 * 1024
"""The longest answer in one piece that is encoded, in bytes; a longer one counts as a failure of its worker."""

# An answer up to this size is sent in one piece, with its length.
_WHOLE_BYTES = 1024 * 1024


def unchanged(refused: Refusal) -> Refusal:
    """Return a refusal as it is, in OpenAI's form."""
    return refused


async def answer(
    context: Serving,
    http: HttpRequest,
    kind: Kind,
    ask: Callable[[], Awaitable[AnswerForm]],
    *,
    asker: str = "",
    refuse: Callable[[Refusal], Refusal] = unchanged,
) -> web.StreamResponse:
    """Read a request with `ask`, have it answered, and pass the answer on.

    `asker` is the peer id of an asking node, which is told the load of the worker. `refuse` turns an error that occurs before the
    first byte into the form of the caller's protocol.
    """
    with open_account(context, http[ID], kind, asker) as account:
        account.http = http
        try:
            form = await ask()
            if context.tracer is not None:
                traced = context.tracer.begin(form.request, account)
                form = replace_fields(form, request=traced)
            principal = http.get(PRINCIPAL, ANYBODY)
            account.key = principal.name
            account.ticket = admit(context, principal, form.request)
            account.record_request(form.request)
            return await _pass_on(context, http, form, account)
        except KNOWN as error:
            return _refusal_response(error, account, refuse)


def admit(context: Serving, principal: Principal, request: Request) -> QuotaTicket | None:
    """Return the request's share of its caller's quota, `None` where there is no quota.

    Raise an `AuthError` unless the caller may use all the models that it names, and has quota left now.
    """
    if principal is ANYBODY:
        # Unidentified callers have no quota.
        return None
    if principal.key is not None:
        principal.check_models(request.model, *request.fallbacks, project=request.pin.project)
    return context.quotas.admit(principal, request)


async def continue_call(
    context: Serving,
    http: HttpRequest,
    form: AnswerForm,
    account: Account,
    first: Attempt | None,
) -> web.StreamResponse:
    """Have a request in OpenAI's form answered, and pass the answer on.

    Its `account` is open already, and its `first` attempt may be under way.
    """
    with OpenAccount(context, account):
        try:
            return await _pass_on(context, http, form, account, first)
        except KNOWN as error:
            return _refusal_response(error, account, unchanged)


async def _pass_on(
    context: Serving,
    http: HttpRequest,
    form: AnswerForm,
    account: Account,
    first: Attempt | None = None,
) -> web.StreamResponse:
    settings = context.settings.router
    request, encoder = form.request, form.encoder
    account.keeps_usage = bool(account.asker) and USAGE in http.headers
    out = ResponseWriter(http, patience=settings.stall_timeout)
    # An asking node sends keep-alive comments to its own callers.
    sends_comments = request.stream and not account.asker and account.kind in TEXT
    with KeepAlive(out, settings.keep_alive if sends_comments else 0, context.timers, account.id):
        try:
            async with ask_router(context, request, account, first) as routed:
                record_begin(context, routed, account)
                if request.fallbacks or request.target:
                    account.model = routed.candidate.service.model
                headers = headers_of(context, routed, account, form)
                complete_body = await _pass_on_answer(context, routed, out, headers, account, form)
            if complete_body is not None:
                return await _whole_response(out, complete_body, headers, account)
        except RouterError as error:
            if not out.begun:
                raise
            account.record_failure(error)
            await _break_off(out, refusal(error), account, encoder)
        except asyncio.CancelledError as cancelled:
            # If the caller is still connected, it is this process that ends.
            if out.begun and http.transport is not None:
                ending = AnswerBroken("the other node has stopped")
                account.ended = True
                await _break_off(out, refusal(ending), account, encoder)
            raise cancelled  # noqa: TRY201 (as mypyc needs it behind an `await`)
        finally:
            account.answer_bytes = out.sent
    return out.response


def record_begin(context: Serving, routed: Routed, account: Account) -> None:
    """Record that an answer begins, and which candidate gives it."""
    account.first_byte_seconds = context.now() - account.began
    context.metrics.first_bytes[account.kind].append(account.first_byte_seconds)
    account.record_answer(routed)


def ask_router(
    context: Serving, request: Request, account: Account, first: Attempt | None = None
) -> AbstractAsyncContextManager[Routed]:
    """Pass a request to the router, see `Router.answer`; entering the context waits for the first byte of the answer."""
    begun = context.router.answer(request, first)
    if not request.continues or not failover.is_wanted(request):
        return begun
    return ContinuedAnswer(
        context.router.answer,
        request,
        begun,
        max_event_bytes=context.settings.router.max_event_bytes,
        record_usage=account.record_part,
    )


async def _pass_on_answer(
    context: Serving,
    routed: Routed,
    out: ResponseWriter,
    headers: dict[str, str],
    account: Account,
    form: AnswerForm,
) -> bytes | None:
    """Pass on an answer as it arrives, or return it whole where it is short, so that its worker is free before it is sent."""
    answer = routed.answer
    streamed = answer.streamed
    if answer.verbatim and not streamed and form.framed:
        return await _pass_framed(answer, out, form.framed)
    if form.homed:
        return await _pass_service_answer(routed, out, headers, form.homed)
    if form.encoder is not None and not answer.verbatim:
        return await _pass_encoded(routed, out, headers, account, form.encoder)
    if not streamed:
        if out.begun:
            raise AnswerBroken("the worker did not stream, and its response took too long")
        complete_body = await read_whole(answer, _WHOLE_BYTES)
        if complete_body is not None:
            account.record_usage_in(complete_body)
            return complete_body
    if not out.begun:
        await out.begin(answer.status, headers, length=answer.length)
    if streamed:
        await _pass_stream(context, routed, out, account)
        return None
    await _pass_unread(answer, out)
    return None


async def _pass_unread(answer: Answer, out: ResponseWriter) -> None:
    await out.send(answer.first)
    async for chunk in answer.rest:
        await out.send(chunk)
    await out.end()


async def _pass_service_answer(
    routed: Routed, out: ResponseWriter, headers: dict[str, str], homed: Homing
) -> bytes | None:
    """Pass on a service's answer as it arrives, such as lines of a log; return it whole where it is JSON, or short."""
    answer = routed.answer
    is_json = answer.content_type.startswith("application/json")
    if is_json or answer.length is not None:
        complete_body = await read_whole(answer, MAX_HOMED_BYTES if is_json else _WHOLE_BYTES)
        if complete_body is not None:
            return homed(routed, complete_body) if is_json else complete_body
    await out.begin(answer.status, headers, length=answer.length)
    await _pass_unread(answer, out)
    return None


async def _pass_stream(
    context: Serving, routed: Routed, out: ResponseWriter, account: Account
) -> None:
    """Pass on a stream as it arrives, and end it as OpenAI's streams end."""
    answer, tap = routed.answer, StreamTap(routed, account)
    if answer.first:
        await out.send(tap.take_first(answer.first))
    if isinstance(answer.rest, Flow):
        await Pump(answer.rest, tap, out, context.pumps).run()
    async for chunk in answer.rest:
        ready = tap.take(chunk)
        # Not held twice while a slow caller reads.
        del chunk
        await out.send(ready)
    rest = tap.finish()
    if not account.asker and account.kind in TEXT and not answer.verbatim:
        rest += tap.missing_end
    await out.end(rest)


async def _pass_framed(
    answer: Answer, out: ResponseWriter, framed: Callable[[bytes], bytes]
) -> bytes | None:
    body = await read_all(answer)
    if not out.begun:
        return framed(body)
    await out.end(framed(body))
    return None


async def _pass_encoded(
    routed: Routed,
    out: ResponseWriter,
    headers: dict[str, str],
    account: Account,
    encoder: Encoder,
) -> bytes | None:
    """Encode an answer in its caller's protocol: return it where it came in one piece, else pass it on as it arrives."""
    answer = routed.answer
    if not answer.streamed:
        body = await read_all(answer)
        account.record_usage_in(body)
        headers["content-type"], encoded = encoder.encode_whole(body)
        headers |= encoder.headers
        if not out.begun:
            return encoded
        await out.end(encoded)
        return None
    if not encoder.streams:
        raise WorkerFailed("the worker streamed, although no stream was requested")
    tap = StreamTap(routed, account)
    first = encoder.encode_events(tap.take_first(answer.first))
    headers |= {**encoder.headers, "content-type": EVENT_STREAM}
    if not out.begun:
        await out.begin(answer.status, headers)
    await out.send(first)
    async for chunk in answer.rest:
        await out.send(encoder.encode_events(tap.take(chunk)))
    await out.end(encoder.encode_events(tap.finish()) + encoder.encode_end())
    return None


async def _whole_response(
    out: ResponseWriter, body: bytes, headers: Mapping[str, str], account: Account
) -> web.StreamResponse:
    if len(body) <= AT_ONCE_BYTES:
        out.count(len(body))
        return web.Response(status=account.status, headers=headers, body=body)
    await out.begin(account.status, headers, length=len(body))
    await out.end(body)
    return out.response


async def _break_off(
    out: ResponseWriter, refused: Refusal, account: Account, encoder: Encoder | None
) -> None:
    account.status = refused.status
    # An asking node tells its caller itself, in the caller's protocol.
    ending = (
        encoder.encode_failure(refused) if encoder else b"" if account.verbatim else refused.event()
    )
    if out.streamed and ending:
        await out.end(ending)
    else:
        # A proper end would make a partial answer look like a whole one.
        out.cut()


async def read_whole(answer: Answer, at_most: int) -> bytes | None:
    """Return an answer of up to `at_most` bytes, read to its end; `None` for a longer one, with what was read put back."""
    if (answer.length or 0) > at_most:
        return None
    pieces, size = [answer.first], len(answer.first)
    async for piece in answer.rest:
        pieces.append(piece)
        size += len(piece)
        if size > at_most:
            answer.first = b"".join(pieces)
            return None
    return b"".join(pieces)


async def read_all(answer: Answer) -> bytes:
    """Return an answer in one piece; raise `WorkerFailed` for one of more than `MAX_WHOLE_BYTES`."""
    body = await read_whole(answer, MAX_WHOLE_BYTES)
    if body is None:
        raise WorkerFailed(f"the answer has more than {MAX_WHOLE_BYTES:,} bytes")
    return body


def _refusal_response(
    error: Exception, account: Account, refuse: Callable[[Refusal], Refusal]
) -> web.Response:
    refused = refusal(error)
    account.record_refusal(error, refused.status)
    response = refuse(refused).response()
    account.answer_bytes = response.content_length or 0
    if isinstance(error, RouterError):
        response.headers[ATTEMPTS] = str(error.attempts)
        if account.asker and error.hopeful:
            response.headers[WAIT] = READY
    return response
