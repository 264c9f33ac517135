"""Stream of a worker, translated into OpenAI's form as it comes, and the error that a status means if there is no stream.

Until the stream has said something, every failure is a failed attempt; after that, anything but a proper end breaks the answer.
"""

from collections.abc import AsyncGenerator
from typing import Protocol

from router.answer import Answer, Route
from router.errors import (
    AnswerBroken,
    WorkerError,
    WorkerFailed,
    WorkerIncomplete,
    WorkerRejected,
)
from router.http.exchange import REFUSALS, Exchange
from router.http.refusals import MAX_REFUSAL_BYTES, busy, objection, refusal
from router.openai.sse import SILENT_BYTES, EventTooLarge, Splitter
from router.openai.text_writer import DONE, Event, TextForm, ToolCall
from router.state import readiness

NOT_ACCEPTABLE = 406
INTERNAL_ERROR = 500
_INCOMPLETE = b'"incomplete_generation"'


class NoSuchPath(WorkerFailed):
    """The worker serves nothing at the requested path."""


class TranslatedStream(Protocol):
    """Reader of a worker's stream, event by event."""

    @property
    def ended(self) -> bool:
        """Whether the text is complete, so that nothing more is worth reading."""

    def feed(self, data: bytes) -> list[Event]:
        """Take in one event of the worker; raise a `WorkerError` for a failure and for invalid content."""

    def finish(self) -> list[Event]:
        """Take in the end of the stream; return no events if its text is incomplete."""


async def begin_answer(
    exchange: Exchange, reader: TranslatedStream, form: TextForm, max_event_bytes: int
) -> Answer:
    """Make an answer of a stream once it has said something; raise a `WorkerError` if that is a failure."""
    splitter = Splitter(max_event_bytes=max_event_bytes)
    events, _ = await read_first_events(exchange, splitter)
    form = form.with_fingerprint(events[0])
    writer = _StreamWriter(reader, form)
    first = form.opening() + writer.write(events[:1])
    answer = exchange.answer(first, Route.LOCAL)
    answer.rest = _rest(exchange, writer, splitter, events[1:])
    return answer


async def read_first_events(exchange: Exchange, splitter: Splitter) -> tuple[list[bytes], bytes]:
    """Read until a stream says something; return the first events' data and all bytes, or raise `WorkerFailed` if it ends."""
    raw = bytearray()
    events: list[bytes] = []
    try:
        while not events and (chunk := await exchange.read_some()):
            raw += chunk
            events = [event.data for event in splitter.feed(chunk) if event.data]
            if len(raw) > SILENT_BYTES and not events:
                raise WorkerFailed(f"the stream had no event in {SILENT_BYTES:,} bytes")
    except EventTooLarge as error:
        raise WorkerFailed(str(error)) from error
    events = events or [event.data for event in splitter.finish() if event.data]
    if not events:
        raise WorkerFailed("the stream ended before its first event")
    return events, bytes(raw)


async def _rest(
    exchange: Exchange, writer: "_StreamWriter", splitter: Splitter, pending: list[bytes]
) -> AsyncGenerator[bytes, None]:
    """Translate into OpenAI's form what comes after the first event; raise `AnswerBroken`."""
    reader = writer.reader
    chunks = exchange.rest(0)
    try:
        if written := writer.write(pending):
            yield written
        while not reader.ended and (chunk := await anext(chunks, b"")):
            events = [event.data for event in splitter.feed(chunk) if event.data]
            if written := writer.write(events):
                yield written
        if not reader.ended:
            events = [event.data for event in splitter.finish() if event.data]
            if written := writer.write(events, last=True):
                yield written
    except AnswerBroken:
        raise
    except (WorkerError, EventTooLarge) as error:
        raise exchange.mark_broken(str(error)) from error
    if not reader.ended:
        raise exchange.mark_broken("the worker's stream ended before its text was complete")


class _StreamWriter:
    """Writer of the caller's stream from the worker's events."""

    __slots__ = ("_calls", "_form", "reader")

    def __init__(self, reader: TranslatedStream, form: TextForm) -> None:
        self.reader = reader
        self._form = form
        self._calls = 0

    def write(self, batch: list[bytes], *, last: bool = False) -> bytes:
        """Write what some events say; the stream ends when the text ends, and after the `last` events."""
        events: list[Event] = []
        for data in batch:
            if not self.reader.ended:
                events += self.reader.feed(data)
        if last:
            events += self.reader.finish()
        written = b"".join(map(self._event, events))
        return written + DONE if self.reader.ended and events else written

    def _event(self, event: Event) -> bytes:
        written = self._form.event(event, self._calls)
        self._calls += isinstance(event, ToolCall)
        return written


async def check_status(exchange: Exchange) -> None:
    """Raise the error that a status beyond 299 means."""
    status = exchange.status
    if 200 <= status <= 299:
        return
    if status in REFUSALS or status == NOT_ACCEPTABLE:
        raise WorkerRejected(400, await objection(exchange))
    if status == 404:
        raise NoSuchPath("the worker has no such path")
    if status == 503:
        body = await exchange.read_up_to(MAX_REFUSAL_BYTES)
        if b"overloaded" in body or exchange.header("retry-after"):
            raise busy(exchange)
        if (loading := readiness.loading_error(body)) is not None:
            raise loading
        if (unreached := readiness.unreached_error(body)) is not None:
            raise unreached
    if status == INTERNAL_ERROR and _INCOMPLETE in await exchange.read_up_to(MAX_REFUSAL_BYTES):
        raise WorkerIncomplete
    raise await refusal(exchange)
