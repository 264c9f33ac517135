"""Direct call: an answer in one piece of a worker of this machine, asked for and passed on without a task.

Whatever is out of the ordinary goes on as everything else does, with what has come so far: an answer that takes its time, a
failure, a stream, a worker to which no connection lies idle, another node.
"""

import asyncio
from functools import partial
from typing import Protocol

from aiohttp import web

from node.auth.principal import ANYBODY, PRINCIPAL, Principal
from node.faces import Serving, respond
from node.faces.access_log import CALLER_LEFT, Account, conclude, opened
from node.faces.encoder import SpokenAnswer
from node.faces.errors import KNOWN
from node.faces.response_writer import AT_ONCE_BYTES, headers_of
from node.lane.calls import CallHandler, LaneCall
from node.lane.request import HttpRequest, LaneRequest
from registry.values import changed
from router.attempt import Attempt
from router.http.reply import Reply
from router.peers.headers import HOP

PATIENCE_SECONDS = 1.0
"""Seconds after which a task waits for the answer, and looks whether its worker lives."""


class DirectCaller(Protocol):
    """The connection that a call came on."""

    def answer(self, status: int, headers: dict[str, str], body: bytes) -> None:
        """Send an answer."""

    def hand_over(self, handler: CallHandler) -> None:
        """Have a handler answer the call."""


def begin(call: LaneCall, http: LaneRequest, caller: DirectCaller) -> "CallHandler | DirectCall":
    """Take in a call, and send it to a worker where that can be done at once; return what goes on with it."""
    context = call.context
    principal: Principal
    try:
        spoken = call.read(http)
        if spoken is None:
            return call.handler
        principal = http.get(PRINCIPAL, ANYBODY)
        ticket = respond.admit(context, principal, spoken.request)
    except KNOWN:
        # The handler says so.
        return call.handler
    asker = http.headers.get(HOP, "") if call.to_peer else ""
    account = opened(context, spoken.request.id, call.kind, asker)
    account.key, account.ticket, account.http = principal.name, ticket, http
    account.asks(spoken.request)
    if context.tracer is not None:
        spoken = changed(spoken, request=context.tracer.begin(spoken.request, account))
    try:
        attempt = context.router.start(spoken.request)
    except KNOWN:
        # Whoever goes on finds the same, and says so.
        attempt = None
    if attempt is None or attempt.reply is None:
        return partial(_handle, context, spoken, account, attempt)
    return DirectCall(context, spoken, account, attempt, attempt.reply, caller)


class DirectCall:
    """One call that was sent to a worker."""

    __slots__ = ("_account", "_attempt", "_caller", "_context", "_reply", "_spoken", "_turn")

    def __init__(
        self,
        context: Serving,
        spoken: SpokenAnswer,
        account: Account,
        attempt: Attempt,
        reply: Reply,
        caller: DirectCaller,
    ) -> None:
        self._context = context
        self._spoken = spoken
        self._account = account
        self._attempt = attempt
        self._reply = reply
        self._caller = caller
        self._turn: asyncio.Handle | None = None
        reply.listener = self._news

    def hand_over(self) -> None:
        """Have a task go on with it."""
        self._forget()
        self._caller.hand_over(
            partial(_handle, self._context, self._spoken, self._account, self._attempt)
        )

    def cancel(self) -> None:
        """Nobody wants its answer any more."""
        self._forget()
        self._reply.close()
        self._attempt.end()
        self._account.status = CALLER_LEFT
        conclude(self._context, self._account)

    def _news(self) -> None:
        if self._reply.prompt:
            self._look()
        elif self._turn is None:
            # What is raised here shall not be raised in the link that calls.
            self._turn = asyncio.get_running_loop().call_soon(self._look)

    def _look(self) -> None:
        self._turn = None
        reply = self._reply
        if reply.complete:
            self._finish()
        elif reply.failed or reply.held > AT_ONCE_BYTES or not 200 <= reply.status <= 299:
            self.hand_over()

    def _finish(self) -> None:
        context, account, attempt = self._context, self._account, self._attempt
        answer = context.router.whole(attempt)
        if answer is None or len(answer.first) > AT_ONCE_BYTES:
            self.hand_over()
            return
        # Else each would refer to the other, and what was asked would wait for the garbage collector.
        self._reply.listener = None
        routed = attempt.answered(answer)
        respond.begin(context, routed, account)
        headers = headers_of(context, routed, account, self._spoken)
        account.sent = len(answer.first)
        account.hears_whole(answer.first)
        attempt.end()
        conclude(context, account)
        self._caller.answer(account.status, headers, answer.first)

    def _forget(self) -> None:
        self._reply.listener = None
        if self._turn is not None:
            self._turn.cancel()


async def _handle(
    context: Serving,
    spoken: SpokenAnswer,
    account: Account,
    first: Attempt | None,
    http: HttpRequest,
) -> web.StreamResponse:
    return await respond.go_on(context, http, spoken, account, first)
