"""Streams that are not passed on as they are: of a server that gives them no type, or does not stream at all."""

import asyncio
import gzip
from codecs import BOM_UTF8
from collections.abc import AsyncIterator

import orjson
import pytest

from router.answer import Answer
from router.dialects import Dialect
from router.dialects.openai_http import create
from router.dialects.openai_http.answers import stream_from_answer
from router.errors import WorkerFailed
from router.openai.text_parser import TextEvent, TextStreamParser, parse_answer
from router.openai.usage import Usage
from router.requests import Kind
from tests.router.world import chat, links, own
from tests.router.world import whole as read
from tests.workers.raw import raw, take

STREAM = (
    b'data: {"model":"llama","choices":[{"index":0,"delta":{"content":"hi"},"finish_reason":"stop"}]}\n\n'
    b"data: [DONE]\n\n"
)
CHAT = {
    "id": "c",
    "object": "chat.completion",
    "model": "llama",
    "choices": [
        {"index": 0, "message": {"role": "assistant", "content": "hi", "reasoning_content": "hm"}, "finish_reason": "stop"}
    ],
    "usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5},
}  # fmt: skip
CALLS = {
    "choices": [
        {
            "message": {
                "tool_calls": [
                    {"id": "a", "function": {"name": "f", "arguments": "{}"}},
                    {"id": "b", "function": {"name": "g", "arguments": "{}"}},
                ]
            },
            "finish_reason": "tool_calls",
        }
    ]
}
COMPLETION = {
    "object": "text_completion",
    "choices": [{"index": 0, "text": "hi", "finish_reason": "length"}],
}


@pytest.fixture
async def dialect() -> AsyncIterator[Dialect]:
    async with links() as own_links:
        yield create(own_links)


async def ask(
    dialect: Dialect, head: bytes, body: bytes, *, stream: bool = True, kind: Kind = Kind.CHAT
) -> tuple[Answer, bytes]:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await take(reader)
        writer.write(b"HTTP/1.1 200 OK\r\n%bContent-Length: %d\r\n\r\n%b" % (head, len(body), body))

    async with (
        raw(serve) as url,
        dialect.answer(chat(stream=stream, kind=kind), own(url)) as answer,
    ):
        return answer, await read(answer)


def events(stream: bytes) -> list[TextEvent]:
    ear = TextStreamParser(max_event_bytes=len(stream))
    text_events = [*ear.feed(stream), *ear.finish()]
    assert ear.ended
    return text_events


JSON = b"Content-Type: application/json\r\n"
HTML = b"Content-Type: text/html\r\n"


@pytest.mark.parametrize("head", [b"", b"Content-Type: text/plain; charset=utf-8\r\n", JSON])
async def test_a_stream_without_its_type_is_a_stream(dialect: Dialect, head: bytes) -> None:
    answer, body = await ask(dialect, head, STREAM)
    assert (answer.streamed, body) == (True, STREAM)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_page_is_no_answer(dialect: Dialect, *, stream: bool) -> None:
    with pytest.raises(WorkerFailed):
        await ask(dialect, HTML, b"<html>Sign in</html>", stream=stream)


@pytest.mark.parametrize("kind", [Kind.CHAT, Kind.COMPLETION, Kind.EMBEDDING, Kind.RERANK])
@pytest.mark.parametrize("head", [b"", HTML, b"Content-Type: text/plain; charset=utf-8\r\n"])
async def test_json_without_its_type_is_json(dialect: Dialect, head: bytes, kind: Kind) -> None:
    sent = orjson.dumps(CHAT | {"model": "other", "data": []})
    answer, body = await ask(dialect, head, b" \r\n" + sent, stream=False, kind=kind)
    assert (answer.content_type, orjson.loads(body)["model"]) == ("application/json", "llama")
    assert answer.usage == Usage(3, 2)


async def test_an_error_without_the_type_of_json_is_a_failure(dialect: Dialect) -> None:
    with pytest.raises(WorkerFailed, match="error with a success status"):
        await ask(dialect, HTML, b'{"error":"out of memory"}', stream=False)


async def test_embeddings_as_bytes_are_no_json(dialect: Dialect) -> None:
    head = b"Content-Type: application/octet-stream\r\n"
    answer, body = await ask(dialect, head, b"{\0\0\0", stream=False, kind=Kind.EMBEDDING)
    assert (answer.content_type, body) == ("application/octet-stream", b"{\0\0\0")


@pytest.mark.parametrize("kind", [Kind.CHAT, Kind.EMBEDDING])
async def test_an_answer_begins_without_a_byte_order_mark(dialect: Dialect, kind: Kind) -> None:
    sent = orjson.dumps(CHAT)
    _, body = await ask(dialect, JSON, BOM_UTF8 + sent, stream=False, kind=kind)
    assert body == sent


@pytest.mark.parametrize("head", [b"Content-Type: text/event-stream\r\n", b"", JSON])
async def test_a_stream_that_was_not_requested_is_a_failure(dialect: Dialect, head: bytes) -> None:
    with pytest.raises(WorkerFailed, match="no stream was requested"):
        await ask(dialect, head, STREAM, stream=False)


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_called_json_that_never_comes_breaks_off(
    dialect: Dialect, *, stream: bool
) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await take(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n%b\r\n" % JSON)

    async with raw(serve) as url:
        with pytest.raises(WorkerFailed):
            await dialect.answer(chat(stream=stream), own(url)).__aenter__()


async def test_a_stream_of_another_name_or_a_comment_that_is_called_json_is_a_stream(
    dialect: Dialect,
) -> None:
    answer, body = await ask(dialect, JSON, b": hello\n\n" + STREAM.replace(b'"llama"', b'"other"'))
    assert (answer.streamed, body) == (True, b": hello\n\n" + STREAM)


@pytest.mark.parametrize("head", [JSON + b"Content-Encoding: gzip\r\n", JSON, b""])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_compressed_answer_is_a_failure_that_says_so(
    dialect: Dialect, head: bytes, *, stream: bool
) -> None:
    with pytest.raises(WorkerFailed, match="compressed its answer"):
        await ask(dialect, head, gzip.compress(orjson.dumps(CHAT)), stream=stream)


@pytest.mark.parametrize("head", [JSON, HTML, b""])
async def test_an_answer_in_one_piece_becomes_the_stream_that_was_requested(
    dialect: Dialect, head: bytes
) -> None:
    answer, body = await ask(dialect, head, orjson.dumps(CHAT))
    # Its usage is counted as it passes.
    assert (answer.streamed, answer.length, answer.usage) == (True, len(body), None)
    assert b'"object":"chat.completion.chunk"' in body
    assert set(events(body)) == set(parse_answer(Kind.CHAT, orjson.dumps(CHAT)))


@pytest.mark.parametrize(("kind", "said"), [(Kind.CHAT, CALLS), (Kind.COMPLETION, COMPLETION)])
def test_a_stream_says_all_that_the_answer_says(kind: Kind, said: dict[str, object]) -> None:
    body = orjson.dumps(said)
    assert events(stream_from_answer(kind, body)) == parse_answer(kind, body)


@pytest.mark.parametrize("said", [b"[]", b"{}", b'{"choices":[]}', b'{"choices":[{"text":"hi"}]}'])
def test_an_answer_that_is_no_chat_is_a_failure(said: bytes) -> None:
    with pytest.raises(WorkerFailed):
        stream_from_answer(Kind.CHAT, said)
