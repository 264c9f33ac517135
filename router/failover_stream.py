"""Text stream that is read from several workers, of which each but the last died: performs what `router.failover` decides.

Looks like one answer to whoever reads it, and is left like one: with it the present worker's request ends.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, aclosing
from dataclasses import replace
from types import TracebackType

from router.attempt import Routed
from router.dialects import Answer
from router.errors import AnswerBroken
from router.failover import Continuing, Finish, State
from router.openai.sse import Event, EventTooLarge, Splitter
from router.openai.usage import Tokens, Usage
from router.requests import Request

Ask = Callable[[Request], AbstractAsyncContextManager[Routed]]


class Continued:
    """The answer to one request, taken up by others where its worker dies. Enter it as `Router.answer`.

    What it hands over is counted already: `spent` is told the tokens that each worker of this machine used.
    """

    def __init__(
        self,
        ask: Ask,
        request: Request,
        stream: Continuing,
        *,
        max_event_bytes: int,
        spent: Callable[[str, Usage], None],
    ) -> None:
        self._ask = ask
        self._request = request
        self._stream = stream
        self._max_event_bytes = max_event_bytes
        self._spent = spent
        self._part = AsyncExitStack()
        self._rest: AsyncGenerator[bytes, None] | None = None

    async def __aenter__(self) -> Routed:
        routed = await self._enter(self._request)
        if not routed.answer.streamed:
            return routed
        self._rest = self._all(routed)
        answer = replace(routed.answer, first=b"", rest=self._rest, hides_usage=False)
        return replace(routed, answer=answer, tally=None)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool | None:
        if self._rest is not None:
            await self._rest.aclose()
        return await self._part.__aexit__(kind, error, trace)

    async def _enter(self, request: Request) -> Routed:
        return await self._part.enter_async_context(self._ask(request))

    async def _all(self, routed: Routed) -> AsyncGenerator[bytes, None]:
        while True:
            try:
                async with aclosing(self._read(routed)) as part:
                    async for ready in part:
                        yield ready
            except AnswerBroken:
                step = self._stream.broke(routed.candidate.node)
                if step is None:
                    raise
            else:
                return
            await self._part.aclose()
            if isinstance(step, Finish):
                yield step.last
                return
            routed = await self._enter(step.request)
            if not routed.answer.streamed:
                raise AnswerBroken("the worker that was to go on does not stream")
            yield self._stream.seam(routed.candidate.node)

    async def _read(self, routed: Routed) -> AsyncGenerator[bytes, None]:
        """Read one worker's part to its end; raise `AnswerBroken` where that is too soon."""
        tokens = Tokens(hidden=routed.answer.hides_usage)
        splitter = Splitter(max_event_bytes=self._max_event_bytes)
        try:
            async for chunk in _chunks(routed.answer):
                if routed.tally and chunk is not routed.answer.first:
                    tokens.events += routed.tally.streamed(chunk)
                if ready := self._taken(splitter.feed(chunk), tokens):
                    yield ready
                # What came with it, before it, has been said.
                if self._stream.state is State.BROKEN:
                    raise AnswerBroken("the worker gave up in the middle of its answer")
            if ready := self._taken(splitter.finish(), tokens):
                yield ready
            if self._stream.state in (State.OPEN, State.BROKEN):
                raise AnswerBroken("the stream ended before its text did")
            if routed.tally:
                routed.answer.usage = tokens.usage()
        except EventTooLarge as error:
            raise AnswerBroken(str(error)) from error
        finally:
            if routed.tally:
                self._spent(routed.candidate.service.model, tokens.usage())

    def _taken(self, events: list[Event], tokens: Tokens) -> bytes:
        ready: list[bytes] = []
        for event in events:
            if tokens.passing(event.raw):
                ready.append(self._stream.take(event))
            if self._stream.state is State.BROKEN:
                break
        return b"".join(ready)


async def _chunks(answer: Answer) -> AsyncIterator[bytes]:
    yield answer.first
    async for chunk in answer.rest:
        yield chunk
