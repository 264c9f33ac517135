"""Answers of a worker of the OpenAI protocol, under the name by which we know its model.

Its bytes go through as they come but for the name. JSON answers beyond `LOOKED_AT_BYTES` are not looked at: they pass
through under whatever name the worker gives them.

Option that asks a worker for a stream's usage, at no cost to its caller.

Rankings as Jina and Cohere tell them: an answer in any of the usual shapes in, their form out.

What a worker says besides stays. A request that holds more than texts (images, for one) is the worker's own business, and so is
an answer that is no ranking.
"""

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager
from functools import partial
from types import TracebackType
from typing import Any

import orjson

from registry.values import value_class
from router.canonical import rerank
from router.canonical.rerank import Rerank
from router.dialects import Answer, Route
from router.errors import BadRequest, WorkerFailed, WorkerRejected
from router.http.exchange import SMALL_BYTES, Exchange
from router.large_bodies import in_thread, takes_long
from router.openai import usage
from router.openai.body import object_of, splice_model
from router.openai.sse import SILENT_BYTES, Event, EventTooLarge, Splitter, data_of, with_data
from router.openai.usage import Takers, Usage, asking
from router.requests import Request
from router.select.fitness import USUAL_BYTES


class TellingUsage:
    """A stream that ends with its usage; a worker that refuses the question is asked once more without it."""

    __slots__ = ("_api", "_ask", "_asked", "_body", "_takers")

    def __init__(
        self,
        takers: Takers,
        api: str,
        body: bytes,
        ask: Callable[[bytes], AbstractAsyncContextManager[Answer]],
    ) -> None:
        self._takers = takers
        self._api = api
        self._body = body
        self._ask = ask

    async def __aenter__(self) -> Answer:
        now = asyncio.get_running_loop().time
        body, question = self._body, None
        if self._takers.takes(self._api, now()):
            long = takes_long(body)
            question = await in_thread(partial(asking, body)) if long else asking(body)
        self._asked = self._ask(question or body)
        try:
            answer = await self._asked.__aenter__()
        except WorkerRejected as refusal:
            minds = self._takers.may_mind(self._api, refusal.status, refusal.body)
            if question is None or not minds:
                raise
            self._asked = self._ask(body)
            answer = await self._asked.__aenter__()
            self._takers.refused(self._api, now())
            return answer
        if question is not None:
            self._takers.took(self._api)
            answer.hides_usage = True
        return answer

    def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> Coroutine[Any, Any, bool | None]:
        return self._asked.__aexit__(kind, error, trace)


_LISTS = ("results", "data", "rankings")
_SCORES = ("relevance_score", "score")


def asked(request: Request) -> Rerank | None:
    """Return which texts are to be put in order, `None` where it is not texts alone, or the worker shall find fault with it."""
    try:
        return rerank.read(request)
    except BadRequest:
        return None


def body_of(body: bytes, wanted: Rerank) -> bytes:
    """Return a body whose documents are texts: some workers know no objects."""
    fields = object_of(body)
    if fields.get("documents") == list(wanted.documents):
        return body
    return orjson.dumps({**fields, "documents": wanted.documents})


def told(body: bytes, wanted: Rerank, *, id_: str, name: str) -> bytes:
    """Return an answer in the form of all; raise `WorkerFailed` for a failure that calls itself success."""
    success(body)
    said = parsed(body)
    rest: Mapping[str, Any] = said if isinstance(said, dict) else {}
    rows = said if isinstance(said, list) else next(
        (rest[key] for key in _LISTS if isinstance(rest.get(key), list)), []
    )  # fmt: skip
    ranked = [_row(row, wanted) for row in rows]
    results = [row for row in ranked if row is not None]
    if not rows or len(results) != len(rows):
        return body
    results.sort(key=lambda row: -row["relevance_score"])
    beside = {key: value for key, value in rest.items() if key not in _LISTS}
    usual = {"id": f"rerank-{id_}", "usage": _usage(wanted)}
    lacking = {key: value for key, value in usual.items() if beside.get(key) is None}
    best = results[: wanted.top_n]
    return orjson.dumps({**beside, **lacking, "model": name, "results": best})


def _row(given: object, wanted: Rerank) -> dict[str, Any] | None:
    match given:
        case {"index": int(index), **rest} if 0 <= index < len(wanted.documents):
            pass
        case _:
            return None
    score = next((rest[key] for key in _SCORES if isinstance(rest.get(key), int | float)), None)
    if score is None:
        return None
    own = {str(key): value for key, value in rest.items() if key not in (*_SCORES, "document")}
    text = {"document": {"text": wanted.documents[index]}} if wanted.with_documents else {}
    return {"index": index, "relevance_score": score, **text, **own}


