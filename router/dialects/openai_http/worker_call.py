"""Request to a worker of the OpenAI protocol: what is sent and where, and the answer or error that its first bytes mean."""

import asyncio
import re
from codecs import BOM_UTF8
from collections.abc import Coroutine
from functools import lru_cache, partial
from types import TracebackType
from typing import Any

from yarl import URL

from router.answer import NOTHING, Answer, Route, complete_answer
from router.canonical.retrieval import Rerank
from router.dialects.openai_http import answers
from router.dialects.openai_http.answers import (
    LAST,
    LOOKED_AT_FIRST,
    split_answer,
    stream_from_answer,
)
from router.dialects.openai_http.chats import NoCompletions
from router.dialects.openai_http.endpoints import endpoint, with_all_field_names
from router.dialects.openai_http.json_answer import json_answer, named_model
from router.errors import (
    WorkerError,
    WorkerFailed,
    WorkerRejected,
    WorkerStale,
    WorkerTooSmall,
    WorkerUnable,
)
from router.http.answer_headers import COMPRESSED, GZIP
from router.http.exchange import EVENT_STREAM, JSON, Call, Exchange, SentCall, read_plain
from router.http.heads import forwarded_head, head_to
from router.http.pool import Origin, WorkerPools, origin_of, request_start
from router.http.refusals import MAX_REFUSAL_BYTES, busy, refusal
from router.http.reply import Reply
from router.large_bodies import is_large_body, run_in_thread
from router.openai.body import with_model, without_node_fields
from router.openai.event_texts import contains
from router.openai.large_json import SMALL_BYTES
from router.openai.result_writer import DONE
from router.openai.sse import data_of
from router.openai.usage import TEXT, OptionSupport, add_usage_option
from router.peers.links import Links
from router.requests import Kind, Request
from router.select.candidates import Candidate
from router.state import readiness
from router.workers import Worker

_NOT_THERE = (404, 405, 501)
_SILENT = frozenset({Kind.STORE_SET, Kind.STORE_DELETE})
"""Kinds of request that LocalAI answers with an empty body."""

# Texts of a 503 without `Retry-After`, as Ollama, llama.cpp and most proxies write them.
_BUSY = re.compile(
    rb"server busy|overloaded|no slots? (?:is |are )?available|queue is full", re.IGNORECASE
)
# The message of llama.cpp's 500 for a text to embed or rank that exceeds its physical batch size.
_TOO_LARGE = re.compile(rb"input \(\d+ tokens\) is too large to process[^\"\\]{0,200}")


_EVENT_STARTS = (b"data:", b"event:", b"id:", b":")

_IN_JSON = frozenset({Kind.EMBEDDING, Kind.IMAGE, Kind.IMAGE_EDIT, Kind.RERANK, Kind.TOKENIZE})
"""Other kinds of request than texts that are answered in JSON."""

# Completions are missing: one may have to be asked for as a chat.
_AT_ONCE = frozenset({Kind.CHAT, Kind.EMBEDDING})

Made = tuple[bytes, Rerank | None]
"""A body for a worker, and the texts to be ranked, if any."""

Goal = tuple[Origin, bytes]
"""Where requests go, and the start of each request's head."""


@lru_cache(maxsize=4096)
def goal_for(api: str, kind: Kind) -> Goal:
    """Return where requests of a kind go for a worker registered with this URL."""
    return goal_at(endpoint(api, kind))


def goal_at(url: URL) -> Goal:
    """Return the goal for a URL."""
    return origin_of(url), request_start(url)


def build_body(worker: Worker, request: Request) -> Made:
    """Return the body of a request for a worker."""
    body = with_all_field_names(request)
    if not request.plain:
        body = without_node_fields(body, request.content_type)
    rerank = answers.read_ranking(request) if request.kind is Kind.RERANK else None
    if rerank is not None:
        body = answers.ranking_body(body, rerank)
    if worker.own_model != request.model:
        body = with_model(body, request.content_type, worker.own_model)
    return body, rerank


