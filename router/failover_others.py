"""Parts of a text stream that other workers write after the first has died."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TYPE_CHECKING

from registry.values import replace_fields
from router import failover
from router.attempt import Routed
from router.errors import AnswerBroken, RouterError
from router.failover import ContinuedText, Finish, StreamState
from router.openai.sse import Event, EventTooLarge, Splitter
from router.openai.usage import StreamUsage

if TYPE_CHECKING:
    from router.failover_stream import ContinuedAnswer


class WorkerGaveUp(AnswerBroken):
    """A worker reported a failure by an event; `events` is that event and what came with it."""

    def __init__(self, events: bytes) -> None:
        super().__init__("the worker stopped in the middle of its answer")
        self.events = events


async def continue_stream(
    answer: "ContinuedAnswer", routed: Routed, broken: AnswerBroken
) -> AsyncGenerator[bytes, None]:
    """Have other workers continue, one after the other, where the first part broke off."""
    stream = _replay(answer)
    while True:
        step = stream.decide_continuation(routed.candidate.node) if stream else None
        if stream is None or step is None:
            yield _failure_events(broken)
            return
        answer.entered = False
        await answer.part.__aexit__(None, None, None)
        if isinstance(step, Finish):
            yield step.last
            return
        pin = replace_fields(step.request.pin, but=routed.candidate.key)
        part = answer.ask(replace_fields(step.request, pin=pin))
        try:
            routed = await part.__aenter__()
        except RouterError:
            yield _failure_events(broken)
            return
        answer.part, answer.entered = part, True
        if not routed.answer.streamed:
            raise AnswerBroken("the second worker does not stream")
        yield stream.seam_event(routed.candidate.node)
        try:
            async with aclosing(_read_later_part(answer, routed, stream)) as later:
                async for ready in later:
                    yield ready
        except AnswerBroken as error:
            broken = error
        else:
            return


def _replay(answer: "ContinuedAnswer") -> ContinuedText | None:
    """Parse what was sent, and return the stream that goes on from there; `None` if it cannot be continued."""
    sent = answer.recording.read_all()
    stream = None if sent is None else failover.continued_text(answer.request)
    if stream is not None and sent:
        for event in Splitter(max_event_bytes=len(sent)).feed(sent):
            stream.feed(event)
    return stream


async def _read_later_part(
    answer: "ContinuedAnswer", routed: Routed, stream: ContinuedText
) -> AsyncGenerator[bytes, None]:
    """Read one more worker's part to its end; raise `AnswerBroken` if that comes too soon."""
    tokens = StreamUsage(hidden=routed.answer.hides_usage)
    splitter = Splitter(max_event_bytes=answer.max_event_bytes)
    chunk = routed.answer.first
    tokens.events = routed.tally.count_first_bytes(chunk) if routed.tally else 0
    try:
        while True:
            if ready := _feed_events(stream, splitter.feed(chunk), tokens):
                yield ready
            # The events before the failure have been passed on.
            if stream.state is StreamState.BROKEN:
                raise AnswerBroken("the worker stopped in the middle of its answer")
            chunk = await anext(routed.answer.rest, b"")
            if not chunk:
                break
            if routed.tally:
                tokens.events += routed.tally.count_chunks([chunk])
        if ready := _feed_events(stream, splitter.finish(), tokens):
            yield ready
        if stream.state in (StreamState.OPEN, StreamState.BROKEN):
            raise AnswerBroken("the stream ended before its text was complete")
        if routed.tally:
            routed.answer.usage = tokens.usage()
    except EventTooLarge as error:
        raise AnswerBroken(str(error)) from error
    finally:
        answer.record_usage(routed, tokens.usage())


def _failure_events(broken: AnswerBroken) -> bytes:
    """Return a worker's own failure event, since no other worker continues; raise the error if it sent none."""
    if isinstance(broken, WorkerGaveUp):
        return broken.events
    raise broken


def _feed_events(stream: ContinuedText, events: list[Event], tokens: StreamUsage) -> bytes:
    ready: list[bytes] = []
    for event in events:
        if tokens.inspect(event.raw):
            ready.append(stream.feed(event))
        if stream.state is StreamState.BROKEN:
            break
    return b"".join(ready)