def _usage(wanted: Rerank) -> dict[str, object]:
    texts = (wanted.query, *wanted.documents)
    tokens = sum(-(-len(text.encode(errors="replace")) // USUAL_BYTES) for text in texts)
    return {"prompt_tokens": tokens, "total_tokens": tokens, "estimated": True}


LOOKED_AT_BYTES = 4 * 1024 * 1024
"""The longest JSON answer that is held back to be looked at; failures and renamed answers are far shorter."""

_LOOKED_AT_ONCE = 16 * 1024
"""Bytes of a stream that are looked at before others get their turn: of tiny events, that takes a hundredth of a second."""

_LOOKED_AT_FIRST = 1024
"""Bytes that are looked at in turn until the stream says something: what comes with that need not be cut into events."""

_LAST = b"[DONE]"
_QUOTES = 64
_TELLING = (b'"code"', b'"error"', b'"model"')


async def json_answer(exchange: Exchange, name: str) -> Answer:
    """Make an answer of JSON in one piece; raise `WorkerFailed` when it is a failure that calls itself success."""
    if exchange.length is not None and exchange.length > LOOKED_AT_BYTES:
        return exchange.answer(await exchange.some(), Route.LOCAL, length=exchange.length)
    body = await exchange.at_most(LOOKED_AT_BYTES)
    if not exchange.ended:
        return exchange.answer(body, Route.LOCAL, length=exchange.length)
    spent = None
    if len(body) > SMALL_BYTES and _plain(body, name):
        spent = usage.told_at_end(body)
    elif body:
        body, spent = told_in(body, name)
    answer = exchange.answer(body, Route.LOCAL, length=len(body))
    answer.usage = spent
    return answer


def told_in(body: bytes, name: str) -> tuple[bytes, Usage | None]:
    """Return JSON under the name of its model here, and the usage that it tells; raise what `success` does."""
    said = success(body)
    named = said.get("model")
    if named != name and isinstance(named, str):
        body = splice_model(body, name)
    return body, usage.told(said)


async def stream_answer(exchange: Exchange, name: str, max_event_bytes: int) -> Answer:
    """Make an answer of a stream that has said something; raise `WorkerFailed` when that is a failure."""
    chunk = await exchange.some()
    end = chunk.find(b"\n\n") + 2
    # Nearly all begin with a short event under our name, and need not be cut.
    if 2 < end <= _LOOKED_AT_FIRST and b"\r" not in (begins := chunk[:end]):
        first = data_of(begins)
        if first and (first == _LAST or success(first).get("model") == name):
            return exchange.answer(chunk, Route.LOCAL)
    splitter = Splitter(max_event_bytes=max_event_bytes)
    try:
        begun = await _begin(exchange, splitter, chunk)
    except EventTooLarge as error:
        raise WorkerFailed(str(error)) from error
    first = begun.first
    if first == _LAST or success(first).get("model") == name:
        return exchange.answer(begun.came, Route.LOCAL)
    answer = exchange.answer(begun.silent + _renamed(begun.events, name), Route.LOCAL)
    answer.rest = _renaming(exchange, splitter, name, begun.left)
    return answer


@value_class
class _Begun:
    """How a stream begins: events that say nothing, then those of one look, with what the first of them says."""

    came: bytes
    """All that has come, as it came."""
    silent: bytes
    events: list[Event]
    first: bytes
    left: bytes
    """What has come and was not looked at."""


async def _begin(exchange: Exchange, splitter: Splitter, chunk: bytes) -> _Begun:
    came, silent = bytearray(), bytearray()
    while chunk:
        came += chunk
        for start in range(0, len(chunk), _LOOKED_AT_FIRST):
            end = start + _LOOKED_AT_FIRST
            events = splitter.feed(chunk[start:end])
            if first := _said(events):
                return _Begun(bytes(came), bytes(silent), events, first, chunk[end:])
            silent += b"".join(event.raw for event in events)
            if len(silent) > SILENT_BYTES:
                raise WorkerFailed(f"the stream had no event in {SILENT_BYTES:,} bytes")
            await asyncio.sleep(0)
        chunk = await exchange.some()
    events = splitter.finish()
    if first := _said(events):
        return _Begun(bytes(came), bytes(silent), events, first, b"")
    raise WorkerFailed("the stream ended before its first event")


def _said(events: list[Event]) -> bytes:
    for event in events:
        if event.data:
            return event.data
    return b""


async def _renaming(
    exchange: Exchange, splitter: Splitter, name: str, left: bytes
) -> AsyncGenerator[bytes, None]:
    chunks = exchange.rest(0)
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
    said = parsed(event.data)
    if not isinstance(said, dict) or not isinstance(said.get("model"), str):
        return event.raw
    return with_data(event, splice_model(event.data, name))


def success(body: bytes) -> Mapping[str, object]:
    """Return what an answer says; raise `WorkerFailed` when it is a failure that calls itself success."""
    said = parsed(body)
    if said is None:
        raise WorkerFailed("the worker's answer is not valid JSON")
    if not isinstance(said, dict):
        return {}
    if "code" in said:
        code = said["code"]
        if isinstance(code, int) and not isinstance(code, bool) and code:
            raise WorkerFailed(f"the worker failed with code {code}")
    if "choices" in said or "data" in said:
        return said
    if isinstance(said.get("error"), dict):
        raise WorkerFailed("the worker returned an error with a success status")
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


def parsed(body: bytes) -> object:
    """Return what JSON says, `None` where it is none. Workers write what orjson refuses: NaN, halves of surrogates."""
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError:
        try:
            return json.loads(body)
        except (ValueError, RecursionError):
            return None
