"""Requests read from a connection and answers written to it: over real sockets, with an application of a few paths."""

import asyncio
import re
import socket
from contextlib import asynccontextmanager
from math import inf

import orjson
import pytest
from aiohttp import web

from node.config.web import WebSettings
from node.connections import PROBE_SECONDS, STALL_SECONDS
from node.faces.app import application
from node.faces.request_reader import read_raw
from node.faces.response_writer import StreamedResponse
from node.http_handler import ANSWER_START, BODY_BYTES, LINGER_SECONDS
from node.listeners import Listener

HOST = b"Host: localhost\r\n"
LIMITS = WebSettings()
BIG = 4 * 1024 * 1024
MORE_THAN_SOCKETS_HOLD = 64 * 1024 * 1024
"""Bytes: the kernel may give both sockets more than 4 MiB each after other sockets had much to send."""

MANY = 48


class App:
    """Application that echoes bodies; other paths do what their names say."""

    def __init__(self):
        self.asked = []
        self.cancelled = asyncio.Event()
        self.begun = asyncio.Event()
        self.go = asyncio.Event()

    def made(self):
        routes = [web.route(method, "/{tail:.*}", self.answer) for method in ("GET", "POST")]
        return application(routes, lambda request: None)

    async def answer(self, request):
        self.asked.append(request.path)
        self.begun.set()
        match request.path:
            case "/unread":
                return web.Response(body=b"no thanks")
            case "/wait" | "/late":
                answer = await self._wait()
                return answer if request.path == "/wait" else await self._stream(request)
            case "/gone":
                raise ConnectionResetError
            case "/stream" | "/half" | "/empty" | "/begun":
                return await self._stream(request)
            case "/big":
                return web.Response(body=b"x" * MORE_THAN_SOCKETS_HOLD)
            case "/status":
                return web.json_response({}, status=299)
        return web.Response(body=await read_raw(request, limit=2 * BIG, idle=5))

    async def _wait(self):
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        return web.Response(body=b"at last")

    async def _stream(self, request):
        response = StreamedResponse(headers={"content-type": "text/plain"})
        await response.prepare(request)
        for piece in () if request.path == "/empty" else (b"one", b"two"):
            await response.write(piece)
        if request.path == "/begun":
            await self._wait()
        if request.path == "/half":
            request.transport.abort()
        return response


class Caller:
    """One connection."""

    def __init__(self, reader, writer):
        self.reader, self.writer = reader, writer

    def say(self, line, *headers, body=b""):
        self.writer.write(
            line + b" HTTP/1.1\r\n" + HOST + b"".join(h + b"\r\n" for h in headers) + b"\r\n" + body
        )

    async def hear(self, *, bodiless=False):
        async with asyncio.timeout(5):
            head = (await self.reader.readuntil(b"\r\n\r\n")).decode()
            status = int(head[9:12])
            if bodiless or status < 200:
                return status, b""
            if "chunked" in head:
                body = b""
                while size := int(await self.reader.readuntil(b"\r\n"), 16):
                    body += (await self.reader.readexactly(size + 2))[:-2]
                await self.reader.readexactly(2)
                return status, body
            return status, await self.reader.readexactly(
                int(re.search(r"(?i)length: (\d+)", head)[1])
            )

    async def ended(self):
        async with asyncio.timeout(5):
            try:
                return await self.reader.read() == b""
            except ConnectionResetError:
                return True


@pytest.fixture
async def served():
    app = App()
    listener = socket.create_server(("127.0.0.1", 0))
    app.port = listener.getsockname()[1]
    app.server = Listener(app.made())
    await app.server.listen_on(listener)
    yield app
    await app.server.close(within=0.1)


@asynccontextmanager
async def calling(app):
    reader, writer = await asyncio.open_connection("127.0.0.1", app.port)
    try:
        yield Caller(reader, writer)
    finally:
        writer.transport.abort()


@pytest.fixture
async def caller(served):
    async with calling(served) as caller:
        yield caller


