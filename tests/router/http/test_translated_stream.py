"""Translation of a worker's event stream as it comes: a real exchange over loopback, with a text that ends at "."."""

import asyncio

import orjson
import pytest
from yarl import URL

from router.answer import Answer
from router.errors import (
    AnswerBroken,
    WorkerBusy,
    WorkerError,
    WorkerFailed,
    WorkerLoading,
    WorkerRejected,
    WorkerUnreachable,
)
from router.http.exchange import Call, Exchange, SentCall
from router.http.heads import request_head
from router.http.pool import request_start
from router.http.translated_stream import begin_answer, check_status
from router.openai.text_writer import Delta, End, Event, TextForm, ToolCall
from router.requests import Kind
from tests.router.world import QUICK, links, whole
from tests.workers.raw import raw, take

FORM = TextForm("x", 1, "m", Kind.CHAT)


class Words:
    """Translator that reads each event as a text, `call` as a tool call, and `!` as a failure."""

    ended = False

    def feed(self, data: bytes) -> list[Event]:
        if data == b"!":
            raise WorkerFailed("it failed")
        if data == b"call":
            return [ToolCall("c", "look", "{}")]
        self.ended = data == b"."
        return [End("stop")] if self.ended else [Delta(data.decode())]

    def finish(self) -> list[Event]:
        return []


async def tell(
    *chunks: bytes, status: bytes = b"200 OK", more: bytes = b""
) -> tuple[Answer, bytes]:
    """Have a worker send `chunks` and hang up; return the answer and the bytes that the caller gets."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await take(reader)
        head = b"HTTP/1.1 %b\r\ncontent-type: text/event-stream\r\nconnection: close\r\n%b\r\n"
        writer.write(head % (status, more))
        for chunk in chunks:
            writer.write(chunk)
            await writer.drain()

    async def read(exchange: Exchange) -> Answer:
        await check_status(exchange)
        return await begin_answer(exchange, Words(), FORM, 64)

    async with raw(serve) as url, links() as own_links:
        address = URL(url)
        call = Call(
            own_links.workers.pool_for(address), request_head(request_start(address), {}, 2), b"{}"
        )
        async with SentCall(call, QUICK, own_links.deadlines, read) as answer:
            return answer, await whole(answer)


async def test_events_are_translated_until_the_text_ends() -> None:
    _, body = await tell(b": silence\n\ndata: a\n\ndata: b\n\nda", b"ta: .\n\ndata: more\n\n")
    *events, done, _ = body.split(b"\n\n")
    [role, a, b, end] = [orjson.loads(event[6:])["choices"][0] for event in events]
    assert (done, role["delta"]["role"]) == (b"data: [DONE]", "assistant")
    assert (a["delta"], b["delta"]) == ({"content": "a"}, {"content": "b"})
    assert end["finish_reason"] == "stop"


async def test_calls_of_tools_are_numbered() -> None:
    _, body = await tell(b"data: call\n\ndata: call\n\ndata: .\n\n")
    calls = [orjson.loads(event[6:])["choices"][0] for event in body.split(b"\n\n")[1:3]]
    assert [call["delta"]["tool_calls"][0]["index"] for call in calls] == [0, 1]


@pytest.mark.parametrize(
    "said", [b"data: !\n\n", b": nothing\n\n", b"data: " + b"x" * 99, b""], ids=str
)
async def test_a_stream_that_fails_first_is_a_failed_attempt(said: bytes) -> None:
    with pytest.raises(WorkerFailed):
        await tell(said)


@pytest.mark.parametrize("last", [b"data: !\n\n", b""])
async def test_a_stream_that_fails_later_is_broken(last: bytes) -> None:
    with pytest.raises(AnswerBroken):
        await tell(b"data: a\n\n", last)


@pytest.mark.parametrize(
    ("status", "body", "error"),
    [
        (b"400 Bad", b"no", WorkerRejected),
        (b"406 Not Acceptable", b"no", WorkerRejected),
        (b"422 No", b"no", WorkerRejected),
        (b"404 Not Found", b"", WorkerFailed),
        (b"429 Slow", b"", WorkerBusy),
        (b"500 Oh", b"", WorkerFailed),
        (b"503 No", b"", WorkerFailed),
        (b"503 No", b"overloaded", WorkerBusy),
        (b"503 No", b"loading the model", WorkerLoading),
        (b"503 No", b"no healthy upstream", WorkerUnreachable),
    ],
)
async def test_the_status_decides_the_outcome_of_the_attempt(
    status: bytes, body: bytes, error: type[WorkerError]
) -> None:
    with pytest.raises(error) as failed:
        await tell(body, status=status)
    match failed.value:
        case WorkerRejected(status=seen, body=refusal):
            assert (seen, refusal) == (400, body)


async def test_a_503_with_retry_after_means_busy() -> None:
    with pytest.raises(WorkerBusy) as busy:
        await tell(status=b"503 No", more=b"retry-after: 7\r\n")
    assert busy.value.retry_after == 7
