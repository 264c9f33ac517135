"""Requests off a connection and answers onto it: over real sockets, with an application of a few paths."""

import asyncio
import re
import socket
from contextlib import asynccontextmanager

import pytest

from node import web
from node.web.connection import FULL_BYTES, LINGER_SECONDS, WAITING

HOST = b"Host: localhost\r\n"
LIMITS = web.WebSettings()
BIG = 4 * 1024 * 1024


class App:
    """Echoes bodies; other paths do what their name says."""

    def __init__(self):
        self.asked = []
        self.cancelled = asyncio.Event()
        self.begun = asyncio.Event()
        self.go = asyncio.Event()

    async def answer(self, request):
        self.asked.append(request.path)
        self.begun.set()
        match request.path:
            case "/unread":
                return web.Response(body=b"no thanks")
            case "/wait":
                return await self._wait()
            case "/gone":
                raise ConnectionResetError
            case "/stream" | "/half":
                return await self._stream(request)
            case "/big":
                return web.Response(body=b"x" * BIG)
        try:
            body = b""
            while piece := await request.some():
                body += piece
        except web.Fault as fault:
            return self.refuse(fault, request.headers)
        return web.Response(body=body)

    async def _wait(self):
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        return web.Response(body=b"at last")

    async def _stream(self, request):
        response = web.StreamResponse(headers={"content-type": "text/plain"})
        response.prepare(request)
        for piece in (b"one", b"two"):
            response.write(piece)
            await response.drain()
        if request.path == "/stream":
            response.end()
        return response

    def refuse(self, fault, said):
        return web.Response(status=400, body=type(fault).__name__.encode())


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
    app.server = web.Server(app)
    await app.server.listen(listener)
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


async def test_one_request_after_another_over_one_connection(caller):
    for body in (b"a", b"", b"ccc"):
        caller.writer.write(post(body))
        assert await caller.hear() == (200, body)


async def test_a_request_may_come_byte_by_byte(caller):
    for byte in post(b"slowly"):
        caller.writer.write(bytes([byte]))
        await caller.writer.drain()
    assert await caller.hear() == (200, b"slowly")


async def test_requests_that_come_together_are_answered_in_their_order(caller):
    caller.writer.write(b"".join(post(b"%d" % n) for n in range(3 * WAITING)))
    assert [(await caller.hear())[1] for _ in range(3 * WAITING)] == [
        b"%d" % n for n in range(3 * WAITING)
    ]


async def test_of_many_requests_that_come_together_most_wait_in_the_socket(served, caller):
    caller.say(b"GET /wait")
    await served.begun.wait()
    (connection,) = served.server._connections
    for _ in range(WAITING + 1):
        caller.say(b"GET /a")
    await until(lambda: connection._paused)
    served.go.set()
    assert (await caller.hear())[1] == b"at last"
    for _ in range(WAITING + 1):
        assert await caller.hear() == (200, b"")
    assert not connection._paused


async def test_a_body_in_chunks_is_the_same_body(caller):
    caller.say(
        b"POST /",
        b"Transfer-Encoding: chunked",
        body=b"1\r\na\r\n2;x=y\r\nbc\r\n0\r\nX-Sum: 1\r\n\r\n",
    )
    assert await caller.hear() == (200, b"abc")


async def test_whoever_waits_to_be_told_to_send_is_told_once_somebody_reads(caller):
    caller.say(b"POST /", b"Content-Length: 2", b"Expect: 100-continue")
    assert (await caller.hear())[0] == 100
    caller.writer.write(b"ok")
    assert await caller.hear() == (200, b"ok")


async def test_whoever_waits_is_not_told_when_nobody_reads(caller):
    caller.say(b"POST /unread", b"Content-Length: 2", b"Expect: 100-continue")
    assert await caller.hear() == (200, b"no thanks")
    assert await caller.ended()


