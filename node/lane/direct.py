"""Direct call: a request that is sent without a task, and answered without one if its answer comes soon and in one piece.

Everything else continues in a task, with what was received so far: a slow answer, a failure, a stream from its first byte on.
"""

import asyncio
from collections.abc import Awaitable
from typing import Protocol

from aiohttp import web

from node.auth.principal import ANYBODY, PRINCIPAL, Principal
from node.faces import respond
from node.faces.access_log import CALLER_LEFT, Account, conclude, start_account
from node.faces.errors import KNOWN
from node.faces.response_writer import AT_ONCE_BYTES, headers_of, more_headers_of
from node.lane.calls import CallHandler, LaneCall
from node.lane.request import HttpRequest, LaneRequest
from node.lane.response import SteadyLines
from router.attempt import Attempt
from router.http.heads import header_lines
from router.http.reply import Reply
from router.peers.headers import HOP
from router.requests import Request

PATIENCE_SECONDS = 0.5
"""Seconds after which a task takes over: it waits for the answer, and checks whether the worker is alive."""

_STEADY_LINES = SteadyLines()


class DirectCaller(Protocol):
    """The connection that a call arrived on."""

    def answer(self, status: int, lines: str, body: bytes) -> None:
        """Send an answer with these header lines."""

    def hand_over(self, handler: CallHandler) -> None:
        """Have a handler answer the call."""


def begin_call(call: LaneCall, http: LaneRequest, caller: DirectCaller) -> "DirectCall | None":
    """Read a call, and send it to a worker if that is possible at once; otherwise hand it over and return `None`."""
    context = call.context
    principal: Principal = http.get(PRINCIPAL, ANYBODY)
    try:
        request = call.read(http)
        if request is None:
            caller.hand_over(call.handler)
            return None
        ticket = respond.admit(context, principal, request)
    except KNOWN:
        # The handler finds the same error, and answers with it.
        caller.hand_over(call.handler)
        return None
    asker = http.headers.get(HOP, "") if call.to_peer else ""
    account = start_account(context, request.id, call.kind, asker)
    account.http, http.begun = http, True
    if principal.key is not None:
        account.key = principal.key.name
    if ticket is not None:
        account.ticket = ticket
    account.record_request(request)
    try:
        if context.tracer is not None:
            request = context.tracer.begin(request, account)
        attempt = context.router.start(request)
    except KNOWN:
        # The handler finds the same error, and answers with it.
        attempt = None
    except BaseException:
        conclude(context, account)
        raise
    if attempt is None or attempt.reply is None:
        caller.hand_over(Handler(call, request, account, attempt))
        return None
    return DirectCall(call, account, attempt, attempt.reply, caller)


def raising_handler(error: Exception) -> CallHandler:
    """Return a handler that raises an error which nothing foresaw."""

    async def fail(_: HttpRequest) -> web.StreamResponse:
        raise error

    return fail


class DirectCall:
    """One call that was sent to a worker, until its answer is passed on or handed over."""

    __slots__ = ("_account", "_attempt", "_call", "_caller", "_check_handle", "_reply", "_streams")

    def __init__(
        self,
        call: LaneCall,
        account: Account,
        attempt: Attempt,
        reply: Reply,
        caller: DirectCaller,
    ) -> None:
        self._call = call
        self._account = account
        self._attempt = attempt
        self._reply = reply
        self._caller = caller
        self._streams = attempt.request.stream
        self._check_handle: asyncio.Handle | None = None
        inline = reply.can_run_inline or self._streams
        reply.listener = self._check_reply if inline else self._on_news

    def hand_over(self) -> None:
        """Have a task continue the call."""
        self._stop_listening()
        attempt = self._attempt
        self._caller.hand_over(Handler(self._call, attempt.request, self._account, attempt))

    def cancel(self) -> None:
        """Cancel the call: its caller has left."""
        self._stop_listening()
        self._reply.close()
        self._attempt.end()
        self._account.status = CALLER_LEFT
        conclude(self._call.context, self._account)

    def _on_news(self) -> None:
        if self._check_handle is None:
            # In a later turn, so that an error raised here is not raised in the link that calls this.
            self._check_handle = asyncio.get_running_loop().call_soon(self._check_reply)

    def _check_reply(self) -> None:
        self._check_handle = None
        reply = self._reply
        if self._streams:
            if reply.done or reply.buffered or not 200 <= reply.status <= 299:
                self.hand_over()
        elif reply.complete:
            self._finish()
        elif reply.failed or reply.buffered > AT_ONCE_BYTES or not 200 <= reply.status <= 299:
            self.hand_over()

    def _finish(self) -> None:
        context, account, attempt = self._call.context, self._account, self._attempt
        answer = context.router.answer_if_complete(attempt)
        if answer is None or (size := len(answer.first)) > AT_ONCE_BYTES:
            self.hand_over()
            return
        # Break the reference cycle, or the request would wait for the garbage collector.
        self._reply.listener = None
        routed = attempt.record_answer(answer)
        respond.record_begin(context, routed, account)
        if answer.headers:
            lines = header_lines(headers_of(context, routed, account))
        else:
            steady = _STEADY_LINES
            steady.look_up(answer.content_type, account.node, account.route, account.attempts)
            lines = f"{steady.before}{account.id}{steady.behind}"
            if account.asker or account.ticket is not None:
                lines += header_lines(more_headers_of(context, routed, account))
        account.answer_bytes = size
        account.record_usage_in(answer.first)
        attempt.end()
        conclude(context, account)
        self._caller.answer(account.status, lines, answer.first)

    def _stop_listening(self) -> None:
        self._reply.listener = None
        if self._check_handle is not None:
            self._check_handle.cancel()


class Handler:
    """Handler of one request that the lane has begun: its account is open, and its first attempt may be in flight."""

    __slots__ = ("_account", "_call", "_first", "_request")

    def __init__(
        self, call: LaneCall, request: Request, account: Account, first: Attempt | None
    ) -> None:
        self._call = call
        self._request = request
        self._account = account
        self._first = first

    def __call__(self, http: HttpRequest) -> Awaitable[web.StreamResponse]:
        """Answer the request; see `respond.continue_call`."""
        call = self._call
        form = call.form_of(self._request)
        return respond.continue_call(call.context, http, form, self._account, self._first)