def post(body, path=b"/"):
    return b"POST %b HTTP/1.1\r\n%bContent-Length: %d\r\n\r\n%b" % (path, HOST, len(body), body)


async def until(holds):
    async with asyncio.timeout(5):
        while not holds():  # noqa: ASYNC110 (nothing of it signals anybody)
            await asyncio.sleep(0.005)


async def code_of(caller):
    """Return the status and the code of our error."""
    status, body = await caller.hear()
    return status, orjson.loads(body)["error"]["code"]


async def connection_of(served):
    await until(lambda: served.server._connections)
    (connection,) = served.server._connections
    return connection


async def test_requests_follow_each_other_on_one_connection(caller):
    for body in (b"a", b"", b"ccc"):
        caller.writer.write(post(body))
        assert await caller.hear() == (200, body)


async def test_a_request_may_come_byte_by_byte(caller):
    for byte in post(b"slowly"):
        caller.writer.write(bytes([byte]))
        await caller.writer.drain()
    assert await caller.hear() == (200, b"slowly")


async def test_pipelined_requests_are_answered_in_their_order(caller):
    caller.writer.write(b"".join(post(b"%d" % n) for n in range(MANY)))
    assert [(await caller.hear())[1] for _ in range(MANY)] == [b"%d" % n for n in range(MANY)]


async def test_bytes_behind_a_request_in_flight_wait_in_the_socket(served, caller):
    caller.say(b"GET /wait")
    await served.begun.wait()
    connection = await connection_of(served)
    body = b"x" * BIG
    caller.writer.write(post(body) + post(b"last"))
    await until(lambda: connection._unparsed)
    assert len(connection._unparsed) < BIG // 4
    served.go.set()
    assert (await caller.hear())[1] == b"at last"
    assert await caller.hear() == (200, body)
    assert await caller.hear() == (200, b"last")


async def test_a_chunked_body_is_read_as_one_body(caller):
    caller.say(
        b"POST /",
        b"Transfer-Encoding: chunked",
        body=b"1\r\na\r\n2;x=y\r\nbc\r\n0\r\nX-Sum: 1\r\n\r\n",
    )
    assert await caller.hear() == (200, b"abc")


async def test_a_100_continue_is_sent_when_the_handler_reads_the_body(caller):
    caller.say(b"POST /", b"Content-Length: 2", b"Expect: 100-continue")
    assert (await caller.hear())[0] == 100
    caller.writer.write(b"ok")
    assert await caller.hear() == (200, b"ok")


async def test_no_100_continue_is_sent_when_the_handler_does_not_read_the_body(caller):
    caller.say(b"POST /unread", b"Content-Length: 2", b"Expect: 100-continue")
    assert await caller.hear() == (200, b"no thanks")
    assert await caller.ended()


async def test_no_100_continue_is_sent_where_no_route_takes_the_method(caller):
    caller.say(b"PUT /", b"Content-Length: 2", b"Expect: 100-Continue")
    assert (await caller.hear())[0] == 405
    assert await caller.ended()


async def test_no_100_continue_is_sent_for_two_expectations(caller):
    caller.say(b"POST /", b"Content-Length: 2", b"Expect: 100-continue", b"expect: 100-continue")
    assert (await caller.hear())[0] == 400
    assert await caller.ended()


async def test_a_long_body_is_taken_in_no_faster_than_it_is_read(served, caller):
    caller.say(b"POST /wait", b"Content-Length: %d" % BIG, body=b"x" * BIG)
    await served.begun.wait()
    connection = await connection_of(served)
    await until(lambda: not connection._handler.has_room)
    assert connection._request.content.total_bytes < 2 * BODY_BYTES + 512 * 1024


