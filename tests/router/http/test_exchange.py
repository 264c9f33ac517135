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
from tests.router.http import dictated
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


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
@pytest.mark.parametrize("model", [b"llama", b"another"])
@pytest.mark.parametrize("step", [5, 1000])
async def test_a_stream_is_over_at_its_last_event_though_its_worker_keeps_it_open(
    end: bytes, model: bytes, step: int
) -> None:
    release = asyncio.Event()
    stream = end.join([b'data: {"model":"%b"}' % model, b"", b"data: [DONE]", b"", b""])

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await take(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n")
        for start in range(0, len(stream), step):
            writer.write(stream[start : start + step])
            await asyncio.sleep(0)
        await release.wait()

    async with links(QUICK) as own_links, raw(serve) as url:
        async with create(own_links).answer(chat(stream=True), own(url)) as answer:
            assert await whole(answer) == stream.replace(b"another", b"llama")
        assert answer.broken is None
        release.set()


ENDED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\ne\r\ndata: [DONE]\n\n\r\n"


async def ended_stream() -> tuple[dictated.Exchange, Exchange]:
    """Return the connection and the exchange of a stream whose reader has left at its `[DONE]`."""
    line = dictated.Exchange()
    await line.ask()
    line.say(ENDED)
    timers = Timers()
    exchange = Exchange(await line.asking, QUICK, timers.loop.time() + 60, timers)
    exchange.end_at_done()
    assert await exchange.read_some() == b"data: [DONE]\n\n"
    assert await exchange.read_some() == b""
    exchange.close()
    assert timers.waiting() == [exchange]
    return line, exchange


async def test_a_connection_whose_stream_ends_soon_behind_its_last_event_is_used_again() -> None:
    line, exchange = await ended_stream()
    line.say(b"0\r\n\r\n")
    exchange.fire()
    assert (line.pool.freed, line.wire.closed) == (1, False)


async def test_a_connection_whose_stream_stays_open_behind_its_last_event_is_cut() -> None:
    line, exchange = await ended_stream()
    assert not line.wire.closed
    exchange.fire()
    assert (line.pool.freed, line.wire.closed) == (0, True)
