"""Laws of one HTTP/1.1 exchange: independent of how bytes are split, and bounded whatever the server does."""

import asyncio
import socket
import subprocess
import sys
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import pytest
import uvloop
from hypothesis import given
from hypothesis import strategies as st
from yarl import URL

from router.http.answer_headers import AnswerHeaders, facts_of
from router.http.connection import HEAD_BYTES, Connection
from router.http.dial import tcp_dialer
from router.http.errors import HungUp, NotHttp
from router.http.heads import PARSED, request_head
from router.http.pool import ConnectionPool, request_start
from router.http.reply import FULL_BYTES
from tests.garbage import living, uncollected
from tests.router.http.dictated import BODY, HEAD, Exchange, Wire, split
from tests.router.world import QUICK, until
from tests.workers.raw import Serve, raw, take

CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"

ANSWERS = (
    (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", 200, b"hello"),
    (CHUNKED + b"2\r\nhe\r\n3;x=y\r\nllo\r\n0\r\nX-Trailer: 1\r\n\r\n", 200, b"hello"),
    (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Hints\r\nA: b\r\n\r\nHTTP/1.1 429 No\r\nContent-Length: 0\r\n\r\n", 429, b""),
    (b"HTTP/1.1 204 Nothing\r\n\r\n", 204, b""),
    (b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 1\r\n\r\nx", 200, b"x"),
)  # fmt: skip


@given(answer=st.sampled_from(ANSWERS), cuts=st.lists(st.integers(0, 200), max_size=8))
def test_an_answer_is_the_same_however_its_bytes_are_split(
    answer: tuple[bytes, int, bytes], cuts: list[int]
) -> None:
    async def once() -> None:
        exchange = Exchange()
        await exchange.ask()
        exchange.say(*split(answer[0], cuts))
        assert await exchange.whole() == answer[1:]
        assert exchange.wire.written == HEAD + BODY

    asyncio.run(once())


ID = b"x-request-id: %032x\r\n"
DATE = b"Date: Sun, 29 Nov 2026 16:21:%02d GMT\r\n"
LIKE_BEFORE = (
    b"HTTP/1.1 200 OK\r\n" + ID + b"Server: s\r\n%bContent-Length: %d\r\n" + DATE + b"\r\n%b"
)
LOAD = b"x-modelvine-load: in_flight=%d\r\n"
TOLD = LOAD + b"x-modelvine-service-time: fixed=%d.0\r\n"
AGAIN = LIKE_BEFORE % (99, TOLD % (1, 2), 5, 59, b"hello")
PUT = st.one_of(
    st.binary(max_size=4),
    st.sampled_from([b"\r\n", b"0", b"1", b"-", b"A", b"\r\n\r\n", b"Content-Length: 5\r\n", b"Connection: close\r\n"]),
    st.sampled_from([ID % 7, AGAIN, LOAD % 3, (LOAD % 3).upper(), TOLD % (4, 5), b"\r\n "]),
)  # fmt: skip
TELLINGS = (b"", LOAD % 7, TOLD % (8, 9))


@given(
    st.sampled_from(TELLINGS),
    st.lists(st.tuples(st.integers(0, len(AGAIN)), st.integers(0, 3), PUT), max_size=2),
    st.lists(st.integers(0, 200), max_size=2),
)
def test_an_answer_like_those_before_is_read_as_on_a_new_connection(told, changes, cuts) -> None:
    data = AGAIN
    for offset, length, put in changes:
        data = data[:offset] + put + data[offset + length :]

    async def outcome(exchange: Exchange) -> tuple[object, ...]:
        before = exchange.pool.freed
        await exchange.ask()
        exchange.say(*(split(data, cuts) if data else ()))
        if not exchange.wire.closed:
            exchange.connection.connection_lost(None)
        try:
            status, body = await exchange.whole()
            reply = await exchange.asking
            # These headers are not read: the length of an answer is in `length`.
            unread = ("content-length", "x-request-id", "date")
            headers = reply.length, {n: v for n, v in reply.headers.items() if n not in unread}
        except (HungUp, NotHttp) as error:
            return str(error), exchange.pool.freed - before
        return status, body, headers, exchange.pool.freed - before

    async def once() -> None:
        used, new = Exchange(), Exchange()
        for size in (5, 12, 0, 3):
            await used.ask()
            used.say(LIKE_BEFORE % (size, told, size, size, b"x" * size))
            assert await used.whole() == (200, b"x" * size)
        assert used.pool.freed == 4
        assert await outcome(used) == await outcome(new)

    asyncio.run(once())


async def parsed_of(exchange: Exchange, answers: Iterable[bytes]) -> list[bytes]:
    """Take these answers over one connection; return those whose heads were parsed."""
    parser, parsed = exchange.connection._parser, list[bytes]()

    class Counting:
        def feed_data(self, data: bytes) -> None:
            parsed.append(bytes(data))
            parser.feed_data(data)

        def __getattr__(self, name: str) -> Any:
            return getattr(parser, name)

    exchange.connection._parser = Counting()
    for answer in answers:
        await exchange.ask()
        exchange.say(answer)
        assert (await exchange.whole())[0] == 200
    return parsed


PLACES = (
    b"HTTP/1.1 200 OK\r\n" + DATE + b"Content-Length: 0\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n" + DATE.replace(b"Date", b"date") + b"A: b\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nX-Request-Id: " + b"0" * 32 + b"\r\n" + DATE + b"Content-Length: 0\r\n\r\n",
)  # fmt: skip


@pytest.mark.parametrize("place", PLACES)
async def test_an_answer_that_differs_only_in_its_date_is_not_parsed_again(place: bytes) -> None:
    answers = [place % second for second in range(60)]
    assert await parsed_of(Exchange(), answers) == answers[:1]
    odd = answers[0].replace(b"Sun, 29", b"2026-11-29")
    assert await parsed_of(Exchange(), [*answers, odd]) == [answers[0], odd]


async def test_heads_that_are_never_alike_are_remembered_now_and_then() -> None:
    unlike = [
        b"HTTP/1.1 200 OK\r\nA: %d\r\nContent-Length: 0\r\n\r\n" % n for n in range(PARSED + 3)
    ]
    alike = [b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"] * 9
    assert await parsed_of(Exchange(), unlike[:3] + alike) == unlike[:3] + alike
    assert await parsed_of(Exchange(), unlike + alike) == unlike + alike[:1]


async def test_load_headers_are_those_of_each_answer() -> None:
    exchange = Exchange()
    load_lines = [b"", TOLD % (1, 2), TOLD % (3, 4), b"", LOAD % 5, TOLD % (6, 7), b""]
    reported = []
    for lines in load_lines:
        await exchange.ask()
        exchange.say(LIKE_BEFORE % (1, lines, 1, 0, b"x"))
        assert await exchange.whole() == (200, b"x")
        headers = (await exchange.asking).headers
        assert headers["server"] == "s"
        assert facts_of(headers).content_type == "application/octet-stream"
        reported.append(
            [value for name, value in headers.items() if name.startswith("x-modelvine")]
        )
    assert reported == [
        [],
        ["in_flight=1", "fixed=2.0"],
        ["in_flight=3", "fixed=4.0"],
        [],
        ["in_flight=5"],
        ["in_flight=6", "fixed=7.0"],
        [],
    ]


@pytest.mark.parametrize("body", [LOAD % 1 + b"hello", b"\r\n" + LOAD % 1 + b"hello"])
@pytest.mark.parametrize("cut", [0, len(LOAD % 1)])
async def test_load_headers_in_a_body_are_part_of_the_body(body: bytes, cut: int) -> None:
    exchange = Exchange()
    await exchange.ask()
    exchange.say(LIKE_BEFORE % (1, LOAD % 2, 1, 0, b"x"))
    assert await exchange.whole() == (200, b"x")
    await exchange.ask()
    exchange.say(LIKE_BEFORE % (1, b"", len(body) - cut, 0, body))
    assert await exchange.whole() == (200, body[: len(body) - cut])


async def test_an_answer_without_a_length_ends_with_its_connection() -> None:
    exchange = Exchange()
    await exchange.ask()
    exchange.say(b"HTTP/1.1 200 OK\r\n\r\nhel", b"lo")
    assert exchange.pool.freed == 0
    exchange.connection.connection_lost(None)
    assert await exchange.whole() == (200, b"hello")


@pytest.mark.parametrize(
    "said",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhello",
        CHUNKED + b"5\r\nhello\r\n",
    ],
)
async def test_half_an_answer_is_broken(said: bytes) -> None:
    exchange = Exchange()
    await exchange.ask()
    exchange.say(said)
    exchange.connection.connection_lost(None)
    with pytest.raises(HungUp) as broken:
        await exchange.whole()
    assert not broken.value.untouched


class NotingWire(Wire):
    """A transport whose socket notes the options that are set on it."""

    def __init__(self) -> None:
        super().__init__()
        self.options: list[tuple[int, int]] = []

    def get_extra_info(self, name: str, default: object = None) -> object:
        return self if name == "socket" else default

    def setsockopt(self, level: int, option: int, _: int) -> None:
        self.options.append((level, option))


@pytest.mark.parametrize("parts", [1, 2, 9])
async def test_the_first_part_of_an_answer_is_acknowledged_as_soon_as_it_is_read(
    parts: int,
) -> None:
    exchange, wire = Exchange(), NotingWire()
    exchange.connection.connection_made(wire)
    for answer, status, body in ANSWERS[:2]:
        wire.options.clear()
        await exchange.ask()
        exchange.say(*split(answer, [len(answer) * part // parts for part in range(parts)]))
        assert await exchange.whole() == (status, body)
        assert wire.options == [(socket.IPPROTO_TCP, socket.TCP_QUICKACK)] * (parts > 1)


async def test_a_connection_is_reused_only_after_a_whole_answer_that_allows_it() -> None:
    for answer, status, _ in ANSWERS:
        exchange = Exchange()
        await exchange.ask()
        exchange.say(answer)
        await exchange.whole()
        assert exchange.pool.freed == (b"close" not in answer), status


async def test_a_connection_is_not_reused_after_status_500() -> None:
    for status, again in ((500, False), (503, True), (404, True)):
        exchange = Exchange()
        await exchange.ask()
        exchange.say(b"HTTP/1.1 %d No\r\nContent-Length: 2\r\n\r\nno" % status)
        assert await exchange.whole() == (status, b"no")
        assert exchange.pool.freed == again


@pytest.mark.parametrize(
    "more", [b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nbad", b"x", b"\x00" * 100]
)
async def test_surplus_bytes_after_an_answer_end_the_connection_and_are_not_passed_on(
    more: bytes,
) -> None:
    exchange = Exchange()
    await exchange.ask()
    exchange.say(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\ngood" + more)
    assert await exchange.whole() == (200, b"good")
    assert exchange.wire.closed


async def test_bytes_on_an_idle_connection_end_it() -> None:
    exchange = Exchange()
    exchange.say(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nbad")
    assert exchange.wire.closed


@pytest.mark.parametrize(
    ("begun", "again"),
    [
        (b"HTTP/1.1 200 OK\r\n", b"X: x\r\n" * 100),
        (b"HTTP/1.1 200 OK\r\nX: ", b"x" * 1000),
        (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
        (CHUNKED + b"1;", b"x" * 1000),
        (CHUNKED + b"0\r\n", b"X: x\r\n" * 100),
        (b"HTTP/1.1 ", b"2" * 1000),
    ],
)
async def test_a_head_or_trailer_without_end_is_cut_off_at_the_limit(
    begun: bytes, again: bytes
) -> None:
    exchange = Exchange()
    await exchange.ask()
    exchange.say(begun)
    sent = 0
    while not exchange.wire.closed and sent < 4 * HEAD_BYTES:
        exchange.say(again)
        sent += len(again)
    assert sent <= HEAD_BYTES + len(again)
    with pytest.raises(NotHttp):
        await exchange.whole()


async def test_the_socket_is_not_read_while_the_answer_is_not_read() -> None:
    exchange = Exchange()
    await exchange.ask()
    exchange.say(b"HTTP/1.1 200 OK\r\nContent-Length: 10000000\r\n\r\n", b"x" * FULL_BYTES)
    reply = await exchange.asking
    assert not exchange.wire.reading
    assert len(await reply.read_some()) == FULL_BYTES
    # The reader may be slow to pass it on.
    assert not exchange.wire.reading
    more = asyncio.ensure_future(reply.read_some())
    await asyncio.sleep(0)
    assert exchange.wire.reading
    exchange.say(b"x")
    assert await more == b"x"


async def test_the_socket_is_read_until_a_reader_has_the_size_it_wants() -> None:
    exchange = Exchange()
    await exchange.ask()
    exchange.say(b"HTTP/1.1 200 OK\r\nContent-Length: 10000000\r\n\r\n")
    reply = await exchange.asking
    many = asyncio.ensure_future(reply.read_up_to(10 * FULL_BYTES))
    await asyncio.sleep(0)
    for _ in range(9):
        exchange.say(b"x" * FULL_BYTES)
        assert exchange.wire.reading
        await asyncio.sleep(0)
        assert not many.done()
    exchange.say(b"x" * (FULL_BYTES + 1))
    assert not exchange.wire.reading
    assert len(await many) == 10 * FULL_BYTES + 1
    # The next reader wants little.
    more = asyncio.ensure_future(reply.read_some())
    await asyncio.sleep(0)
    exchange.say(b"x" * FULL_BYTES)
    assert not exchange.wire.reading
    assert len(await more) == FULL_BYTES


async def test_an_answer_that_is_closed_early_cuts_the_connection() -> None:
    exchange = Exchange()
    await exchange.ask()
    exchange.say(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nx")
    (await exchange.asking).close()
    assert exchange.wire.closed


async def test_cancelling_a_request_cuts_the_connection() -> None:
    exchange = Exchange()
    await exchange.ask()
    exchange.asking.cancel()
    await asyncio.wait({exchange.asking})
    assert exchange.wire.closed


async def ask(pool: ConnectionPool, url: str, body: bytes = BODY) -> tuple[int, bytes]:
    reply = await pool.ask(request_head(request_start(URL(url)), {}, len(body)), body)
    received = b""
    while piece := await reply.read_some():
        received += piece
    return reply.status, received


def place_at(url: str, connections: int = 8) -> ConnectionPool:
    address = URL(url)
    limited = QUICK.model_copy(update={"connections_per_worker": connections})
    return ConnectionPool(tcp_dialer(address.host or "", address.port or 0), limited)


def answering(
    counts: list[int], answer: bytes = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
) -> Serve:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        counts.append(1)
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                await take(reader)
                writer.write(answer)
        writer.close()

    return serve


async def test_connections_stay_within_the_limit_and_every_request_gets_its_turn() -> None:
    opened: list[int] = []
    async with raw(answering(opened)) as url:
        pool = place_at(url, connections=2)
        answers = await asyncio.gather(*(ask(pool, url) for _ in range(50)))
        pool.close()
    assert answers == [(200, b"ok")] * 50
    assert len(opened) == 2


@pytest.mark.parametrize("given_up", [False, True])
async def test_a_request_is_sent_at_the_end_of_its_turn_unless_it_was_given_up(
    given_up: bool,
) -> None:
    opened: list[int] = []
    received: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        opened.append(1)
        await take(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        received.append(await reader.read(65_536))
        writer.close()

    async with raw(serve) as url:
        pool = place_at(url)
        await ask(pool, url)
        connection = pool.take_idle()
        assert connection is not None
        reply = connection.begin(b"HEAD", b"BODY", pool.batch)
        # Nothing is sent yet: cutting the connection discards the request.
        if given_up:
            reply.close()
        await until(lambda: bool(received))
        pool.close()
    assert received == [b"" if given_up else b"HEADBODY"]
    assert len(opened) == 1


async def test_a_connection_that_ended_is_gone_before_the_garbage_collector_comes() -> None:
    opened: list[int] = []
    async with raw(answering(opened)) as url:
        with uncollected():
            pool = place_at(url)
            assert await asyncio.gather(*(ask(pool, url) for _ in range(5))) == [(200, b"ok")] * 5
            assert living(Connection) == len(opened)
            pool.close()
            await until(lambda: not living(Connection))


async def test_requests_cancelled_in_the_queue_for_a_connection_do_not_block_the_rest() -> None:
    opened: list[int] = []
    async with raw(answering(opened)) as url:
        pool = place_at(url, connections=1)
        asking = [asyncio.ensure_future(ask(pool, url)) for _ in range(20)]
        await asyncio.sleep(0)
        for task in asking[1::2]:
            task.cancel()
        async with asyncio.timeout(5):
            assert await asyncio.gather(*asking[::2]) == [(200, b"ok")] * 10
        pool.close()


async def test_a_long_body_that_is_refused_early_is_not_sent_to_its_end() -> None:
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 413 No\r\nContent-Length: 2\r\n\r\nno")
        await writer.drain()
        with suppress(ConnectionError):
            await reader.read()
        writer.close()

    async with raw(refuse) as url:
        pool = place_at(url)
        assert (await ask(pool, url, b"x" * 50_000_000)) == (413, b"no")
        await until(lambda: pool.is_unused)
        pool.close()


def test_names_of_media_types_have_no_case_and_their_parameters_keep_theirs() -> None:
    facts = facts_of(AnswerHeaders({"content-type": "Multipart/Mixed; boundary=aB"}))
    assert facts.content_type == "multipart/mixed; boundary=aB"
    assert facts_of(AnswerHeaders({"content-type": "Application/JSON"})).json


REFUSES = """
import socket
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
while True:
    caller, _ = listener.accept()
    caller.recv(1024)
    caller.sendall(b"HTTP/1.1 413 No\\r\\nConnection: close\\r\\nContent-Length: 2\\r\\n\\r\\nno")
    caller.close()  # the kernel resets a connection that is closed with unread bytes
"""


def test_a_refusal_is_read_though_its_sender_closes_before_it_has_read_the_body() -> None:
    async def send(url: str) -> None:
        pool = place_at(url)
        for size in (300_000, 1_000_000, 3_000_000, 20_000_000) * 10:
            assert (await ask(pool, url, b"x" * size)) == (413, b"no")
        await until(lambda: pool.is_unused)
        pool.close()

    worker = subprocess.Popen([sys.executable, "-c", REFUSES], stdout=subprocess.PIPE, text=True)
    try:
        assert worker.stdout is not None
        # uvloop closes a socket that it cannot write to, and does not read it before.
        uvloop.run(send(f"http://127.0.0.1:{worker.stdout.readline().strip()}"))
    finally:
        worker.kill()
        worker.communicate()


def test_a_request_begins_with_its_host_as_written() -> None:
    assert request_start(URL("http://[::1]:81/v1/x?y=%20")) == (
        b"POST /v1/x?y=%20 HTTP/1.1\r\nHost: [::1]:81\r\nAccept-Encoding: identity\r\n"
    )
    assert b"Host: example.org\r\n" in request_start(URL("https://example.org/"), "GET")
