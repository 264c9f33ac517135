"""Translator between OpenAI's protocol and a worker's own, in both directions, for every dialect over HTTP.

A dialect brings its `ProtocolMapping`: how requests are written, and how answers are read, event by event or in one piece.
"""

import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import lru_cache, partial

import orjson
from yarl import URL

from router.answer import NOTHING, Answer, Route, complete_answer
from router.canonical.text import TextRequest
from router.errors import WorkerRejected, WorkerTimeout
from router.http.exchange import Call, Exchange, SentCall
from router.http.heads import headers_to, request_head
from router.http.pool import request_start
from router.http.probe import MAX_PROXY_BYTES, send_probe
from router.http.service_call import call_service
from router.http.translated_stream import begin_answer, check_status
from router.http.verbatim import MAX_ANSWER_BYTES, PassThrough
from router.http.verbatim import read as read_verbatim
from router.large_bodies import in_thread_if_large
from router.openai.body import OURS, parse_json_object, without_fields
from router.openai.text_writer import Event, TextForm
from router.openai.usage import OptionSupport
from router.peers.links import Links
from router.requests import Kind, Request
from router.select.candidates import Candidate
from router.translate.request import MappedRequest, RequestMapping, unserved_error
from router.translate.text import ChoiceReader, OutputPiece
from router.worker_description import WorkerDescription
from router.workers import Worker

NOT_FOUND = 404
_JSON = "application/json"
_EVENTS = "text/event-stream"
_STREAMED = f"{_EVENTS}, {_JSON};q=0.5"


