"""The OpenAI protocol over HTTP, as llama.cpp, vLLM, Ollama and the workers of `/api/v0` speak it.

Bytes pass through as they come. What is looked at: the model's name, which is the registered one on our side and may be
another on the worker's, how many tokens it says that it took, and whether a status of 200 hides a failure. JSON answers
beyond `LOOKED_AT_BYTES` are not looked at: they pass through under whatever name the worker gives them.
"""

import asyncio
import json
import re
from collections.abc import AsyncGenerator, Mapping
from contextlib import AbstractAsyncContextManager, aclosing
from dataclasses import dataclass
from functools import lru_cache

import orjson
from yarl import URL

from router import readiness, usage
from router.bodies import splice_model, with_model
from router.candidates import Candidate
from router.connections import start_of
from router.dialects import Answer, Route
from router.errors import WorkerError, WorkerFailed, WorkerStale
from router.exchange import (
    MAX_REFUSAL_BYTES,
    SMALL_BYTES,
    Call,
    Exchange,
    Sending,
    busy,
    get,
    headers_of,
    read_plain,
    refusal,
)
from router.links import Links
from router.requests import Kind, Request
from router.sse import SILENT_BYTES, Event, EventTooLarge, Splitter, with_data
from router.telling import TellingUsage
from router.usage import Takers
from router.workers import Worker

LOOKED_AT_BYTES = 4 * 1024 * 1024
"""The longest JSON answer that is held back to be looked at; failures and renamed answers are far shorter."""

_LOOKED_AT_ONCE = 16 * 1024
"""Bytes of a stream that are looked at before others get their turn: of tiny events, that takes a hundredth of a second."""

_LOOKED_AT_FIRST = 1024
"""Bytes that are looked at in turn until the stream says something: what comes with that need not be cut into events."""

MAX_PROPERTIES_BYTES = 1024 * 1024
"""The longest properties that are read; a chat template of some kilobytes is most of them."""

MOST_SLOTS = 65_535
"""More than so many at one time is no sensible number."""

_DONE = b"[DONE]"
# What servers say in a 503 that names no time: Ollama, llama.cpp, and most of what stands before them.
_BUSY = re.compile(
    rb"server busy|overloaded|no slots? (?:is |are )?available|queue is full", re.IGNORECASE
)
_QUOTES = 64
_TELLING = (b'"code"', b'"error"', b'"model"')
_LONGEST_FIRST = sorted((kind.value for kind in Kind), key=len, reverse=True)


class OpenAIHttp:
    """Speaks to this machine's workers."""

    def __init__(self, links: Links) -> None:
        self._places = links.workers
        self._settings = links.settings
        self._deadlines = links.deadlines
        self._takers = Takers()

    def answer(self, request: Request, candidate: Candidate) -> AbstractAsyncContextManager[Answer]:
        """Send the request and enter once the first byte is there; raise a `WorkerError` until then."""
        worker, name = candidate.worker, candidate.service.model
        if worker is None:
            raise WorkerFailed("this dialect speaks to workers of this machine only")
        body = request.body
        if worker.own_model != request.model:
            body = with_model(body, request.content_type, worker.own_model)
        url = endpoint(worker.api, request.kind)
        place, start, headers = self._places.of(url), start_of(url), headers_of(request)

        async def read(exchange: Exchange) -> Answer:
            if not 200 <= exchange.status <= 299:
                raise await _refusal(exchange)
            if exchange.streamed:
                return await _stream(exchange, name, self._settings.max_event_bytes)
            if "json" in exchange.content_type:
                return await _json(exchange, name)
            return await read_plain(exchange, Route.LOCAL)

        def ask(body: bytes) -> AbstractAsyncContextManager[Answer]:
            call = Call(place, start, headers, body)
            return Sending(call, self._settings, self._deadlines, read)

        if self._settings.stream_usage and request.stream and request.kind in usage.TEXT:
            return TellingUsage(self._takers, worker.api, body, ask)
        return ask(body)

    async def alive(self, worker: Worker) -> bool:
        """Ask for the list of models; whatever the status, a worker that answers lives."""
        url = endpoint(worker.api, Kind.CHAT).with_path("/v1/models")
        return await get(self._places, url, at_most=0) is not None

    async def slots(self, worker: Worker) -> int:
        """Ask for llama.cpp's properties: it works at so many requests, and lets others wait without a word."""
        url = endpoint(worker.api, Kind.CHAT).with_path("/props")
        found = await get(self._places, url, at_most=MAX_PROPERTIES_BYTES)
        said = _parsed(found[1]) if found and found[0] == 200 else None
        slots = said.get("total_slots") if isinstance(said, dict) else None
        if not isinstance(slots, int) or isinstance(slots, bool):
            return 0
        return slots if 0 < slots <= MOST_SLOTS else 0