async def test_a_long_body_arrives_whole(caller):
    body = bytes(range(256)) * (BIG // 256)
    caller.writer.write(post(body))
    assert await caller.hear() == (200, body)


async def test_a_caller_still_sending_an_unread_body_gets_the_answer_before_the_close(
    served, caller
):
    caller.say(b"POST /unread", b"Content-Length: %d" % (64 * BIG))
    caller.writer.write(b"x" * BIG)
    assert await caller.hear() == (200, b"no thanks")
    async with asyncio.timeout(LINGER_SECONDS + 3):
        assert await caller.reader.read() == b""
    await until(lambda: not served.server._connections)


@pytest.mark.parametrize("protocol", [b"h2c", b"websocket"])
async def test_an_upgrade_to_another_protocol_is_declined_and_the_body_read(served, protocol):
    async with calling(served) as caller:
        offer = b"Connection: Upgrade", b"Upgrade: " + protocol
        caller.say(b"POST /", *offer, b"Content-Length: 2", body=b"ok")
        assert await caller.hear() == (200, b"ok")
        caller.say(b"GET /", *offer)
        caller.say(b"POST /", *offer, b"Content-Length: 2", body=b"ok")
        caller.say(b"POST /", b"Content-Length: 3", body=b"yes")
        for body in (b"", b"ok", b"yes"):
            assert await caller.hear() == (200, body)
        caller.say(b"POST /", *offer, b"Transfer-Encoding: chunked", body=b"2\r\nok\r\n0\r\n\r\n")
        assert await caller.hear() == (200, b"ok")


async def test_what_follows_an_offer_of_websockets_waits_for_its_answer_unparsed(served):
    async with calling(served) as caller:
        caller.say(b"GET /wait", b"Connection: Upgrade", b"Upgrade: websocket")
        await until(served.begun.is_set)
        caller.say(b"GET /" + b"x" * 4_000)
        (connection,) = served.server._connections
        await until(lambda: connection._unparsed)
        unparsed = len(connection._unparsed)
        for _ in range(50):
            await asyncio.sleep(0)
        assert len(connection._unparsed) == unparsed
        served.go.set()
        assert [(await caller.hear())[0] for _ in range(2)] == [200, 200]


async def test_http_1_0_is_answered_and_its_connection_kept_only_when_asked(served):
    async with calling(served) as caller:
        caller.writer.write(
            b"POST / HTTP/1.0\r\nContent-Length: 2\r\nConnection: keep-alive\r\n\r\nok"
        )
        assert await caller.hear() == (200, b"ok")
        caller.writer.write(b"POST / HTTP/1.0\r\nContent-Length: 2\r\n\r\nok")
        assert await caller.hear() == (200, b"ok")
        assert await caller.ended()


async def test_a_stream_to_http_1_0_has_no_chunks_and_ends_with_its_connection(caller):
    caller.writer.write(b"GET /stream HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
    async with asyncio.timeout(LIMITS.idle_timeout / 2):
        head, _, body = (await caller.reader.read()).partition(b"\r\n\r\n")
    assert b"chunked" not in head
    assert body == b"onetwo"


async def test_a_connection_ends_after_a_request_with_connection_close(served, caller):
    caller.say(b"GET /a", b"Connection: close")
    assert await caller.hear() == (200, b"")
    caller.say(b"GET /b")
    assert await caller.ended()
    assert served.asked == ["/a"]


async def test_head_is_answered_without_the_body(caller):
    caller.say(b"HEAD /unread")
    assert await caller.hear(bodiless=True) == (200, b"")
    caller.writer.write(post(b"next"))
    assert await caller.hear() == (200, b"next")


async def test_a_stream_comes_in_chunks_and_the_next_answer_after_it(caller):
    for path, body in ((b"/stream", b"onetwo"), (b"/empty", b"")):
        caller.say(b"GET " + path)
        caller.writer.write(post(b"next"))
        assert await caller.hear() == (200, body)
        assert await caller.hear() == (200, b"next")


async def test_the_head_of_a_stream_is_sent_with_its_first_bytes_and_forbids_proxy_buffering(
    caller,
):
    caller.say(b"GET /stream")
    response = await caller.reader.read(1024)
    assert b"\r\n\r\n3\r\none\r\n" in response
    assert b"\r\nx-accel-buffering: no\r\n" in response


async def test_a_truncated_stream_never_looks_complete(caller):
    caller.say(b"GET /half")
    with pytest.raises((asyncio.IncompleteReadError, ConnectionResetError)):
        await caller.hear()


async def test_a_status_without_a_standard_reason_is_written_too(caller):
    caller.say(b"GET /status")
    assert (await caller.hear())[0] == 299


async def test_a_connection_reset_in_a_handler_ends_the_connection(caller):
    caller.say(b"GET /gone")
    assert await caller.ended()


@pytest.mark.parametrize(
    ("way", "when"), [("close", "at once"), ("close", "later"), ("abort", "later")]
)
async def test_a_caller_that_disconnects_cancels_its_handler(served, caller, way, when):
    caller.say(b"GET /wait")
    if when == "later":
        await served.begun.wait()
    getattr(caller.writer.transport, way)()
    async with asyncio.timeout(5):
        await served.cancelled.wait()


@pytest.mark.parametrize("version", [b"1.0", b"1.1"])
@pytest.mark.parametrize("when", ["at once", "later"])
async def test_a_caller_that_half_closes_after_a_whole_request_gets_its_answer(
    served, caller, version, when
):
    caller.writer.write(b"GET /wait HTTP/" + version + b"\r\n" + HOST + b"\r\n")
    if when == "later":
        await served.begun.wait()
    caller.writer.write_eof()
    await served.begun.wait()
    connection = await connection_of(served)
    await until(lambda: connection._is_half_closed)
    connection.check_timeouts(served.server.now)
    served.go.set()
    async with asyncio.timeout(5):
        response = await caller.reader.read()
    assert response.count(b"at last") == 1
    assert b" 200 OK" in response
    assert not served.cancelled.is_set()


async def test_a_caller_that_half_closes_and_leaves_later_cancels_its_handler(served, caller):
    # As socat and ssh do when the client behind them leaves.
    caller.say(b"GET /wait")
    caller.writer.write_eof()
    assert await caller.hear() == (100, b"")
    connection = await connection_of(served)
    connection.check_timeouts(served.server.now)
    assert not served.cancelled.is_set()
    caller.writer.close()
    await caller.writer.wait_closed()
    connection.check_timeouts(asyncio.get_running_loop().time() + PROBE_SECONDS)
    await until(connection._is_gone)
    connection.check_timeouts(served.server.now)
    async with asyncio.timeout(5):
        await served.cancelled.wait()


@pytest.mark.parametrize("leaves", ["at once", "later"])
async def test_a_caller_of_http_1_0_that_leaves_cancels_its_handler(served, caller, leaves):
    caller.writer.write(b"GET /wait HTTP/1.0\r\n\r\n")
    await served.begun.wait()
    if leaves == "later":
        caller.writer.write_eof()
        assert await caller.reader.readexactly(1) == ANSWER_START[:1]
    connection = await connection_of(served)
    caller.writer.close()
    await caller.writer.wait_closed()
    await until(lambda: connection._is_half_closed)
    if leaves == "later":
        connection.check_timeouts(asyncio.get_running_loop().time() + PROBE_SECONDS)
    await until(lambda: connection.transport is None or connection._is_gone())
    connection.check_timeouts(served.server.now)
    async with asyncio.timeout(5):
        await served.cancelled.wait()


@pytest.mark.parametrize("path", [b"/wait", b"/late"])
@pytest.mark.parametrize("probes", [1, 4, len(ANSWER_START) + 1])
async def test_a_caller_of_http_1_0_that_half_closes_gets_the_first_bytes_of_its_answer_as_probes(
    served, caller, path, probes
):
    caller.writer.write(b"GET " + path + b" HTTP/1.0\r\n\r\n")
    caller.writer.write_eof()
    connection = await connection_of(served)
    await until(lambda: connection._probe_due < inf)
    for _ in range(probes - 1):
        connection.check_timeouts(connection._probe_due)
    async with asyncio.timeout(5):
        ahead = ANSWER_START[:probes]
        assert await caller.reader.readexactly(len(ahead)) == ahead
        served.go.set()
        response = ahead + await caller.reader.read()
    head, _, body = response.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.0 200 OK\r\n")
    assert body == (b"onetwo" if path == b"/late" else b"at last")


async def test_what_cannot_be_read_is_refused_in_whole_after_a_half_close(served, caller):
    caller.writer.write(post(b"x") + b"\0 nonsense\r\n\r\n")
    caller.writer.write_eof()
    assert await caller.hear() == (200, b"x")
    assert (await code_of(caller))[0] == 400


async def test_all_pipelined_requests_are_answered_after_a_half_close(served, caller):
    caller.writer.write(b"".join(post(b"%d;" % n) for n in range(MANY)))
    caller.writer.write_eof()
    async with asyncio.timeout(5):
        responses = await caller.reader.read()
    assert responses.count(b" 200 OK") == MANY


async def test_a_half_close_during_a_stream_cancels_the_handler(served, caller):
    caller.say(b"GET /begun")
    await caller.reader.readuntil(b"one")
    caller.writer.write_eof()
    async with asyncio.timeout(5):
        await served.cancelled.wait()


async def test_a_half_close_within_a_request_ends_the_connection(served, caller):
    caller.say(b"POST /", b"Content-Length: 3", body=b"x")
    await served.begun.wait()
    caller.writer.write_eof()
    assert await caller.ended()


@pytest.mark.parametrize(
    ("head", "words"),
    [
        (HOST + b"User-Agent: a\r\nuser-agent: a\r\n", b"only once"),
        (HOST + b"Content-Length: 0\r\nContent-Length: 1\r\n", b"only once"),
        (HOST + HOST, b"only once"),
        (b"Accept: */*\r\n", b"Host header"),
        (HOST + b"a b\r\n", b"HTTP request"),
    ],
)
async def test_an_error_says_what_is_wrong_with_a_head(caller, head, words):
    caller.writer.write(b"GET / HTTP/1.1\r\n" + head + b"\r\n")
    status, body = await caller.hear()
    assert (status, words in body) == (400, True), body


async def test_an_invalid_request_is_refused_after_earlier_answers_and_nothing_behind_it_is_read(
    served, caller
):
    caller.say(b"GET /wait")
    await served.begun.wait()
    caller.writer.write(b"BAD\r\n\r\n" + post(b"second"))
    served.go.set()
    assert await caller.hear() == (200, b"at last")
    assert await code_of(caller) == (400, "invalid_head")
    assert await caller.ended()
    assert len(served.asked) == 1


async def test_garbage_in_the_same_segment_as_a_request_does_not_keep_it_from_its_answer(
    served, caller
):
    caller.writer.write(post(b"first") + b"BAD\r\n\r\n")
    assert await caller.hear() == (200, b"first")
    assert await code_of(caller) == (400, "invalid_head")
    assert await caller.ended()


@pytest.mark.parametrize("when", ["at once", "later"])
async def test_a_body_with_broken_chunk_framing_is_refused(served, caller, when, caplog):
    caller.say(b"POST /", b"Transfer-Encoding: chunked", body=b"1\r\nx\r\n")
    if when == "later":
        await served.begun.wait()
    caller.writer.write(b"zz\r\n")
    assert await code_of(caller) == (400, "invalid_body")
    assert await caller.ended()
    assert not caplog.records


async def test_a_head_without_end_is_refused(served):
    for before, line in ((b"", b"x-%d: y\r\n"), (post(b""), b"x: %d\r\n")):
        async with calling(served) as caller:
            more = b"".join(line % n for n in range(10_000))
            if before:
                caller.writer.write(before)
                assert await caller.hear() == (200, b"")
            caller.writer.write(b"GET / HTTP/1.1\r\n" + HOST + more)
            assert await code_of(caller) == (431, "head_too_large")
            assert await caller.ended()


async def test_trailers_without_end_are_refused(caller):
    more = b"".join(b"x-%d: y\r\n" % n for n in range(10_000))
    caller.say(b"POST /", b"Transfer-Encoding: chunked", body=b"0\r\n" + more)
    assert await code_of(caller) == (431, "head_too_large")
    assert await caller.ended()


async def test_a_caller_that_reads_nothing_gets_no_second_answer_and_is_cut_off(served, caller):
    caller.reader._transport.pause_reading()
    caller.say(b"GET /big")
    caller.say(b"GET /big")
    await until(lambda: served.asked == ["/big"])
    connection = await connection_of(served)
    await until(lambda: connection.is_write_paused)
    assert served.asked == ["/big"]
    connection.check_timeouts(served.server.now + STALL_SECONDS + 1)
    await until(lambda: not served.server._connections)


async def test_every_wait_for_a_caller_has_an_end(served):
    """For a first byte, for the rest of a head, and for the next request."""
    async with calling(served) as silent, calling(served) as slow, calling(served) as idle:
        slow.writer.write(b"GET / HT")
        idle.writer.write(post(b"x"))
        assert await idle.hear() == (200, b"x")
        await until(lambda: sum(c._head_bytes > 0 for c in served.server._connections) == 1)
        for connection in tuple(served.server._connections):
            connection.check_timeouts(served.server.now + LIMITS.head_timeout - 0.6)
        assert len(served.server._connections) == 3
        for connection in tuple(served.server._connections):
            connection.check_timeouts(served.server.now + LIMITS.head_timeout + 0.1)
        assert await silent.ended()
        assert await code_of(slow) == (408, "head_too_slow")
        assert await slow.ended()
        idle.writer.write(post(b"y"))
        assert await idle.hear() == (200, b"y")
        for connection in tuple(served.server._connections):
            connection.check_timeouts(served.server.now + LIMITS.idle_timeout + 0.1)
        assert await idle.ended()


@pytest.mark.parametrize("begun", [b"", b"GET /st"], ids=["nothing sent", "begun"])
async def test_a_head_has_its_whole_time_however_long_ago_the_last_look_was(served, caller, begun):
    await connection_of(served)
    served.server.now -= LIMITS.head_timeout
    async with calling(served) as late:
        late.writer.write(begun)
        await until(lambda: len(served.server._connections) == 2)
        newest = [*served.server._connections][-1]
        await until(lambda: newest._head_bytes == len(begun))
        newest.check_timeouts(asyncio.get_running_loop().time())
        late.say(b"GET /status"[len(begun) :])
        assert await late.hear() == (299, b"{}")


async def test_a_head_that_has_arrived_is_not_late_because_the_event_loop_is_slow(served, caller):
    connection = await connection_of(served)
    connection.data_received(b"GET / HTTP/1\r\n\r\n")
    connection.check_timeouts(served.server.now + LIMITS.head_timeout + 0.1)
    assert await code_of(caller) == (400, "invalid_head")


async def test_a_handler_may_take_as_long_as_it_likes(served, caller):
    caller.say(b"GET /wait")
    await served.begun.wait()
    (await connection_of(served)).check_timeouts(served.server.now + 1e9)
    served.go.set()
    assert await caller.hear() == (200, b"at last")


async def test_a_head_behind_a_request_in_flight_is_not_late(served, caller):
    """Bytes behind a request stay in the socket: the server is slow, not the caller."""
    caller.say(b"GET /wait")
    await served.begun.wait()
    connection = await connection_of(served)
    caller.writer.write(post(b"") + b"GET / HT")
    await until(lambda: connection._unparsed)
    connection.check_timeouts(served.server.now + 1e9)
    served.go.set()
    caller.writer.write(b"TP/1.1\r\n" + HOST + b"\r\n")
    assert (await caller.hear())[1] == b"at last"
    for _ in range(2):
        assert await caller.hear() == (200, b"")


async def test_a_caller_that_reads_again_may_wait_long_for_the_next_answer(served, caller):
    caller.reader._transport.pause_reading()
    caller.say(b"GET /big")
    caller.say(b"GET /wait")
    connection = await connection_of(served)
    await until(lambda: connection.is_write_paused)
    caller.reader._transport.resume_reading()
    await caller.hear()
    await until(lambda: "/wait" in served.asked)
    connection.check_timeouts(served.server.now + 1e9)
    served.go.set()
    assert (await caller.hear())[1] == b"at last"
