"""Laws of putting a request to a worker; the budgets are held to in `dialects/test_openai_http.py`."""

import asyncio
from dataclasses import replace

import pytest

from registry.records import Service
from router.dialects.openai_http import create
from router.errors import AnswerBroken
from router.http.connection import request_head
from router.http.exchange import NOTHING, head_to, headers_to, lines_of, retry_after
from router.requests import Kind, PassedHeaders, Request
from router.workers import Worker
from tests.router.world import QUICK, chat, links, own, whole
from tests.workers.raw import raw, take


def test_only_headers_on_the_list_travel() -> None:
    passed = {
        "accept": "a/b",
        "traceparent": "00-1",
        "tracestate": "k=v",
        "x-modelvine-via": "a, b",
        "authorization": "Bearer k",
        "cookie": "c=1",
        "x-api-key": "k",
        "proxy-authorization": "k",
        "x-forwarded-for": "192.0.2.1",
        "host": "h",
        "transfer-encoding": "chunked",
    }
    request = Request("r-1", Kind.CHAT, "m", b"", "application/json", passed=PassedHeaders(passed))
    assert lines_of(request).split("\r\n") == [
        "Content-Type: application/json",
        "X-Request-Id: r-1",
        "accept: a/b",
        "traceparent: 00-1",
        "tracestate: k=v",
        "x-modelvine-via: a, b",
        "",
    ]
    with pytest.raises(ValueError, match="line break"):
        lines_of(replace(request, id="r-1\r\nx: y"))


def test_what_the_operator_said_of_a_worker_wins_over_what_its_caller_said() -> None:
    passed = {"tracestate": "a=b", "authorization": "Bearer caller"}
    request = Request("r-1", Kind.CHAT, "m", b"", "application/json", passed=PassedHeaders(passed))
    worker = Worker(
        Service("p", "m"),
        "http://w",
        headers=(("tracestate", "c=d"), ("authorization", "Bearer ours")),
    )
    ours = {"Content-Type": "application/json", "X-Request-Id": "r-1", **dict(worker.headers)}
    assert headers_to(worker, request) == ours
    assert head_to(worker, request, b"", 0) == request_head(b"", ours, 0)
    theirs = replace(worker, headers=())
    assert head_to(theirs, request, b"", 0) == request_head(b"", headers_to(theirs, request), 0)


@pytest.mark.parametrize(
    ("said", "seconds"),
    [
        ("7", 7.0),
        ("0.5", 0.5),
        ("99999999", 3600.0),
        ("Sat, 21 Nov 2026 12:00:30 GMT", 30.0),
        ("Sat, 21 Nov 2026 11:00:00 GMT", 0.0),
        ("-1", None),
        ("nan", None),
        ("soon", None),
        ("", None),
        ("Sat, 99 Nov 2026 12:00:30 GMT", None),
    ],
)
def test_how_long_to_wait_is_said_in_seconds_or_by_a_date(said: str, seconds: float | None) -> None:
    assert retry_after(said, 1795262400.0) == seconds


async def test_the_rest_of_a_complete_answer_is_nothing_however_often_it_is_read() -> None:
    for _ in range(2):
        assert [chunk async for chunk in NOTHING] == []


async def test_an_answer_of_unknown_length_breaks_off_at_the_limit_and_a_stream_never_does() -> (
    None
):
    kinds = [b"audio/wav", b"text/event-stream"]

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await take(reader)
        event = b'data: {"model":"llama","x":"%b"}\n\n' % (b"x" * 10_000)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: %b\r\n\r\n" % kinds.pop(0) + event * 30)
        writer.close()

    settings = QUICK.model_copy(update={"max_answer_bytes": 150_000})
    async with links(settings) as ours, raw(serve) as url:
        async with create(ours).answer(chat(), own(url)) as answer:
            with pytest.raises(AnswerBroken, match="max_answer_bytes"):
                await whole(answer)
        async with create(ours).answer(chat(stream=True), own(url)) as answer:
            assert len(await whole(answer)) > 300_000