def prepare_call(
    pools: WorkerPools, usage_option: OptionSupport | None, request: Request, candidate: Candidate
) -> Call | None:
    """Return what to send for a small chat or an embedding; `None` for any other request.

    If streams of text get the usage option, one is sent only to a worker that is known to accept it.
    """
    worker, body = candidate.worker, request.body
    if request.verbatim or request.kind not in _AT_ONCE:
        return None
    if worker is None or worker.headers or len(body) > SMALL_BYTES:
        return None
    option = usage_option if request.stream and request.kind in TEXT else None
    if option is not None and not option.is_accepted(worker.api):
        return None
    if not request.plain or worker.own_model != request.model:
        body, _ = build_body(worker, request)
    if option is not None:
        body = add_usage_option(body) or body
    origin, start = goal_for(worker.api, request.kind)
    head = forwarded_head(request, start, len(body))
    return Call(pools.pool_at(origin), head, body)


class WorkerCall:
    """One request to a worker, which can be sent several times. `body` is what it gets, unless `send` is given another."""

    __slots__ = ("_links", "_name", "_reply", "_request", "_wanted", "_worker", "body")

    def __init__(
        self,
        links: Links,
        worker: Worker,
        request: Request,
        name: str,
        prepared: Made | None,
        reply: Reply | None,
    ) -> None:
        """`prepared` is the body if it was made already, `reply` the first reply if it was sent already, `name` the model's."""
        self._links = links
        self._worker = worker
        self._request = request
        self._name = name
        self._reply = reply
        self.body, self._wanted = prepared or build_body(worker, request)

    @property
    def api(self) -> str:
        """The worker's address."""
        return self._worker.api

    @property
    def was_sent(self) -> bool:
        """Whether the request was sent already."""
        return self._reply is not None

    def send(self, goal: Goal | None = None, body: bytes | None = None) -> SentCall:
        """Send the request to another goal, or with another body; entering waits for the first byte."""
        links, worker, request = self._links, self._worker, self._request
        origin, start = goal or goal_for(worker.api, request.kind)
        body = self.body if body is None else body
        head = head_to(worker, request, start, len(body))
        call = Call(links.workers.pool_at(origin), head, body)
        reply, self._reply = self._reply, None
        return SentCall(call, links.settings, links.deadlines, self._read, reply)

    async def _read(self, exchange: Exchange) -> Answer:
        answer = await self._answer(exchange, self._request.kind)
        if self._wanted is not None and answer.rest is NOTHING:
            _rank(answer, self._wanted, self._request.id, self._name)
        return answer

    async def _answer(self, exchange: Exchange, kind: Kind) -> Answer:
        if not 200 <= exchange.status <= 299:
            raise await _refusal(exchange, kind)
        if exchange.length == 0 and kind in _SILENT:
            return complete_answer(DONE)
        streams = self._request.stream
        await _find_type(exchange, kind, streams=streams)
        if exchange.streamed:
            return await _stream(exchange, self._name, self._links.settings.max_event_bytes)
        if "json" not in exchange.content_type:
            return await read_plain(exchange, Route.LOCAL)
        answer = await json_answer(exchange, self._name)
        if kind in TEXT and streams and answer.rest is NOTHING:
            answer.first, answer.content_type = stream_from_answer(kind, answer.first), EVENT_STREAM
            # Its usage is read from the stream.
            answer.length, answer.usage = len(answer.first), None
        return answer


class StreamWithUsage:
    """A stream that ends with its usage; a worker that refuses the usage option is asked once more without it.

    If the request was sent already, it was sent with the option.
    """

    __slots__ = ("_call", "_sent_call", "_usage_option")
    __deletable__ = ("_call",)  # mypyc asks

    def __init__(self, usage_option: OptionSupport, call: WorkerCall) -> None:
        self._usage_option = usage_option
        self._call = call

    async def __aenter__(self) -> Answer:
        now = asyncio.get_running_loop().time
        call, body, question = self._call, self._call.body, None
        if call.was_sent or self._usage_option.should_send(call.api, now()):
            long = is_large_body(body)
            question = (
                await run_in_thread(partial(add_usage_option, body))
                if long
                else add_usage_option(body)
            )
        self._sent_call = call.send(body=question)
        try:
            answer = await self._sent_call.__aenter__()
        except WorkerRejected as refusal:
            minds = self._usage_option.may_be_due_to_option(call.api, refusal.status, refusal.body)
            if question is None or not minds:
                raise refusal  # noqa: TRY201 (as mypyc needs it)
            self._sent_call = call.send()
            answer = await self._sent_call.__aenter__()
            self._usage_option.record_refused(call.api, now())
            return answer
        if question is not None:
            self._usage_option.record_accepted(call.api)
            answer.hides_usage = True
        # A stream lasts long, and the request is not sent again.
        del self._call
        return answer

    def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> Coroutine[Any, Any, bool | None]:
        return self._sent_call.__aexit__(kind, error, trace)


