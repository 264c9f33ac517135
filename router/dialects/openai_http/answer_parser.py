"""Answers of a worker of the OpenAI protocol, under the name by which we know its model.

Its bytes go through as they come but for the name. JSON answers beyond `LOOKED_AT_BYTES` are not looked at: they pass
through under whatever name the worker gives them.
"""

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import dataclass

import orjson

from router.dialects import Answer, Route
from router.errors import WorkerFailed
from router.http.exchange import SMALL_BYTES, Exchange
from router.openai import usage
from router.openai.body import splice_model
from router.openai.sse import SILENT_BYTES, Event, EventTooLarge, Splitter, with_data

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
        said = success(body)
        spent = usage.told(said)
        named = said.get("model")
        if isinstance(named, str) and named != name:
            body = splice_model(body, name)
    answer = exchange.answer(body, Route.LOCAL, length=len(body))
    answer.usage = spent
    return answer


async def stream_answer(exchange: Exchange, name: str, max_event_bytes: int) -> Answer:
    """Make an answer of a stream that has said something; raise `WorkerFailed` when that is a failure."""
    splitter = Splitter(max_event_bytes=max_event_bytes)
    try:
        begun = await _begin(exchange, splitter)
    except EventTooLarge as error:
        raise WorkerFailed(str(error)) from error
    first = begun.first
    if first == _LAST or success(first).get("model") == name:
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
    said = parsed(event.data)
    if not isinstance(said, dict) or not isinstance(said.get("model"), str):
        return event.raw
    return with_data(event, splice_model(event.data, name))


def success(body: bytes) -> Mapping[str, object]:
    """Return what an answer says; raise `WorkerFailed` when it is a failure that calls itself success."""
    said = parsed(body)
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


def parsed(body: bytes) -> object:
    """Return what JSON says, `None` where it is none. Workers write what orjson refuses: NaN, halves of surrogates."""
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError:
        try:
            return json.loads(body)
        except (ValueError, RecursionError):
            return None
