"""Text stream that several workers write in turn if one dies: performs the decisions of `router.failover`.

It is read and exited like a single answer: exiting it ends the present worker's request. Few workers die, so the first part
passes unchanged and is only recorded; its events are parsed once it has broken off.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from types import TracebackType

from router import failover
from router.answer import Flow, Listener
from router.attempt import Routed
from router.errors import AnswerBroken
from router.failover_others import WorkerGaveUp, continue_stream
from router.failover_recording import Recording
from router.http.cut_through import CutThrough
from router.openai.event_texts import contains
from router.openai.sse import Splitter, WholeEvents
from router.openai.usage import OPENAI, StreamUsage, Usage
from router.requests import Request

Others = Callable[[Routed, AnswerBroken], AsyncGenerator[bytes, None]]
"""Has other workers continue a stream whose first part broke off."""

_ERROR = b'"error"'
SIGNS = (_ERROR, OPENAI.sign)
"""Byte strings of events that are examined: failures and usage."""

RECORDED_SIGNS = (*SIGNS, b'_reason":"', b'_reason": "', b'_reason" ')
"""Byte strings of events that are not like those before, whatever their form: also those with which a text ends."""


class FirstPart:
    """The first worker's part of a stream: it passes as it is, and is remembered."""

    __slots__ = (
        "_events",
        "_has_ended",
        "_is_concluded",
        "_ready",
        "_record_usage",
        "_recording",
        "_rest",
        "_tally",
        "_tokens",
        "failure",
        "opened",
        "routed",
    )

    def __init__(
        self, routed: Routed, recording: Recording, record_usage: Callable[[Routed, Usage], None]
    ) -> None:
        self.routed = routed
        self._rest = routed.answer.rest
        self.failure = b""
        """The event by which the worker reported a failure, and what came with it."""
        self.opened = False
        """Whether its first bytes were passed on."""
        self._recording = recording
        self._record_usage = record_usage
        self._is_concluded = self._has_ended = False
        self._tally = routed.tally
        self._events = WholeEvents()
        self._tokens = StreamUsage(hidden=routed.answer.hides_usage)
        if self._tally is not None:
            self._tokens.events = self._tally.count_first_bytes(routed.answer.first)
        self._ready = self._examine(self._events.feed(routed.answer.first))

    def first_bytes(self) -> bytes:
        """Return what is ready of the first bytes, once."""
        ready, self._ready, self.opened = self._ready, b"", True
        return ready

    def feed(self, chunk: bytes) -> bytes:
        """Take in the next bytes, and return what is ready to be passed on, possibly nothing."""
        events = self._events.feed(chunk)
        # Nearly all events are like those before, without a failure or usage.
        taken = self._take_similar(events)
        if taken == len(events):
            return events
        rest = events[taken:]
        self._count_events([rest])
        return events[:taken] + self._examine(rest)

    def inspect(self, cut_through: CutThrough) -> None:
        """Register what this part needs to see of the events that `cut_through` passes."""
        cut_through.signs += SIGNS
        cut_through.take_known = self._take_known
        if self._tally is not None:
            cut_through.observers.append(self._count_events)
        cut_through.observers.append(self._record_pieces)
        cut_through.buffers.append(self._events)

    async def next(self) -> bytes:
        """Return what is next ready to be passed on, nothing at the end; raise `AnswerBroken` if it ends too soon."""
        ready = b"" if self.opened else self.first_bytes()
        if ready:
            return ready
        while not (self.failure or self._has_ended):
            chunk = await anext(self._rest, b"")
            self._has_ended = not chunk
            if chunk:
                ready = self.feed(chunk)
            elif self._events.held:
                ready = self._remember(self._events.rest)
            if ready:
                return ready
        if self.failure:
            raise WorkerGaveUp(self.failure)
        if failover.ended_too_soon(self._recording.newest):
            raise AnswerBroken("the stream ended before its text was complete")
        if self._tally:
            self.routed.answer.usage = self._tokens.usage()
        self.finish()
        return b""

    def finish(self) -> None:
        """Count the tokens that the worker used, and restore the `rest` of its answer, once."""
        if not self._is_concluded:
            self._is_concluded = True
            self.routed.answer.rest = self._rest
            self._record_usage(self.routed, self._tokens.usage())

    def _take_known(self, events: bytes) -> bool:
        """Take in whole events if all are like those before, and return whether they are."""
        return self._take_similar(events, all_or_none=True) > 0

    def _take_similar(self, events: bytes, *, all_or_none: bool = False) -> int:
        """Take in the events at the beginning that are like those before, and return their bytes."""
        count, size = self._recording.record_similar(events, all_or_none=all_or_none)
        if count and self._tally is not None:
            self._tally.events += count
            self._tokens.events += count
        return size

    def _record_pieces(self, pieces: list[bytes]) -> None:
        for piece in pieces:
            self._recording.record(piece)

    def _count_events(self, chunks: list[bytes]) -> None:
        if self._tally is not None:
            self._tokens.events += self._tally.count_chunks(chunks)

    def _examine(self, events: bytes) -> bytes:
        if contains(events, _ERROR):
            events, self.failure = _until_failure(events)
        return self._remember(events)

    def _remember(self, events: bytes) -> bytes:
        ready = self._tokens.inspect(events)
        if ready:
            self._recording.record(ready)
        return ready


