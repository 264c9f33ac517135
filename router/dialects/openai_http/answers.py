"""Answers of a worker of the OpenAI protocol that are not passed on as they are: streams, and rankings.

A stream is split into events if it begins unusually, or has another name for its model, and made of an answer in one piece.
Rankings are in the form of Jina and Cohere, made from an answer in any of the usual shapes; other fields of the answer stay. A
request that contains more than texts (images, for one) passes unchanged, and so does an answer that is no ranking.
"""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from typing import Any

import orjson

from registry.values import value_class
from router.answer import Answer, Route
from router.canonical.retrieval import Rerank, read_rerank
from router.dialects.openai_http.json_answer import named_model, parse_json, parse_success
from router.errors import BadRequest, WorkerFailed
from router.http.exchange import Exchange
from router.openai import text_parser
from router.openai.body import parse_json_object, splice_model
from router.openai.sse import SILENT_BYTES, Event, EventTooLarge, Splitter, with_data
from router.openai.text_parser import written_answer
from router.openai.text_writer import DONE
from router.requests import Kind, Request
from router.select.fitness import estimated_tokens

LOOKED_AT_FIRST = 1024
"""Bytes that are split at a time until the first event with data: what arrives behind that need not be split into events."""

LAST = b"[DONE]"
"""The data of a stream's last event."""

_LOOKED_AT_ONCE = 16 * 1024
"""Bytes of a stream that are processed before other tasks get their turn: with tiny events that takes 10 ms."""


async def split_answer(exchange: Exchange, chunk: bytes, name: str, max_event_bytes: int) -> Answer:
    """Return the answer of a stream that begins with this chunk; raise `WorkerFailed` if its first data is a failure."""
    splitter = Splitter(max_event_bytes=max_event_bytes)
    try:
        begun = await _begin(exchange, splitter, chunk)
    except EventTooLarge as error:
        raise WorkerFailed(str(error)) from error
    if begun.first == LAST or named_model(begun.first) == name:
        return exchange.answer(begun.came, Route.LOCAL)
    answer = exchange.answer(begun.silent + _renamed(begun.events, name), Route.LOCAL)
    answer.rest = _rename_models(exchange, splitter, name, begun.left)
    return answer


@value_class
class _StreamStart:
    """The start of a stream: silent events without data, then the events of the first piece with data, whose first is `first`."""

    came: bytes
    """All bytes that have arrived, unchanged."""
    silent: bytes
    events: list[Event]
    first: bytes
    left: bytes
    """Bytes that have arrived and were not split."""


async def _begin(exchange: Exchange, splitter: Splitter, chunk: bytes) -> _StreamStart:
    received, silent = bytearray(), bytearray()
    while chunk:
        received += chunk
        for start in range(0, len(chunk), LOOKED_AT_FIRST):
            end = start + LOOKED_AT_FIRST
            events = splitter.feed(chunk[start:end])
            if first := _first_data(events):
                return _StreamStart(bytes(received), bytes(silent), events, first, chunk[end:])
            silent += b"".join(event.raw for event in events)
            if len(silent) > SILENT_BYTES:
                raise WorkerFailed(f"the stream had no event in {SILENT_BYTES:,} bytes")
            await asyncio.sleep(0)
        chunk = await exchange.read_some()
    events = splitter.finish()
    if first := _first_data(events):
        return _StreamStart(bytes(received), bytes(silent), events, first, b"")
    raise WorkerFailed("the stream ended before its first event")


def _first_data(events: list[Event]) -> bytes:
    for event in events:
        if event.data:
            return event.data
    return b""


def stream_from_answer(kind: Kind, body: bytes) -> bytes:
    """Return the stream for a text that came in one piece, with all that its worker said; raise `WorkerFailed` if it is none."""
    answer = text_parser.answer_object(body)
    choices = answer.get("choices")
    if not isinstance(choices, list) or not choices:
        raise WorkerFailed("the answer has no choices")
    if kind is Kind.CHAT:
        answer |= {
            "object": "chat.completion.chunk",
            "choices": [_as_delta(choice) for choice in choices],
        }
    return b"data: %b\n\n" % text_parser.written_answer(answer) + DONE


def _as_delta(choice: object) -> dict[str, object]:
    message = choice.get("message") if isinstance(choice, dict) else None
    if not isinstance(choice, dict) or not isinstance(message, dict):
        raise WorkerFailed("a choice of the answer has no message")
    rest = {name: value for name, value in choice.items() if name != "message"}
    return {**rest, "delta": {**message, **_numbered(message.get("tool_calls"))}}


def _numbered(calls: object) -> dict[str, object]:
    if not isinstance(calls, list):
        return {}
    return {
        "tool_calls": [
            {"index": index, **call} for index, call in enumerate(calls) if isinstance(call, dict)
        ]
    }


async def _rename_models(
    exchange: Exchange, splitter: Splitter, name: str, left: bytes
) -> AsyncGenerator[bytes, None]:
    chunks = exchange.rest(0)
    chunk = left or await anext(chunks, b"")
    while chunk:
        for start in range(0, len(chunk), _LOOKED_AT_ONCE):
            try:
                events = splitter.feed(chunk[start : start + _LOOKED_AT_ONCE])
            except EventTooLarge as error:
                raise exchange.mark_broken(str(error)) from error
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
    payload = parse_json(event.data)
    if not isinstance(payload, dict) or not isinstance(payload.get("model"), str):
        return event.raw
    return with_data(event, splice_model(event.data, name))


_LISTS = ("results", "data", "rankings")
_SCORES = ("relevance_score", "score")


def read_ranking(request: Request) -> Rerank | None:
    """Return the texts to be ranked; `None` if there are not only texts, or the request is left to the worker to refuse."""
    try:
        return read_rerank(request)
    except BadRequest:
        return None


def ranking_body(body: bytes, wanted: Rerank) -> bytes:
    """Return a body whose documents are strings: some workers accept no objects."""
    fields = parse_json_object(body)
    if fields.get("documents") == list(wanted.documents):
        return body
    return orjson.dumps({**fields, "documents": wanted.documents})


def to_common_ranking(body: bytes, wanted: Rerank, *, id_: str, name: str) -> bytes:
    """Return an answer in the common form; raise `WorkerFailed` for a failure with a success status, or JSON too deep."""
    parse_success(body)
    said = parse_json(body)
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
    return written_answer({**beside, **lacking, "model": name, "results": best})


def _row(row: object, rerank: Rerank) -> dict[str, Any] | None:
    match row:
        case {"index": int(index), **rest} if 0 <= index < len(rerank.documents):
            pass
        case _:
            return None
    score = next((rest[key] for key in _SCORES if isinstance(rest.get(key), int | float)), None)
    if score is None:
        return None
    extra = {str(key): value for key, value in rest.items() if key not in (*_SCORES, "document")}
    text = {"document": {"text": rerank.documents[index]}} if rerank.with_documents else {}
    return {"index": index, "relevance_score": score, **text, **extra}


def _usage(rerank: Rerank) -> dict[str, object]:
    texts = (rerank.query, *rerank.documents)
    tokens = sum(estimated_tokens(len(text.encode(errors="replace"))) for text in texts)
    return {"prompt_tokens": tokens, "total_tokens": tokens, "estimated": True}