def _rank(answer: Answer, rerank: Rerank, id_: str, name: str) -> None:
    """Convert a ranking that has arrived in one piece to the common form."""
    if answer.status == 200 and "json" in answer.content_type:
        answer.first = answers.to_common_ranking(answer.first, rerank, id_=id_, name=name)
        answer.length = len(answer.first)


def _missing_path_error(kind: Kind) -> WorkerError:
    match kind:
        case Kind.COMPLETION:
            return NoCompletions()
        case Kind.CHAT:
            return WorkerFailed("the worker has no such path")
    # The worker still serves its model, through other endpoints.
    return WorkerUnable(f"the worker does not serve /v1/{kind}", param="model")


async def _refusal(exchange: Exchange, kind: Kind) -> WorkerError:
    if exchange.status == 404:
        body = await exchange.read_up_to(MAX_REFUSAL_BYTES)
        # A 404 about a missing path comes from a web server; one about a missing model, from a model server.
        if b"model" in body.lower() and body.lstrip().startswith(b"{"):
            return WorkerStale("the worker does not serve this model")
    if exchange.status in _NOT_THERE:
        return _missing_path_error(kind)
    if exchange.status == 503:
        body = await exchange.read_up_to(MAX_REFUSAL_BYTES)
        return _unavailable(exchange, body) or await refusal(exchange)
    if exchange.status == 500:
        body = await exchange.read_up_to(MAX_REFUSAL_BYTES)
        if match := _TOO_LARGE.search(body):
            return WorkerTooSmall(match[0])
    return await refusal(exchange)


def _unavailable(exchange: Exchange, body: bytes) -> WorkerError | None:
    """Return the error for the body of a 503, `None` if it does not say why."""
    if (loading := readiness.loading_error(body)) is not None:
        return loading
    if exchange.header("retry-after") or _BUSY.search(body):
        return busy(exchange)
    return readiness.unreached_error(body)


async def _find_type(exchange: Exchange, kind: Kind, *, streams: bool) -> None:
    """Take an answer for the JSON or stream that it is: simple servers give it no type, or that of plain text or a page."""
    if kind in TEXT:
        await _find_type_of_text(exchange, streams=streams)
    elif kind in _IN_JSON and "json" not in exchange.content_type:
        # Embeddings that a caller of vLLM wants as bytes have a type, and may begin with any byte.
        media_type = exchange.header("content-type") or "text/plain"
        if media_type.startswith("text/") and (await _beginning(exchange)).startswith(b"{"):
            exchange.take_for(JSON)


async def _find_type_of_text(exchange: Exchange, *, streams: bool) -> None:
    """Take the answer for JSON or a stream; raise `WorkerFailed` if it is neither, or a stream that was not requested."""
    if not exchange.streamed:
        begins, json = await _beginning(exchange), "json" in exchange.content_type
        if begins.startswith(GZIP):
            raise WorkerFailed(COMPRESSED)
        if begins.startswith(_EVENT_STARTS):
            exchange.take_for(EVENT_STREAM)
        elif not json and (begins.startswith(b"{") or not streams):
            exchange.take_for(JSON)
        elif not json:
            exchange.take_for(EVENT_STREAM)
    if exchange.streamed and not streams:
        raise WorkerFailed("the worker streamed, although no stream was requested")


async def _beginning(exchange: Exchange) -> bytes:
    return (await exchange.peek_first()).removeprefix(BOM_UTF8).lstrip()


async def _stream(exchange: Exchange, name: str, max_event_bytes: int) -> Answer:
    """Return the answer once the stream has an event with data; raise `WorkerFailed` if that is a failure."""
    exchange.end_at_done()
    chunk = await exchange.read_some()
    end = chunk.find(b"\n\n") + 2
    # Nearly all streams begin with a short event that has the registered name, and need not be split.
    if 2 < end <= LOOKED_AT_FIRST and not contains(begins := chunk[:end], b"\r"):
        first = data_of(begins)
        if first and (first == LAST or named_model(first) == name):
            return exchange.answer(chunk, Route.LOCAL)
    return await split_answer(exchange, chunk, name, max_event_bytes)
