"""Requests that are passed on unchanged, because caller and worker speak the same protocol.

Only four facts are read: where the model is named, whether the answer is a failure, when a stream is over, and how many tokens
it took.
"""

import re
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass

from router.answer import Answer, Route
from router.errors import WorkerFailed
from router.http.exchange import Exchange
from router.http.translated_stream import check_status, read_first_events
from router.openai.sse import Splitter
from router.openai.usage import Usage, UsageFormat
from router.translate.verbatim import HEADERS, Verbatim
from router.workers import Worker

MAX_ANSWER_BYTES = 16 * 1024 * 1024
"""Maximum size of an answer that is read in one piece."""

_LONGEST_END = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class PassThrough:
    """The parts of a protocol over HTTP that are passed on unchanged.

    `calls` are the paths; `addressed` makes the worker's body from the caller's. `whole` returns the usage of an answer in one
    piece from the caller's body, the answer and its headers, and raises a `WorkerError` for a failure. `streamed` describes the
    streams, where those are passed on too.
    """

    calls: frozenset[str]
    addressed: Callable[[bytes, Worker], bytes]
    whole: Callable[[bytes, bytes, Callable[[str], str]], Usage | None]
    streamed: "Streamed | None" = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Streamed:
    """The parts of a stream that are inspected.

    `event` inspects the first event, and raises a `WorkerError` for a failure. `over` matches the end of a text, or a failure
    that rules it out, in at most 64 bytes: a stream without it broke off. `usage_format` returns where the stream
    reports its tokens, given the caller's body.
    """

    event: Callable[[bytes], object]
    over: re.Pattern[bytes]
    usage_format: Callable[[bytes], UsageFormat]


async def read(
    exchange: Exchange,
    passing: PassThrough,
    original: Verbatim,
    *,
    streams: bool,
    max_event_bytes: int,
) -> Answer:
    """Make an answer of a worker's reply to a caller's own request; raise a `WorkerError` if that is a failure."""
    await check_status(exchange)
    if exchange.streamed and not streams:
        raise WorkerFailed("the worker streamed, although no stream was requested")
    if streams and not exchange.streamed:
        raise WorkerFailed("the worker did not stream, although a stream was requested")
    if passing.streamed and streams:
        answer = await _stream(exchange, passing.streamed, max_event_bytes)
        answer.usage_format = passing.streamed.usage_format(original.body)
    else:
        body = await exchange.read_all(MAX_ANSWER_BYTES)
        usage = passing.whole(original.body, body, exchange.header)
        answer = exchange.answer(body, Route.LOCAL, length=len(body))
        answer.usage = usage
    answer.verbatim = original.protocol
    answer.headers = {**answer.headers, **headers_of(exchange)}
    return answer


def headers_of(exchange: Exchange) -> dict[str, str]:
    """Return the headers of an answer that belong to its protocol."""
    return {name: value for name in HEADERS if (value := exchange.header(name))}


async def _stream(exchange: Exchange, streamed: Streamed, max_event_bytes: int) -> Answer:
    events, raw = await read_first_events(exchange, Splitter(max_event_bytes=max_event_bytes))
    streamed.event(events[0])
    answer = exchange.answer(raw, Route.LOCAL)
    answer.rest = _rest(exchange, streamed.over, raw)
    return answer


async def _rest(
    exchange: Exchange, pattern: re.Pattern[bytes], first: bytes
) -> AsyncGenerator[bytes, None]:
    """Pass on what comes; raise `AnswerBroken` if the stream ends before its text does."""
    ending = Ending(pattern)
    ending.feed(first)
    async for chunk in exchange.rest(len(first)):
        ending.feed(chunk)
        yield chunk
    if not ending.has_ended:
        raise exchange.mark_broken("the worker's stream ended before its text was complete")


class Ending:
    """Detector of the end of a text in a stream, however its bytes are split."""

    __slots__ = ("_pattern", "_tail", "has_ended")

    def __init__(self, pattern: re.Pattern[bytes]) -> None:
        self._pattern = pattern
        self._tail = b""
        self.has_ended = False

    def feed(self, chunk: bytes) -> None:
        """Take in the next bytes."""
        if not self.has_ended:
            searched = self._tail + chunk
            self.has_ended = self._pattern.search(searched) is not None
            self._tail = searched[-_LONGEST_END:]
