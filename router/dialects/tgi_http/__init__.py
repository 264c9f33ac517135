"""Hugging Face's Text Generation Inference: completions over its native interface, chats over its own `/v1`.

The native stream has no `[DONE]`, and tells errors as events after a status of 200. TGI hands stop strings over, knows one
choice for each request, and greets values that change nothing (`top_p` 1, no tokens) with 422; all that is mended here.
"""

import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from functools import lru_cache

import orjson
from yarl import URL

from router import readiness
from router.candidates import Candidate
from router.canonical import Asked
from router.connections import start_of
from router.dialects import Answer, Route
from router.dialects.tgi_http import telling, words
from router.errors import AnswerBroken, WorkerError, WorkerFailed, WorkerRejected, WorkerTimeout
from router.exchange import (
    MAX_REFUSAL_BYTES,
    NOTHING,
    REFUSALS,
    Call,
    Exchange,
    Sending,
    busy,
    get,
    headers_of,
    refusal,
)
from router.links import Links
from router.rendering import DONE, DROPPED_HEADER, Event, Form
from router.requests import Kind, Request
from router.sse import SILENT_BYTES, EventTooLarge, Splitter
from router.workers import Worker

MAX_ANSWER_BYTES = 16 * 1024 * 1024
"""The longest answer in one piece that is read."""

MAX_PROPERTIES_BYTES = 64 * 1024
MOST_SLOTS = 65_535

ENDPOINTS: Mapping[str, str] = {
    "POST /": "not used: `/generate` and `/generate_stream` say the same",
    "POST /generate": "completions, one request for each choice",
    "POST /generate_stream": "completions in a stream",
    "POST /v1/chat/completions": "chats; in a stream too, but with tools in one piece that is then streamed",
    "POST /v1/completions": "not used: it tells no special tokens",
    "POST /tokenize": "not used yet: tokens that TGI does not tell are estimated",
    "GET /health": "asked when the worker is silent; 503 means that its model is down",
    "GET /info": "`max_concurrent_requests` bounds what it is given at one time",
    "GET /metrics": "not used",
}
"""What becomes of each endpoint of TGI."""

_PATHS = (words.CHAT, "v1/completions", words.STREAM, words.WHOLE, "v1")


class TgiHttp:
    """Speaks to a TGI server of this machine."""

    def __init__(self, links: Links) -> None:
        self._places = links.workers
        self._settings = links.settings
        self._deadlines = links.deadlines

    @asynccontextmanager
    async def answer(self, request: Request, candidate: Candidate) -> AsyncIterator[Answer]:
        """Send the request and enter once the first byte is there; raise a `WorkerError` until then."""
        worker, name = candidate.worker, candidate.service.model
        if worker is None:
            raise WorkerFailed("this dialect speaks to workers of this machine only")
        asked, orders = words.read(request)
        prefix = "chatcmpl" if request.kind is Kind.CHAT else "cmpl"
        form = Form(f"{prefix}-{request.id}", int(time.time()), name, request.kind)
        url = endpoint(worker.api, orders.path)
        headers = {**headers_of(request), "Content-Type": "application/json"}
        place, start = self._places.of(url), start_of(url)
        # Written one by one: many choices of a long chat would not fit into memory.
        calls = (Call(place, start, headers, orjson.dumps(body)) for body in orders.bodies)
        ask = self._stream if orders.streamed else self._whole
        async with ask(calls, asked, form) as answer:
            if orders.dropped:
                answer.headers = {DROPPED_HEADER: ", ".join(orders.dropped)}
            answer.hides_usage = answer.streamed and not asked.include_usage
            yield answer

    async def alive(self, worker: Worker) -> bool:
        """Ask for its health; only 503 says that the model behind it is down, and busy is no such word."""
        found = await get(self._places, endpoint(worker.api, "health"), at_most=0)
        return found is not None and found[0] != 503

    async def slots(self, worker: Worker) -> int:
        """Ask how many requests it takes before it refuses more."""
        url = endpoint(worker.api, "info")
        found = await get(self._places, url, at_most=MAX_PROPERTIES_BYTES)
        said = _properties(found[1]) if found and found[0] == 200 else {}
        slots = said.get("max_concurrent_requests")
        if not isinstance(slots, int) or isinstance(slots, bool):
            return 0
        return slots if 0 < slots <= MOST_SLOTS else 0

    def _stream(
        self, calls: Iterator[Call], asked: Asked, form: Form
    ) -> AbstractAsyncContextManager[Answer]:
        async def read(exchange: Exchange) -> Answer:
            await _check(exchange)
            return await _begin(
                exchange, telling.Stream(asked), form, self._settings.max_event_bytes
            )

        return Sending(next(calls), self._settings, self._deadlines, read)

    @asynccontextmanager
    async def _whole(
        self, calls: Iterator[Call], asked: Asked, form: Form
    ) -> AsyncIterator[Answer]:
        ends = time.monotonic() + self._settings.total_timeout
        events: list[Event] = []
        for choice, call in enumerate(calls):
            if time.monotonic() > ends:
                raise WorkerTimeout("answer", self._settings.total_timeout)

            async def read(exchange: Exchange, choice: int = choice) -> Answer:
                await _check(exchange)
                body = await exchange.at_most(MAX_ANSWER_BYTES)
                if not exchange.ended:
                    raise WorkerFailed(f"the answer has more than {MAX_ANSWER_BYTES:,} bytes")
                events.extend(
                    telling.whole(asked, choice, body, exchange.header("x-prompt-tokens"))
                )
                return exchange.answer(body, Route.LOCAL, length=len(body))

            async with Sending(call, self._settings, self._deadlines, read):
                pass
        if asked.stream:
            streamed = form.stream(events)
            yield Answer(200, "text/event-stream", streamed, NOTHING, Route.LOCAL)
            return
        body, spent = form.whole(events)
        answer = Answer(200, "application/json", body, NOTHING, Route.LOCAL, len(body))
        answer.usage = spent
        yield answer