@dataclass(frozen=True, slots=True)
class CallMapping:
    """A kind of request that is not a text: `map_request` writes the worker's single request, `read_answer` reads its answer.

    Both raise a `WorkerError`; `read_answer` returns OpenAI's JSON.
    """

    map_request: Callable[[Request], MappedRequest]
    read_answer: Callable[[Request, bytes], bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProtocolMapping(RequestMapping):
    """A protocol over HTTP with JSON bodies.

    `part` reads one event of a stream; `whole` reads an answer in one piece, given the number of its body and its headers.
    Both raise a `WorkerError` for a failure and for invalid content. `paths` are the protocol's own, by which the base of a
    registered address is found; any answer at the first of them means that the worker is alive. `others` are the kinds of
    request that are not texts. `passing` says what is passed on unchanged for callers that speak the protocol too, and
    `beside` adds such a caller's own fields to the translated request.
    """

    paths: tuple[str, ...]
    part: Callable[[TextRequest, bytes], OutputPiece]
    whole: Callable[[TextRequest, int, bytes, Callable[[str], str]], list[Event]]
    others: Mapping[Kind, CallMapping] = field(default_factory=dict)
    passing: PassThrough | None = None
    beside: Callable[[MappedRequest, Mapping[str, object]], MappedRequest] | None = None


class Translator:
    """Dialect that translates requests into the protocol of this machine's workers."""

    def __init__(self, links: Links, mapping: ProtocolMapping) -> None:
        self._mapping = mapping
        self._links = links
        self._pools = links.workers
        self._settings = links.settings
        self._deadlines = links.deadlines
        self._stream_support = OptionSupport(b"stream", b"event-stream")

    @asynccontextmanager
    async def answer(self, request: Request, candidate: Candidate) -> AsyncIterator[Answer]:
        """Send the request and enter once the first byte is there; raise a `WorkerError` until then."""
        worker, name = candidate.worker, candidate.service.model
        if worker is None or request.target:
            async with call_service(self._links, request, worker) as answer:
                yield answer
            return
        if (passed := await self._verbatim(request, worker)) is not None:
            async with passed as answer:
                yield answer
            return
        if other := self._mapping.others.get(request.kind):
            mapped = await in_thread_if_large(request.body, partial(other.map_request, request))
            async with self._single_call(other, request, worker, mapped) as answer:
                yield answer
            return
        text_request, mapped = await in_thread_if_large(
            request.body, partial(self._mapping.read, request, worker)
        )
        original = request.verbatim
        if self._mapping.beside and original and original.protocol == worker.dialect:
            mapped = self._mapping.beside(mapped, parse_json_object(original.body))
        pending = _TextInFlight(worker, request, text_request, mapped, text_form(request, name))
        async with AsyncExitStack() as open_:
            answer = await self._enter_answer(pending, open_)
            answer.headers = mapped.headers
            answer.hides_usage = answer.streamed and not text_request.include_usage
            yield answer

    async def alive(self, worker: Worker) -> bool:
        """Return whether the worker answers at its first path, whatever the status, and not a proxy in its place."""
        url = self.url(worker, self._mapping.paths[0])
        return (await send_probe(self._pools, worker, url, at_most=MAX_PROXY_BYTES)).alive

    async def slots(self, worker: Worker) -> int:  # noqa: ARG002
        """Return 0, for unknown: most protocols have no field for it."""
        return 0

    async def describe(self, worker: Worker) -> WorkerDescription | None:  # noqa: ARG002
        """Return an empty description: most protocols have no field for it."""
        return WorkerDescription()

    def url(self, worker: Worker, path: str) -> URL:
        """Return the URL of one of the worker's paths."""
        return endpoint(worker.api, path, self._mapping.paths)

    async def _enter_answer(self, pending: "_TextInFlight", open_: AsyncExitStack) -> Answer:
        """Enter the answer; a worker that refuses to stream is asked again for the whole answer in one piece."""
        mapped, api, now = pending.mapped, pending.worker.api, time.monotonic()
        if not mapped.streamed:
            return await open_.enter_async_context(self._whole(pending, mapped.bodies))
        if mapped.unstreamed is None:
            return await open_.enter_async_context(self._stream(pending))
        if not self._stream_support.should_send(api, now):
            return await open_.enter_async_context(self._whole(pending, (mapped.unstreamed,)))
        try:
            answer = await open_.enter_async_context(self._stream(pending))
        except WorkerRejected as refused:
            if not self._stream_support.may_be_due_to_option(api, refused.status, refused.body):
                raise
        else:
            self._stream_support.record_accepted(api)
            return answer
        answer = await open_.enter_async_context(self._whole(pending, (mapped.unstreamed,)))
        self._stream_support.record_refused(api, now)
        return answer

    async def _verbatim(
        self, request: Request, worker: Worker
    ) -> AbstractAsyncContextManager[Answer] | None:
        """Pass on the caller's own request if the worker speaks its protocol; return `None` if it is to be translated."""
        original, passing = request.verbatim, self._mapping.passing
        if original is None or original.protocol != worker.dialect:
            return None
        if (
            passing is None
            or original.call not in passing.calls
            or (request.stream and not passing.streamed)
        ):
            if original.needs:
                raise self._mapping.unsupported(original.needs)
            return None

        async def read(exchange: Exchange) -> Answer:
            limit = self._settings.max_event_bytes
            return await read_verbatim(
                exchange, passing, original, streams=request.stream, max_event_bytes=limit
            )

        stripped = await in_thread_if_large(
            original.body, partial(without_fields, original.body, OURS)
        )
        body = passing.addressed(stripped, worker)
        accept = _STREAMED if request.stream else _JSON
        call = self._call(worker, request, original.call, body, accept=accept)
        return SentCall(call, self._settings, self._deadlines, read)

    def _single_call(
        self, other: CallMapping, request: Request, worker: Worker, mapped: MappedRequest
    ) -> AbstractAsyncContextManager[Answer]:
        async def read(exchange: Exchange) -> Answer:
            if exchange.status == NOT_FOUND:
                raise unserved_error(self._mapping.name, request.kind)
            await check_status(exchange)
            content = other.read_answer(request, await exchange.read_all(MAX_ANSWER_BYTES))
            answer = complete_answer(content)
            answer.headers = mapped.headers
            return answer

        body = orjson.dumps(mapped.bodies[0])
        call = self._call(worker, request, mapped.path, body, accept=_JSON)
        return SentCall(call, self._settings, self._deadlines, read)

    def _stream(self, pending: "_TextInFlight") -> AbstractAsyncContextManager[Answer]:
        async def read(exchange: Exchange) -> Answer:
            await check_status(exchange)
            if exchange.streamed:
                reader = ChoiceReader(pending.text_request, self._mapping.part)
                return await begin_answer(
                    exchange, reader, pending.form, self._settings.max_event_bytes
                )
            # A worker that does not stream sends all of it at once.
            events = await self._read_whole(pending, 0, exchange)
            return complete_text_answer(pending.text_request, pending.form, events)

        path, body = pending.mapped.path, orjson.dumps(pending.mapped.bodies[0])
        call = self._call(pending.worker, pending.request, path, body, accept=_STREAMED)
        return SentCall(call, self._settings, self._deadlines, read)

    @asynccontextmanager
    async def _whole(
        self, pending: "_TextInFlight", bodies: Sequence[Mapping[str, object]]
    ) -> AsyncIterator[Answer]:
        deadline = time.monotonic() + self._settings.total_timeout
        events: list[Event] = []
        # Written one by one: many choices of a long chat would not fit into memory.
        for number, body in enumerate(bodies):
            if time.monotonic() > deadline:
                raise WorkerTimeout("answer", self._settings.total_timeout)

            async def read(exchange: Exchange, number: int = number) -> Answer:
                await check_status(exchange)
                events.extend(await self._read_whole(pending, number, exchange))
                return complete_answer(b"")

            path = pending.mapped.path
            written = orjson.dumps(body)
            call = self._call(pending.worker, pending.request, path, written, accept=_JSON)
            async with SentCall(call, self._settings, self._deadlines, read):
                pass
        yield complete_text_answer(pending.text_request, pending.form, events)

    def _call(
        self, worker: Worker, request: Request, path: str, body: bytes, *, accept: str
    ) -> Call:
        url = self.url(worker, path)
        headers = {**headers_to(worker, request), "Content-Type": _JSON, "accept": accept}
        return Call(
            self._pools.pool_for(url), request_head(request_start(url), headers, len(body)), body
        )

    async def _read_whole(
        self, pending: "_TextInFlight", number: int, exchange: Exchange
    ) -> list[Event]:
        body = await exchange.read_all(MAX_ANSWER_BYTES)
        pending.form = pending.form.with_fingerprint(body)
        return self._mapping.whole(pending.text_request, number, body, exchange.header)


@dataclass(slots=True)
class _TextInFlight:
    """One request for text, and the form of its answer as far as it is known."""

    worker: Worker
    request: Request
    text_request: TextRequest
    mapped: MappedRequest
    form: TextForm


def complete_text_answer(request: TextRequest, form: TextForm, events: list[Event]) -> Answer:
    """Make an answer of all events of a worker, in the form that the caller wants."""
    if request.stream:
        return Answer(200, _EVENTS, form.stream(events), NOTHING, Route.LOCAL)
    body, usage = form.whole_answer(events)
    answer = complete_answer(body)
    answer.usage = usage
    return answer


def text_form(request: Request, name: str) -> TextForm:
    """Return what every part of the answer to a request has in common; `name` is the registered model's."""
    prefix = "chatcmpl" if request.kind is Kind.CHAT else "cmpl"
    return TextForm(f"{prefix}-{request.id}", int(time.time()), name, request.kind)


@lru_cache(maxsize=4096)
def endpoint(api: str, path: str, paths: tuple[str, ...]) -> URL:
    """Return the URL of one of a protocol's paths, whether `api` is its base or ends with one of `paths`."""
    url = URL(api)
    base = url.path.rstrip("/")
    for ending in paths:
        if base.endswith(f"/{ending}"):
            base = base.removesuffix(f"/{ending}")
            break
    return url.with_path(f"{base}/{path}", keep_query=True)