def create(links: Links) -> OpenAIHttp:
    """Make the dialect."""
    return OpenAIHttp(links)


@lru_cache(maxsize=4096)
def endpoint(api: str, kind: Kind) -> URL:
    """Return where a kind of request goes, whether `api` is a base, a base with `/v1`, or one of its endpoints.

    An address with any other path is taken for the endpoint itself.
    """
    url = URL(api)
    path = url.path.rstrip("/")
    for known in _LONGEST_FIRST:
        if path.endswith(f"/{known}"):
            return url.with_path(path.removesuffix(known) + kind.value, keep_query=True)
    version = path.rpartition("/")[2]
    if not path:
        return url.with_path(f"/v1/{kind.value}", keep_query=True)
    if version.startswith("v") and version[1:].isdigit():
        return url.with_path(f"{path}/{kind.value}", keep_query=True)
    return url


async def _refusal(exchange: Exchange) -> WorkerError:
    if exchange.status == 404:
        body = await exchange.at_most(MAX_REFUSAL_BYTES)
        # A path that nobody serves is spoken of by web servers; a model that nobody serves, by model servers.
        if b"model" in body.lower() and body.lstrip().startswith(b"{"):
            return WorkerStale("the worker does not serve this model")
        return WorkerFailed("the worker has no such path")
    if exchange.status == 503:
        body = await exchange.at_most(MAX_REFUSAL_BYTES)
        loading = readiness.said(body)
        if loading is not None:
            return loading
        if exchange.header("retry-after") or _BUSY.search(body):
            return busy(exchange)
    return await refusal(exchange)


async def _json(exchange: Exchange, name: str) -> Answer:
    if exchange.length is not None and exchange.length > LOOKED_AT_BYTES:
        return exchange.answer(await exchange.some(), Route.LOCAL, length=exchange.length)
    body = await exchange.at_most(LOOKED_AT_BYTES)
    if not exchange.ended:
        return exchange.answer(body, Route.LOCAL, length=exchange.length)
    spent = None
    if len(body) > SMALL_BYTES and _plain(body, name):
        spent = usage.told_at_end(body)
    elif body:
        said = _success(body)
        spent = usage.told(said)
        named = said.get("model")
        if isinstance(named, str) and named != name:
            body = splice_model(body, name)
    answer = exchange.answer(body, Route.LOCAL, length=len(body))
    answer.usage = spent
    return answer


async def _stream(exchange: Exchange, name: str, max_event_bytes: int) -> Answer:
    splitter = Splitter(max_event_bytes=max_event_bytes)
    try:
        begun = await _begin(exchange, splitter)
    except EventTooLarge as error:
        raise WorkerFailed(str(error)) from error
    first = begun.first
    if first == _DONE or _success(first).get("model") == name:
        raw = (event.raw for event in begun.events)
        whole = b"".join((begun.silent, *raw, splitter.held, begun.left))
        return exchange.answer(whole, Route.LOCAL)
    answer = exchange.answer(begun.silent + _renamed(begun.events, name), Route.LOCAL)
    answer.rest = _renaming(exchange, splitter, name, begun.left)
    return answer


