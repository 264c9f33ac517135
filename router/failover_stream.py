"""Text stream that several workers write in turn if one dies: performs the decisions of `router.failover`.

Looks like one answer to whoever reads it, and is left like one: with it the present worker's request ends. Few workers die, so
the first part passes as it is and is only remembered; its events are looked at once it has broken off.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, aclosing
from types import TracebackType

from registry.values import changed
from router import failover
from router.answer import Answer
from router.attempt import Routed
from router.dialects import Flow, Listener
from router.errors import AnswerBroken, RouterError
from router.failover import Continuing, Finish, StreamState
from router.failover_recording import Recording
from router.http.cut_through import CutThrough
from router.openai.sse import EVENT_ENDS, Event, EventTooLarge, Splitter, WholeEvents
from router.openai.usage import Tokens, Usage
from router.requests import Request

Ask = Callable[[Request], AbstractAsyncContextManager[Routed]]
Others = Callable[[Routed, AnswerBroken], AsyncGenerator[bytes, None]]
"""Has others go on with a stream whose first part broke off."""

_ERROR = b'"error"'


class FirstPart:
    """The first worker's part of a stream: it passes as it is, and is remembered."""

    __slots__ = (
        "_chunks",
        "_concluded",
        "_held",
        "_over",
        "_ready",
        "_sent",
        "_spent",
        "_tally",
        "_tokens",
        "failure",
        "opened",
        "routed",
    )

    def __init__(
        self, routed: Routed, sent: Recording, spent: Callable[[Routed, Usage], None]
    ) -> None:
        self.routed = routed
        self._chunks = routed.answer.rest
        self.failure = b""
        """The event by which the worker said that it fails, and what came with it."""
        self.opened = False
        """Whether its first bytes were handed on."""
        self._sent = sent
        self._spent = spent
        self._concluded = self._over = False
        self._tally = routed.tally
        self._held = WholeEvents()
        self._tokens = Tokens(hidden=routed.answer.hides_usage)
        self._ready = self._passing(routed.answer.first)

    def opening(self) -> bytes:
        """Return what the first bytes say, once."""
        ready, self._ready, self.opened = self._ready, b"", True
        return ready

    def take(self, chunk: bytes) -> bytes:
        """Take in the next bytes, and return what is ready to be passed on, nothing perhaps."""
        self._counted(chunk)
        # Nearly all that comes is whole events which neither fail nor tell what was used.
        plain = not self._held.held and chunk.endswith(EVENT_ENDS) and _ERROR not in chunk
        if not plain or self._tokens.sign in chunk:
            return self._passing(chunk)
        self._sent.add(chunk)
        return chunk

    def inspect(self, cut_through: CutThrough) -> None:
        """Add what is wanted of what passes by."""
        cut_through.signs += (_ERROR, self._tokens.sign)
        if self._tally is not None:
            cut_through.each.append(self._counted)
        cut_through.seen.append(self._sent.add)
        cut_through.held.append(self._held)

    async def next(self) -> bytes:
        """Return what is next ready to be passed on, nothing at the end; raise `AnswerBroken` where that is too soon."""
        ready = b"" if self.opened else self.opening()
        if ready:
            return ready
        while not (self.failure or self._over):
            chunk = await anext(self._chunks, b"")
            self._over = not chunk
            if chunk:
                ready = self.take(chunk)
            elif self._held.held:
                ready = self._remembered(self._held.rest)
            if ready:
                return ready
        if self.failure:
            raise _GaveUp(self.failure)
        if failover.ended_too_soon(self._sent.last):
            raise AnswerBroken("the stream ended before its text was complete")
        if self._tally:
            self.routed.answer.usage = self._tokens.usage()
        self.conclude()
        return b""

    def conclude(self) -> None:
        """Count the tokens that the worker used, and leave its answer as it was, once."""
        if not self._concluded:
            self._concluded = True
            self.routed.answer.rest = self._chunks
            self._spent(self.routed, self._tokens.usage())

    def _counted(self, chunk: bytes) -> None:
        if self._tally is not None:
            self._tokens.events += self._tally.streamed(chunk)

    def _passing(self, chunk: bytes) -> bytes:
        whole = self._held.take(chunk)
        if _ERROR in whole:
            whole, self.failure = _until_failure(whole)
        return self._remembered(whole)

    def _remembered(self, events: bytes) -> bytes:
        ready = self._tokens.passing(events)
        if ready:
            self._sent.add(ready)
        return ready