async def test_a_long_body_is_taken_in_no_faster_than_it_is_read(served, caller):
    caller.say(b"POST /wait", b"Content-Length: %d" % BIG, body=b"x" * BIG)
    await served.begun.wait()
    (connection,) = served.server._connections
    await until(lambda: connection._paused)
    assert connection._arriving.waiting < FULL_BYTES + 1024 * 1024


async def test_a_long_body_arrives_whole(caller):
    body = bytes(range(256)) * (BIG // 256)
    caller.writer.write(post(body))
    assert await caller.hear() == (200, body)


async def test_whoever_sends_on_what_nobody_reads_gets_to_read_why(served, caller):
    caller.say(b"POST /unread", b"Content-Length: %d" % (64 * BIG))
    caller.writer.write(b"x" * BIG)
    assert await caller.hear() == (200, b"no thanks")
    (connection,) = served.server._connections
    connection.look(connection._server.now + LINGER_SECONDS + 1)
    assert await caller.ended()
    await until(lambda: not served.server._connections)


async def test_another_protocol_is_declined_and_the_body_read(caller):
    offer = b"Connection: Upgrade", b"Upgrade: h2c"
    caller.say(b"POST /", *offer, b"Content-Length: 2", body=b"ok")
    assert await caller.hear() == (200, b"ok")
    caller.say(b"POST /", *offer, b"Transfer-Encoding: chunked", body=b"2\r\nok\r\n0\r\n\r\n")
    assert await caller.hear() == (200, b"ok")
    caller.say(b"GET /", *offer)
    caller.say(b"POST /", b"Content-Length: 3", body=b"yes")
    assert await caller.hear() == (200, b"")
    assert await caller.hear() == (200, b"yes")


async def test_http_1_0_is_answered_and_its_connection_kept_only_when_asked(served):
    async with calling(served) as caller:
        caller.writer.write(
            b"POST / HTTP/1.0\r\nContent-Length: 2\r\nConnection: keep-alive\r\n\r\nok"
        )
        assert await caller.hear() == (200, b"ok")
        caller.writer.write(b"POST / HTTP/1.0\r\nContent-Length: 2\r\n\r\nok")
        assert await caller.hear() == (200, b"ok")
        assert await caller.ended()


async def test_a_connection_ends_after_the_request_that_says_so(served, caller):
    caller.say(b"GET /a", b"Connection: close")
    caller.say(b"GET /b")
    assert await caller.hear() == (200, b"")
    assert await caller.ended()
    assert served.asked == ["/a"]


async def test_head_is_answered_without_the_body(caller):
    caller.say(b"HEAD /unread")
    assert await caller.hear(bodiless=True) == (200, b"")
    caller.writer.write(post(b"next"))
    assert await caller.hear() == (200, b"next")


async def test_a_stream_comes_in_chunks_and_the_next_answer_after_it(caller):
    caller.say(b"GET /stream")
    caller.writer.write(post(b"next"))
    assert await caller.hear() == (200, b"onetwo")
    assert await caller.hear() == (200, b"next")


async def test_half_a_stream_never_looks_like_a_whole_one(caller):
    caller.say(b"GET /half")
    with pytest.raises((asyncio.IncompleteReadError, ConnectionResetError)):
        await caller.hear()


async def test_a_handler_that_lost_its_caller_ends_the_connection(caller):
    caller.say(b"GET /gone")
    assert await caller.ended()


@pytest.mark.parametrize("way", ["close", "abort", "half"])
async def test_whoever_leaves_cancels_what_is_done_for_it(served, caller, way):
    caller.say(b"GET /wait")
    await served.begun.wait()
    if way == "half":
        caller.writer.write_eof()
    else:
        getattr(caller.writer.transport, way)()
    async with asyncio.timeout(5):
        await served.cancelled.wait()


async def test_what_is_no_request_is_refused_behind_the_answers_before_it_and_nothing_after_it_is_read(
    served, caller
):
    caller.writer.write(post(b"first") + b"BAD\r\n\r\n" + post(b"second"))
    assert await caller.hear() == (200, b"first")
    assert await caller.hear() == (400, b"Malformed")
    assert await caller.ended()
    assert len(served.asked) == 1


async def test_a_body_that_is_not_framed_as_it_says_is_its_handlers_to_refuse(served, caller):
    caller.say(b"POST /", b"Transfer-Encoding: chunked", body=b"zz\r\n")
    assert await caller.hear() == (400, b"BodyBroken")
    assert await caller.ended()


async def test_a_head_without_end_is_refused_and_so_are_trailers(served):
    for line, headers in ((b"GET /", ()), (b"POST /", (b"Transfer-Encoding: chunked",))):
        async with calling(served) as caller:
            caller.say(line, *headers, body=b"0\r\n" if headers else b"")
            more = b"".join(b"x-%d: y\r\n" % n for n in range(10_000))
            caller.writer.write(more if headers else b"GET / HTTP/1.1\r\n" + HOST + more)
            if not headers:
                assert await caller.hear() == (200, b"")
            assert await caller.hear() == (400, b"HeadLimit")


async def test_a_caller_who_reads_nothing_is_not_answered_again_and_cut_off(served, caller):
    caller.reader._transport.pause_reading()
    caller.say(b"GET /big")
    caller.say(b"GET /big")
    await until(lambda: served.asked == ["/big"])
    (connection,) = served.server._connections
    await until(lambda: connection._writable is not None)
    assert served.asked == ["/big"]
    connection.look(connection._due)
    await until(lambda: not served.server._connections)


async def test_every_wait_for_a_caller_has_an_end(served):
    """For a first byte, for the rest of a head, and for the next request."""
    async with calling(served) as silent, calling(served) as slow, calling(served) as idle:
        slow.writer.write(b"GET / HT")
        idle.writer.write(post(b"x"))
        assert await idle.hear() == (200, b"x")
        await until(lambda: sum(c._parser.in_head for c in served.server._connections) == 1)
        for connection in tuple(served.server._connections):
            connection.look(served.server.now + LIMITS.head_timeout - 0.1)
        assert len(served.server._connections) == 3
        for connection in tuple(served.server._connections):
            connection.look(served.server.now + LIMITS.head_timeout + 0.1)
        assert await silent.ended()
        assert await slow.hear() == (400, b"TooSlow")
        assert await slow.ended()
        idle.writer.write(post(b"y"))
        assert await idle.hear() == (200, b"y")
        for connection in tuple(served.server._connections):
            connection.look(served.server.now + LIMITS.idle_timeout + 0.1)
        assert await idle.ended()


async def test_a_handler_may_take_as_long_as_it_likes(served, caller):
    caller.say(b"GET /wait")
    await served.begun.wait()
    (connection,) = served.server._connections
    connection.look(served.server.now + 1e9)
    served.go.set()
    assert await caller.hear() == (200, b"at last")


async def test_a_head_is_not_late_while_nobody_reads(served, caller):
    """So many wait that the rest of a head stays in the socket: it is the server that is slow."""
    caller.say(b"GET /wait")
    await served.begun.wait()
    (connection,) = served.server._connections
    caller.writer.write(post(b"") * (WAITING + 1) + b"GET / HT")
    await until(lambda: connection._paused)
    assert connection._parser.in_head
    connection.look(served.server.now + 1e9)
    served.go.set()
    caller.writer.write(b"TP/1.1\r\n" + HOST + b"\r\n")
    assert (await caller.hear())[1] == b"at last"
    for _ in range(WAITING + 2):
        assert await caller.hear() == (200, b"")


async def test_whoever_reads_again_may_wait_long_for_the_next_answer(served, caller):
    caller.reader._transport.pause_reading()
    caller.say(b"GET /big")
    caller.say(b"GET /wait")
    (connection,) = await connections(served)
    await until(lambda: connection._writable is not None)
    caller.reader._transport.resume_reading()
    await caller.hear()
    await until(lambda: "/wait" in served.asked)
    connection.look(served.server.now + 1e9)
    served.go.set()
    assert (await caller.hear())[1] == b"at last"


async def connections(served):
    await until(lambda: served.server._connections)
    return served.server._connections