@dataclass(frozen=True, slots=True)
class _Begun:
    """How a stream begins: events that say nothing, then those of one look, with what the first of them says."""

    silent: bytes
    events: list[Event]
    first: bytes
    left: bytes
    """What has come and was not looked at."""


async def _begin(exchange: Exchange, splitter: Splitter) -> _Begun:
    silent = bytearray()
    while chunk := await exchange.some():
        for start in range(0, len(chunk), _LOOKED_AT_FIRST):
            end = start + _LOOKED_AT_FIRST
            events = splitter.feed(chunk[start:end])
            if first := _said(events):
                return _Begun(bytes(silent), events, first, chunk[end:])
            silent += b"".join(event.raw for event in events)
            if len(silent) > SILENT_BYTES:
                raise WorkerFailed(f"the stream said nothing in {SILENT_BYTES:,} bytes")
            await asyncio.sleep(0)
    events = splitter.finish()
    if first := _said(events):
        return _Begun(bytes(silent), events, first, b"")
    raise WorkerFailed("the stream ended before its first event")


def _said(events: list[Event]) -> bytes:
    return next((event.data for event in events if event.data), b"")


async def _renaming(
    exchange: Exchange, splitter: Splitter, name: str, left: bytes
) -> AsyncGenerator[bytes, None]:
    async with aclosing(exchange.rest(0)) as chunks:
        chunk = left or await anext(chunks, b"")
        while chunk:
            for start in range(0, len(chunk), _LOOKED_AT_ONCE):
                try:
                    events = splitter.feed(chunk[start : start + _LOOKED_AT_ONCE])
                except EventTooLarge as error:
                    raise exchange.broke(str(error)) from error
                if start:
                    await asyncio.sleep(0)
                if events:
                    yield _renamed(events, name)
            chunk = await anext(chunks, b"")
    if events := splitter.finish():
        yield _renamed(events, name)


def _renamed(events: list[Event], name: str) -> bytes:
    return b"".join(_renamed_event(event, name) for event in events)


def _renamed_event(event: Event, name: str) -> bytes:
    if b"model" not in event.data:
        return event.raw
    said = _parsed(event.data)
    if not isinstance(said, dict) or not isinstance(said.get("model"), str):
        return event.raw
    return with_data(event, splice_model(event.data, name))


def _success(body: bytes) -> Mapping[str, object]:
    """Return what an answer says; raise `WorkerFailed` when it is a failure that calls itself success."""
    said = _parsed(body)
    if said is None:
        raise WorkerFailed("the worker's answer calls itself JSON and is not")
    if not isinstance(said, dict):
        return {}
    code = said.get("code")
    if isinstance(code, int) and not isinstance(code, bool) and code:
        raise WorkerFailed(f"the worker failed with code {code}")
    if isinstance(said.get("error"), dict) and "choices" not in said and "data" not in said:
        raise WorkerFailed("the worker answered with an error under a status of success")
    return said


def _plain(body: bytes, name: str) -> bool:
    """Whether a long answer needs no parsing: nothing in it can be a failure, and no name in it is another's."""
    if body[:1] not in (b"{", b"["):
        return False
    written = orjson.dumps(name)
    ours = (b'"model":' + written, b'"model": ' + written)
    at = -1
    # From quote to quote, of which an image has a handful: looking for each key by itself would cost five times as much.
    for _ in range(_QUOTES):
        at = body.find(b'"', at + 1)
        if at < 0:
            return True
        if body.startswith(_TELLING, at) and not body.startswith(ours, at):
            return False
    if b'"code"' in body or b'"error"' in body:
        return False
    return body.count(b'"model"') == sum(map(body.count, ours))


def _parsed(body: bytes) -> object:
    """Return what JSON says, `None` where it is none. Workers write what orjson refuses: NaN, halves of surrogates."""
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError:
        try:
            return json.loads(body)
        except (ValueError, RecursionError):
            return None
