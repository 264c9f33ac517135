"""Stream of a worker of the OpenAI protocol, with the model's registered name and the usage that the node asks for."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from functools import partial
from types import TracebackType
from typing import Any

from registry.values import value_class
from router.answer import Answer, Route
from router.dialects.openai_http.json_answer import parsed, success
from router.errors import WorkerFailed, WorkerRejected
from router.http.exchange import Exchange
from router.large_bodies import in_thread, takes_long
from router.openai.body import splice_model
from router.openai.sse import SILENT_BYTES, Event, EventTooLarge, Splitter, data_of, with_data
from router.openai.usage import Takers, asking


class TellingUsage:
    """A stream that ends with its usage; a worker that refuses the usage option is asked once more without it."""

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
        # A stream lasts long, and the request is not sent again.
        del self._ask, self._body
        return answer

    def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> Coroutine[Any, Any, bool | None]:
        return self._asked.__aexit__(kind, error, trace)


_LOOKED_AT_ONCE = 16 * 1024
"""Bytes of a stream that are processed before other tasks get their turn: with tiny events that takes 10 ms."""

_LOOKED_AT_FIRST = 1024
"""Bytes that are split at a time until the first event with data: what arrives behind that need not be split into events."""

_LAST = b"[DONE]"


async def stream_answer(exchange: Exchange, name: str, max_event_bytes: int) -> Answer:
    """Return the answer once the stream has an event with data; raise `WorkerFailed` if that is a failure."""
    chunk = await exchange.some()
    end = chunk.find(b"\n\n") + 2
    # Nearly all streams begin with a short event that has the registered name, and need not be split.
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
    """The start of a stream: silent events without data, then the events of the first piece with data, whose first is `first`."""

    came: bytes
    """All bytes that have arrived, unchanged."""
    silent: bytes
    events: list[Event]
    first: bytes
    left: bytes
    """Bytes that have arrived and were not split."""


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