def create(links: Links) -> TgiHttp:
    """Make the dialect."""
    return TgiHttp(links)


@lru_cache(maxsize=4096)
def endpoint(api: str, path: str) -> URL:
    """Return the URL of one of TGI's paths, whether `api` is its base or one of its endpoints."""
    url = URL(api)
    base = url.path.rstrip("/")
    for known in _PATHS:
        if base.endswith(f"/{known}"):
            base = base.removesuffix(f"/{known}")
            break
    return url.with_path(f"{base}/{path}", keep_query=True)


async def _begin(
    exchange: Exchange, told: telling.Stream, form: Form, max_event_bytes: int
) -> Answer:
    """Make an answer of a stream that has said something; raise a `WorkerError` when that is a failure."""
    if not exchange.streamed:
        raise WorkerFailed("the worker does not stream")
    splitter, size = Splitter(max_event_bytes=max_event_bytes), 0
    said: list[bytes] = []
    try:
        while not said and (chunk := await exchange.some()):
            said = [event.data for event in splitter.feed(chunk) if event.data]
            size += len(chunk)
            if size > SILENT_BYTES and not said:
                raise WorkerFailed(f"the stream said nothing in {SILENT_BYTES:,} bytes")
    except EventTooLarge as error:
        raise WorkerFailed(str(error)) from error
    said = said or [event.data for event in splitter.finish() if event.data]
    if not said:
        raise WorkerFailed("the stream ended before its first event")
    first = form.opening() + _written(told, form, said[:1])
    answer = exchange.answer(first, Route.LOCAL)
    answer.rest = _rest(exchange, told, form, splitter, said[1:])
    return answer


async def _rest(
    exchange: Exchange, told: telling.Stream, form: Form, splitter: Splitter, left: list[bytes]
) -> AsyncGenerator[bytes, None]:
    """Say in OpenAI's form what comes after the first event; raise `AnswerBroken`."""
    async with aclosing(exchange.rest(0)) as chunks:
        try:
            if written := _written(told, form, left):
                yield written
            while not told.ended and (chunk := await anext(chunks, b"")):
                said = [event.data for event in splitter.feed(chunk) if event.data]
                if written := _written(told, form, said):
                    yield written
            if not told.ended:
                said = [event.data for event in splitter.finish() if event.data]
                if written := _written(told, form, said, last=True):
                    yield written
        except AnswerBroken:
            raise
        except (WorkerError, EventTooLarge) as error:
            raise exchange.broke(str(error)) from error
    if not told.ended:
        raise exchange.broke("the worker's stream ended before its text did")


def _written(told: telling.Stream, form: Form, said: list[bytes], *, last: bool = False) -> bytes:
    """Write what some events say; the end of a text is the end of the stream."""
    events: list[Event] = []
    for data in said:
        if not told.ended:
            events += told.take(data)
    if last:
        events += told.finish()
    written = b"".join(map(form.event, events))
    return written + DONE if told.ended and events else written


async def _check(exchange: Exchange) -> None:
    """Raise what a status beyond 299 means."""
    status = exchange.status
    if 200 <= status <= 299:
        return
    if status in REFUSALS:
        body = (await exchange.at_most(MAX_REFUSAL_BYTES))[:MAX_REFUSAL_BYTES]
        raise WorkerRejected(400, body)
    if status == 404:
        raise WorkerFailed("the worker has no such path")
    if status == 503:
        body = await exchange.at_most(MAX_REFUSAL_BYTES)
        if b"overloaded" in body or exchange.header("retry-after"):
            raise busy(exchange)
        if (loading := readiness.said(body)) is not None:
            raise loading
    raise await refusal(exchange)


def _properties(body: bytes) -> Mapping[str, object]:
    try:
        return telling.object_of(body)
    except WorkerFailed:
        return {}