class ContinuedRest(AsyncIterator[bytes]):
    """A stream of several parts: the first, and those that `others` write where it breaks off."""

    __slots__ = ("_others", "later", "part")

    def __init__(self, part: FirstPart, others: Others) -> None:
        self.part = part
        self._others = others
        self.later: AsyncGenerator[bytes, None] | None = None
        """What others write, once the first part has broken off."""

    async def __anext__(self) -> bytes:
        if self.later is None:
            try:
                ready = await self.part.next()
            except AnswerBroken as broken:
                self.part.conclude()
                self.later = self._others(self.part.routed, broken)
            else:
                if ready:
                    return ready
                raise StopAsyncIteration
        return await anext(self.later)


class ContinuedFlow(ContinuedRest, Flow):
    """The same where the first part needs nobody who waits."""

    __slots__ = ("_flow",)

    def __init__(self, part: FirstPart, flow: Flow, others: Others) -> None:
        super().__init__(part, others)
        self._flow = flow

    def here(self) -> tuple[bytes, bool]:
        """Return what has come of the first part, and whether that is over; wait for more. Raise `AnswerBroken`."""
        part = self.part
        ready = b"" if part.opened else part.opening()
        if part.failure:
            return ready, True
        chunk, over = self._flow.here()
        if chunk:
            ready = ready + part.take(chunk) if ready else part.take(chunk)
        return ready, over or bool(part.failure)

    @property
    def prompt(self) -> bool:
        """Whether a listener may do all its work at once."""
        return self._flow.prompt

    def inspect(self, cut_through: CutThrough) -> None:
        """Add what is wanted of what passes by."""
        self.part.inspect(cut_through)
        self._flow.inspect(cut_through)

    def listen(self, listener: Listener | None, cut_through: CutThrough | None = None) -> None:
        """Have news told, or no more. What `cut_through` takes is no news."""
        self._flow.listen(listener, cut_through)


class Continued:
    """The answer to one request, taken up by others where its worker dies. Enter it as `Router.answer`.

    What it hands over is counted already: `spent` is told the tokens of each part.
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
        self._sent = Recording()
        self._rest: ContinuedRest | None = None

    async def __aenter__(self) -> Routed:
        routed = await self._part.__aenter__()
        self._entered = True
        # What two workers wrote can be put together in OpenAI's words only.
        if not routed.answer.streamed or routed.answer.verbatim:
            return routed
        answer, flow = routed.answer, routed.answer.rest
        first = FirstPart(routed, self._sent, self._spent)
        if isinstance(flow, Flow):
            self._rest = ContinuedFlow(first, flow, self._go_on)
        else:
            self._rest = ContinuedRest(first, self._go_on)
        # Until the first part is concluded.
        answer.first, answer.rest, answer.hides_usage = b"", self._rest, False
        return Routed(answer, routed.candidate, routed.attempts, None, routed.others)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool | None:
        # It refers to us: together they would stay until the garbage collector comes.
        rest, self._rest = self._rest, None
        if rest is not None:
            if rest.later is not None:
                await rest.later.aclose()
            rest.part.conclude()
        return await self._part.__aexit__(kind, error, trace) if self._entered else None

    async def _go_on(self, routed: Routed, broken: AnswerBroken) -> AsyncGenerator[bytes, None]:
        """Have others go on, one after the other, where the first part broke off."""
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
        """Look at what was sent, and return the stream that goes on from there; `None` where it cannot be continued."""
        sent = self._sent.whole()
        stream = None if sent is None else failover.of(self._request)
        if stream is not None and sent:
            for event in Splitter(max_event_bytes=len(sent)).feed(sent):
                stream.take(event)
        return stream

    async def _later(self, routed: Routed, stream: Continuing) -> AsyncGenerator[bytes, None]:
        """Read one more worker's part to its end; raise `AnswerBroken` where that is too soon."""
        tokens = Tokens(hidden=routed.answer.hides_usage)
        splitter = Splitter(max_event_bytes=self._max_event_bytes)
        try:
            async for chunk in _chunks(routed.answer):
                if routed.tally and chunk is not routed.answer.first:
                    tokens.events += routed.tally.streamed(chunk)
                if ready := _taken(stream, splitter.feed(chunk), tokens):
                    yield ready
                # What came with it, before it, has been said.
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


class _GaveUp(AnswerBroken):
    """A worker said by an event that it fails; `events` is that one and what came with it."""

    def __init__(self, events: bytes) -> None:
        super().__init__("the worker stopped in the middle of its answer")
        self.events = events


def _last_words(broken: AnswerBroken) -> bytes:
    """Return a worker's own words about its failure, for nobody goes on; raise the error where it said nothing."""
    if isinstance(broken, _GaveUp):
        return broken.events
    raise broken


def _until_failure(events: bytes) -> tuple[bytes, bytes]:
    """Return what comes before the event by which a worker says that it fails, and the rest, nothing where none says so."""
    before = 0
    for event in Splitter(max_event_bytes=len(events)).feed(events):
        if failover.gives_up(event):
            return events[:before], events[before:]
        before += len(event.raw)
    return events, b""


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
