"""Text stream that several workers write in turn if one dies: performs the decisions of `router.failover`.

It is read and exited like a single answer: exiting it ends the present worker's request. Few workers die, so the first part
passes unchanged and is only recorded; its events are parsed once it has broken off.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, aclosing
from types import TracebackType

from registry.values import changed
from router import failover
from router.answer import Answer
from router.attempt import Routed
from router.errors import AnswerBroken, RouterError
from router.failover import Continuing, Finish, StreamState
from router.failover_part import (
    RECORDED_SIGNS,
    ContinuedFlow,
    ContinuedRest,
    FirstPart,
    GaveUp,
)
from router.failover_recording import Recording
from router.flow import Flow
from router.openai.sse import Event, EventTooLarge, Splitter
from router.openai.usage import Tokens, Usage
from router.requests import Request

Ask = Callable[[Request], AbstractAsyncContextManager[Routed]]


class Continued:
    """The answer to one request, continued by other workers if its worker dies. Enter it as `Router.answer`.

    What it yields is counted already: `spent` is called with the usage of each part.
    """

    def __init__(
        self,
        ask: Ask,
        request: Request,
        first: AbstractAsyncContextManager[Routed],
        *,
        max_event_bytes: int,
        spent: Callable[[Routed, Usage], None],
    ) -> None:
        self._ask = ask
        self._part = first
        """The present part, while it is `_entered`."""
        self._entered = False
        self._request = request
        self._max_event_bytes = max_event_bytes
        self._spent = spent
        self._sent = Recording(RECORDED_SIGNS)
        self._rest: ContinuedRest | None = None

    async def __aenter__(self) -> Routed:
        routed = await self._part.__aenter__()
        self._entered = True
        # The texts of two workers can be joined in OpenAI's format only.
        if not routed.answer.streamed or routed.answer.verbatim:
            return routed
        answer, flow = routed.answer, routed.answer.rest
        first = FirstPart(routed, self._sent, self._spent)
        rest = self._rest = ContinuedRest(first, self._go_on)
        answer.rest = ContinuedFlow(rest, flow) if isinstance(flow, Flow) else rest
        # These hold until the first part is concluded.
        answer.first, answer.hides_usage = b"", False
        return Routed(answer, routed.candidate, routed.attempts, None, routed.others)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool | None:
        # It refers back to this object: the cycle would stay until the garbage collector runs.
        rest, self._rest = self._rest, None
        if rest is not None:
            if rest.later is not None:
                await rest.later.aclose()
            rest.part.conclude()
        return await self._part.__aexit__(kind, error, trace) if self._entered else None

    async def _go_on(self, routed: Routed, broken: AnswerBroken) -> AsyncGenerator[bytes, None]:
        """Have other workers continue, one after the other, where the first part broke off."""
        stream = self._replayed()
        while True:
            step = stream.broke(routed.candidate.node) if stream else None
            if stream is None or step is None:
                yield _last_words(broken)
                return
            self._entered = False
            await self._part.__aexit__(None, None, None)
            if isinstance(step, Finish):
                yield step.last
                return
            pin = changed(step.request.pin, but=routed.candidate.key)
            part = self._ask(changed(step.request, pin=pin))
            try:
                routed = await part.__aenter__()
            except RouterError:
                yield _last_words(broken)
                return
            self._part, self._entered = part, True
            if not routed.answer.streamed:
                raise AnswerBroken("the second worker does not stream")
            yield stream.seam(routed.candidate.node)
            try:
                async with aclosing(self._later(routed, stream)) as later:
                    async for ready in later:
                        yield ready
            except AnswerBroken as error:
                broken = error
            else:
                return

    def _replayed(self) -> Continuing | None:
        """Parse what was sent, and return the stream that goes on from there; `None` if it cannot be continued."""
        sent = self._sent.whole()
        stream = None if sent is None else failover.of(self._request)
        if stream is not None and sent:
            for event in Splitter(max_event_bytes=len(sent)).feed(sent):
                stream.take(event)
        return stream

    async def _later(self, routed: Routed, stream: Continuing) -> AsyncGenerator[bytes, None]:
        """Read one more worker's part to its end; raise `AnswerBroken` if that comes too soon."""
        tokens = Tokens(hidden=routed.answer.hides_usage)
        splitter = Splitter(max_event_bytes=self._max_event_bytes)
        try:
            async for chunk in _chunks(routed.answer):
                if routed.tally and chunk is not routed.answer.first:
                    tokens.events += routed.tally.streamed([chunk])
                if ready := _taken(stream, splitter.feed(chunk), tokens):
                    yield ready
                # The events before the failure have been passed on.
                if stream.state is StreamState.BROKEN:
                    raise AnswerBroken("the worker stopped in the middle of its answer")
            if ready := _taken(stream, splitter.finish(), tokens):
                yield ready
            if stream.state in (StreamState.OPEN, StreamState.BROKEN):
                raise AnswerBroken("the stream ended before its text was complete")
            if routed.tally:
                routed.answer.usage = tokens.usage()
        except EventTooLarge as error:
            raise AnswerBroken(str(error)) from error
        finally:
            self._spent(routed, tokens.usage())


def _last_words(broken: AnswerBroken) -> bytes:
    """Return a worker's own failure event, since no other worker continues; raise the error if it sent none."""
    if isinstance(broken, GaveUp):
        return broken.events
    raise broken


def _taken(stream: Continuing, events: list[Event], tokens: Tokens) -> bytes:
    ready: list[bytes] = []
    for event in events:
        if tokens.passing(event.raw):
            ready.append(stream.take(event))
        if stream.state is StreamState.BROKEN:
            break
    return b"".join(ready)


async def _chunks(answer: Answer) -> AsyncIterator[bytes]:
    yield answer.first
    async for chunk in answer.rest:
        yield chunk
