"""A worker's answer passed on verbatim: real exchanges over loopback, in a protocol whose texts end at "."."""

import asyncio
import re

import pytest
from yarl import URL

from router.answer import Answer
from router.errors import AnswerBroken, WorkerError, WorkerFailed, WorkerRejected
from router.http.exchange import Call, Exchange, SentCall
from router.http.heads import request_head
from router.http.pool import request_start
from router.http.verbatim import PassThrough, Streamed, read
from router.openai.usage import Usage, UsageFormat
from router.translate.verbatim import TGI, Verbatim
from tests.router.world import QUICK, links, whole
from tests.workers.raw import raw, take

SAID = Verbatim(TGI, "say", b"please")


def event(data: bytes) -> None:
    if data == b"!":
        raise WorkerFailed("it failed")


def spent(body: bytes, answer: bytes, header) -> Usage:
    if answer == b"!":
        raise WorkerFailed("it failed")
    return Usage(int(header("x-prompt-tokens") or len(body)), len(answer))


TELLS = UsageFormat(b"tokens", lambda _: None)
PASSING = PassThrough(
    calls=frozenset({"say"}),
    addressed=lambda body, _: body,
    whole=spent,
    streamed=Streamed(event=event, over=re.compile(rb"\.\n"), usage_format=lambda _: TELLS),
)


async def tell(*chunks: bytes, status: str = "200 OK", more: str = "", streams: bool = True):
    """Have a worker send `chunks` and hang up; return the answer and the bytes that the caller gets."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await take(reader)
        writer.write(f"HTTP/1.1 {status}\r\nconnection: close\r\n{more}\r\n".encode())
        for chunk in chunks:
            writer.write(chunk)
            await writer.drain()
        writer.close()

    async def look(exchange: Exchange) -> Answer:
        return await read(exchange, PASSING, SAID, streams=streams, max_event_bytes=64)

    async with raw(serve) as url, links() as own_links:
        pool = own_links.workers.pool_for(URL(url))
        call = Call(pool, request_head(request_start(URL(url)), {}, 0), b"")
        async with SentCall(call, QUICK, own_links.deadlines, look) as answer:
            return answer, await whole(answer)


EVENTS = "content-type: text/event-stream\r\n"
JSON = "content-type: application/json\r\n"


@pytest.mark.parametrize(
    "chunks",
    [
        (b": wait\n\n", b"data: a\n\nda", b"ta: b\n\n", b"data:.\n\n"),
        (b"data: a\r\n\r\ndata: b\r\n\r\ndata: .\n\n",),
        (b"data: a\n", b"\ndata: .", b"\n", b"\n"),
    ],
)
async def test_a_stream_is_passed_on_unchanged(chunks):
    answer, body = await tell(*chunks, more=EVENTS)
    assert body == b"".join(chunks)
    assert (answer.verbatim, answer.streamed, answer.usage_format) == (TGI, True, TELLS)


async def test_a_whole_answer_is_passed_on_with_the_headers_of_its_protocol_only():
    more = f"{JSON}x-prompt-tokens: 5\r\nx-secret: 1\r\ncontent-length: 3\r\n"
    answer, body = await tell(b"abc", more=more, streams=False)
    assert (body, answer.length, answer.usage) == (b"abc", 3, Usage(5, 3))
    assert (answer.verbatim, answer.headers) == (TGI, {"x-prompt-tokens": "5"})


async def test_a_stream_that_ends_before_its_text_is_broken():
    with pytest.raises(AnswerBroken):
        await tell(b"data: a\n\n", b"data: b\n\n", more=EVENTS)


@pytest.mark.parametrize(
    ("said", "more", "streams"),
    [
        (b"data: !\n\n", EVENTS, True),
        (b"", EVENTS, True),
        (b": nothing\n\n", EVENTS, True),
        (b"data: " + b"x" * 99 + b"\n\n", EVENTS, True),
        (b"data: a\n\ndata: .\n\n", EVENTS, False),
        (b"abc", JSON, True),
        (b"!", JSON, False),
        (b"", JSON, False),
    ],
    ids=["failure", "empty", "silent", "too long", "streamed", "whole", "failed", "nothing"],
)
async def test_bytes_that_are_no_answer_are_a_failed_attempt(said, more, streams):
    with pytest.raises(WorkerFailed):
        await tell(said, more=more, streams=streams)


async def test_a_status_has_its_usual_meaning():
    with pytest.raises(WorkerRejected):
        await tell(b"no", status="422 No", more=JSON)
    with pytest.raises(WorkerError):
        await tell(b"no", status="500 No", more=JSON, streams=False)