class ContinuedRest(AsyncIterator[bytes]):
    """A stream of several parts: the first, and those that `others` yields after it breaks off."""

    __slots__ = ("_others", "later", "part")

    def __init__(self, part: FirstPart, others: Others) -> None:
        self.part = part
        self._others = others
        self.later: AsyncGenerator[bytes, None] | None = None
        """What other workers write, once the first part has broken off."""

    async def __anext__(self) -> bytes:
        if self.later is None:
            try:
                ready = await self.part.next()
            except AnswerBroken as broken:
                self.part.finish()
                self.later = self._others(self.part.routed, broken)
            else:
                if ready:
                    return ready
                raise StopAsyncIteration
        return await anext(self.later)


class ContinuedFlow(Flow):
    """The same for a first part that can be read without waiting."""

    __slots__ = ("_flow", "_rest")

    def __init__(self, rest: ContinuedRest, flow: Flow) -> None:
        self._rest = rest
        self._flow = flow

    async def __anext__(self) -> bytes:
        return await self._rest.__anext__()

    def read_nowait(self) -> tuple[bytes, bool]:
        """Return what has come of the first part, and whether the rest has to be awaited; raise `AnswerBroken`."""
        part = self._rest.part
        ready = b"" if part.opened else part.first_bytes()
        if part.failure:
            return ready, True
        chunk, ended = self._flow.read_nowait()
        if chunk:
            ready = ready + part.feed(chunk) if ready else part.feed(chunk)
        return ready, ended or bool(part.failure)

    @property
    def can_run_inline(self) -> bool:
        """Whether a listener may do all its work at once."""
        return self._flow.can_run_inline

    def inspect(self, cut_through: CutThrough) -> None:
        """Register what both parts need to see of the events that `cut_through` passes."""
        self._rest.part.inspect(cut_through)
        self._flow.inspect(cut_through)

    def listen(self, listener: Listener | None, cut_through: CutThrough | None = None) -> None:
        """Set the listener to wake for new bytes, or remove it. Bytes that `cut_through` takes do not wake it."""
        self._flow.listen(listener, cut_through)


def _until_failure(events: bytes) -> tuple[bytes, bytes]:
    """Split events before the one by which a worker reports a failure; the second part is empty if there is none."""
    before = 0
    for event in Splitter(max_event_bytes=len(events)).feed(events):
        if failover.is_failure_event(event):
            return events[:before], events[before:]
        before += len(event.raw)
    return events, b""


Ask = Callable[[Request], AbstractAsyncContextManager[Routed]]


class ContinuedAnswer:
    """The answer to one request, continued by other workers if its worker dies. Enter it as `Router.answer`.

    What it yields is counted already: `record_usage` is called with the usage of each part.
    """

    def __init__(
        self,
        ask: Ask,
        request: Request,
        first: AbstractAsyncContextManager[Routed],
        *,
        max_event_bytes: int,
        record_usage: Callable[[Routed, Usage], None],
    ) -> None:
        self.ask = ask
        self.part = first
        """The present part, while it is `entered`."""
        self.entered = False
        self.request = request
        self.max_event_bytes = max_event_bytes
        self.record_usage = record_usage
        self.recording = Recording(RECORDED_SIGNS)
        self._rest: ContinuedRest | None = None

    async def __aenter__(self) -> Routed:
        routed = await self.part.__aenter__()
        self.entered = True
        # The texts of two workers can be joined in OpenAI's format only.
        if not routed.answer.streamed or routed.answer.verbatim:
            return routed
        answer, flow = routed.answer, routed.answer.rest
        first = FirstPart(routed, self.recording, self.record_usage)
        rest = self._rest = ContinuedRest(first, partial(continue_stream, self))
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
            rest.part.finish()
        return await self.part.__aexit__(kind, error, trace) if self.entered else None
