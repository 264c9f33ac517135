"""Call of a model for faces that do not answer over HTTP: returns events or the whole body, and writes the access log."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from node.auth.principal import Principal
from node.faces import Serving
from node.faces.access_log import Account, open_account
from node.faces.respond import admit, ask_router, read_all, record_begin
from node.faces.stream_tap import StreamTap
from router.attempt import Routed
from router.errors import AnswerBroken, WorkerFailed
from router.openai import text_parser
from router.openai.sse import EventTooLarge, Splitter
from router.openai.text_parser import TextEvent
from router.openai.usage import Usage
from router.requests import Request
from router.rpc.messages import read_event


class ModelAnswer:
    """An answer that has begun. Read it once, with one of `messages`, `events` and `body`."""

    def __init__(self, routed: Routed, account: Account, *, max_event_bytes: int) -> None:
        self.routed = routed
        self._account = account
        self._max_event_bytes = max_event_bytes

    @property
    def verbatim(self) -> str:
        """The protocol of the answer, if it is that of the request; empty for OpenAI's form, which `events` parses."""
        return self.routed.answer.verbatim

    async def messages(self) -> AsyncIterator[bytes | Usage]:
        """Yield the messages of a stream in the request's protocol as they arrive, then its usage; raise a `RouterError`."""
        answer, tap = self.routed.answer, StreamTap(self.routed, self._account)
        splitter = Splitter(max_event_bytes=self._max_event_bytes)
        if not answer.streamed:
            raise WorkerFailed("the worker did not stream, although a stream was requested")
        try:
            for event in splitter.feed(tap.take_first(answer.first)):
                yield read_event(event.data)
            async for chunk in answer.rest:
                self._account.answer_bytes += len(chunk)
                for event in splitter.feed(tap.take(chunk)):
                    yield read_event(event.data)
        except EventTooLarge as error:
            raise WorkerFailed(str(error)) from error

    async def events(self) -> AsyncIterator[list[TextEvent]]:
        """Yield the parsed events of a chat or a completion as they arrive, streamed or not; raise a `RouterError`.

        A `TextFailure` is the last event of a stream in which the worker or its node reported a failure.
        """
        answer = self.routed.answer
        if not answer.streamed:
            yield text_parser.parse_answer(self._account.kind, await self.body())
            return
        tap = StreamTap(self.routed, self._account)
        ear = text_parser.TextStreamParser(max_event_bytes=self._max_event_bytes)
        if events := ear.feed(tap.take_first(answer.first)):
            yield events
        async for chunk in answer.rest:
            self._account.answer_bytes += len(chunk)
            if events := ear.feed(tap.take(chunk)):
                yield events
        if events := [*ear.feed(tap.finish()), *ear.finish()]:
            yield events
        if not ear.may_end:
            raise AnswerBroken("the worker broke off")

    async def body(self) -> bytes:
        """Read an answer in one piece; raise a `RouterError`."""
        if self.routed.answer.streamed:
            raise WorkerFailed("the worker streamed, although no stream was requested")
        body = await read_all(self.routed.answer)
        self._account.answer_bytes = len(body)
        self._account.record_usage_in(body)
        return body


@asynccontextmanager
async def model_answer(
    context: Serving, principal: Principal, request: Request
) -> AsyncIterator[ModelAnswer]:
    """Have a request answered. Entering waits for the first byte; leaving early cancels the request at the worker.

    Raise an `AuthError` where the principal may not make this request, or a `RouterError`.
    """
    with open_account(context, request.id, request.kind) as account:
        account.key = principal.name
        account.ticket = admit(context, principal, request)
        account.model, account.request_bytes = request.model, len(request.body)
        if context.tracer is not None:
            request = context.tracer.begin(request, account)
        async with ask_router(context, request, account) as routed:
            record_begin(context, routed, account)
            limit = context.settings.router.max_event_bytes
            yield ModelAnswer(routed, account, max_event_bytes=limit)
