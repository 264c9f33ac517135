"""Laws of an exchange with a worker; the timeouts are tested in `dialects/test_openai_http.py`."""

import asyncio
from types import SimpleNamespace

import pytest

from router.answer import NOTHING
from router.dialects.openai_http import create
from router.errors import AnswerBroken, WorkerFailed
from router.http.exchange import Exchange
from router.http.reply import Reply
from router.http.timers import Timers
from router.requests import Kind
from tests.router.world import QUICK, chat, links, own, whole
from tests.workers.raw import raw, take


@pytest.mark.parametrize(
    ("head", "why"),
    [
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 1\r\n\r\n", "Content-Length can't"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\n", "Duplicate Content-Length"),
        (b"HTTP/1.1 101 X\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n", "another protocol"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n", "encoding that was not requested"),
        (b"220 mail\r\n", "Expected HTTP/"),
    ],
)  # fmt: skip
async def test_the_error_for_an_answer_that_breaks_http_names_the_rule(
    head: bytes, why: str
) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await take(reader)
        writer.write(head)

    async with links(QUICK) as own_links, raw(serve) as url:
        with pytest.raises(WorkerFailed, match=why):
            await create(own_links).answer(chat(), own(url)).__aenter__()


async def test_the_rest_of_a_complete_answer_is_empty_however_often_it_is_read() -> None:
    for _ in range(2):
        assert [chunk async for chunk in NOTHING] == []


async def test_an_answer_leaves_no_timer_however_often_its_rest_is_requested() -> None:
    timers = Timers()
    source = SimpleNamespace(loop=timers.loop, can_run_inline=False, abort=lambda: None)
    exchange = Exchange(Reply(source), QUICK, timers.loop.time() + 60, timers)
    for _ in range(2):
        exchange.rest(0)
    assert timers.waiting() == [exchange]
    exchange.close()
    assert timers.waiting() == []


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
    async with links(settings) as own_links, raw(serve) as url:
        async with create(own_links).answer(chat(kind=Kind.SPEECH), own(url)) as answer:
            with pytest.raises(AnswerBroken, match="max_answer_bytes"):
                await whole(answer)
        async with create(own_links).answer(chat(stream=True), own(url)) as answer:
            assert len(await whole(answer)) > 300_000
