"""Preambles of the PROXY protocol: only the forms of the specification are read, and no byte behind them."""

import asyncio
import socket
import ssl
import struct
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from node.acceptor import MAX_BYTES, NoPreamble, read_client_address
from node.listeners import SharedConnections
from registry.signing import Identity
from router.http.connection import Connection
from router.http.dial import SMALL_SEGMENT, tcp_dialer
from router.http.errors import CannotConnect, HttpError, HungUp
from router.http.heads import request_head
from router.http.reply import Reply
from router.peers.headers import TARGET
from router.peers.mux import EXTRA_BYTES, WINDOW
from router.peers.shared_pool import STREAMS, SharedPool
from router.peers.tls import certificate_of, client_context, offer_sharing, server_context, trust
from router.settings import RouterSettings
from tests.router.world import until

SIGNATURE = b"\r\n\r\n\0\r\nQUIT\n"
V4 = socket.inet_aton("192.0.2.7") + socket.inet_aton("10.0.0.1") + struct.pack("!HH", 5, 80)
V6 = (
    socket.inet_pton(socket.AF_INET6, "2001:db8::7") + bytes(15) + b"\1" + struct.pack("!HH", 5, 80)
)


def v2(command=0x21, family=0x11, rest=V4, length=None):
    return (
        SIGNATURE
        + bytes([command, family])
        + struct.pack("!H", len(rest) if length is None else length)
        + rest
    )


class Wire:
    """Received bytes, in pieces of at most `size` bytes."""

    def __init__(self, data, size=1_000_000):
        self.left, self.size = data, size

    async def receive(self, count):
        count = min(count, self.size)
        piece, self.left = self.left[:count], self.left[count:]
        return piece


GOOD = {
    b"PROXY TCP4 192.0.2.7 10.0.0.1 5 80\r\n": "192.0.2.7",
    b"PROXY TCP4 1.1.1.1 1.1.1.1 0 0\r\n": "1.1.1.1",
    b"PROXY TCP6 2001:db8::7 ::1 65535 80\r\n": "2001:db8::7",
    b"PROXY UNKNOWN\r\n": "",
    b"PROXY UNKNOWN ffff::1 ffff::2 65535 65535\r\n": "",
    v2(): "192.0.2.7",
    v2(family=0x21, rest=V6): "2001:db8::7",
    v2(rest=V4 + b"\x04\0\x02hi"): "192.0.2.7",
    v2(command=0x20, family=0, rest=b""): "",
    v2(command=0x20): "",
    v2(family=0, rest=b""): "",
    v2(rest=V4 + bytes(MAX_BYTES - 16 - len(V4))): "192.0.2.7",
}


@pytest.mark.parametrize("size", [1, 7, 100_000])
@pytest.mark.parametrize(("preamble", "address"), GOOD.items())
async def test_the_address_is_told_and_nothing_behind_the_preamble_is_read(preamble, address, size):
    wire = Wire(preamble + b"GET / HTTP/1.1\r\n\r\n", size)
    assert await read_client_address(wire.receive) == address
    assert wire.left == b"GET / HTTP/1.1\r\n\r\n"


BAD = [
    b"", b"P", b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", b"PROXY TCP4\r\n" + b"x" * 20,
    b"proxy TCP4 1.1.1.1 1.1.1.1 1 1\r\n", b"PROXY TCP4 192.0.2.7 10.0.0.1 5\r\n", b"PROXY TCP4 192.0.2.7 10.0.0.1 5 80 \r\n",
    b"PROXY TCP4 192.0.2.7  1.1.1.1 5 80\r\n", b"PROXY TCP4 192.0.2.256 10.0.0.1 5 80\r\n", b"PROXY TCP4 2001:db8::7 ::1 5 8\r\n",
    b"PROXY TCP6 1.1.1.1 1.1.1.1 5 80\r\n", b"PROXY TCP4 192.0.2.7 1.1.1.1 5 65536\r\n", b"PROXY TCP4 192.0.2.7 1.1.1.1 -5 8\r\n",
    b"PROXY TCP5 192.0.2.7 1.1.1.1 5 8\r\n", b"PROXY UDP4 192.0.2.7 1.1.1.1 5 80\r\n", b"PROXY UNKNOWN" + b" x" * 60 + b"\r\n",
    b"PROXY UNKNOWN" + b" x" * 60, b"PROXY TCP4 192.0.2.7 10.0.0.1 5 80\n" + b"x" * 200, b"PROXY UNKNOWN\0\0\r\n",
    b"PROXY UNKNOWNER\r\n", v2()[:-1], v2(rest=V4[:-1]), v2(family=0x21), v2(family=0x21, rest=V6[:-1]), v2(family=0x12),
    v2(family=0x31, rest=bytes(216)), v2(command=0x22), v2(command=0x11), v2(length=5), v2(length=40),
    v2(rest=bytes(MAX_BYTES - 15)), v2(length=65_535), SIGNATURE, SIGNATURE[:-1] + b"X" + bytes(40),
]  # fmt: skip


@pytest.mark.parametrize("came", BAD)
async def test_anything_but_a_valid_preamble_is_refused(came):
    with pytest.raises(NoPreamble):
        await read_client_address(Wire(came).receive)


@pytest.mark.parametrize("came", [b"PROXY " + b"x" * 100_000, v2(length=60_000) + bytes(100_000)])
async def test_no_more_is_read_than_a_preamble_may_have(came):
    wire = Wire(came)
    with pytest.raises(NoPreamble):
        await read_client_address(wire.receive)
    assert len(came) - len(wire.left) <= 107


@given(st.binary(max_size=300), st.sampled_from([b"", b"PROXY ", b"PROXY TCP4 ", SIGNATURE]))
async def test_any_bytes_give_an_address_or_are_refused(came, head):
    try:
        address = await read_client_address(Wire(head + came).receive)
    except NoPreamble:
        return
    assert isinstance(address, str)


SERVING, ASKING = Identity(bytes([1]) * 32), Identity(bytes([2]) * 32)
PATIENT = RouterSettings(connect_timeout=10)
START = b"POST / HTTP/1.1\r\nHost: a\r\n"
HEAD = request_head(START, {}, 0)
MANY = 500
READERS = 100
PIECE = 16 * 1024
HELD = WINDOW + 4 * 64 * 1024
"""Bytes held of one answer that is not read: its window, and what the HTTP of both ends buffers and is processing."""

Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


@dataclass
class Served:
    """A node's listener, reduced to its connections."""

    handle: Handler
    shares: bool = True
    port: int = 0
    connections: int = 0
    shared: SharedConnections = field(default_factory=SharedConnections)

    async def __aenter__(self) -> "Served":
        context = server_context(SERVING)
        trust(context, certificate_of(ASKING))
        if self.shares:
            offer_sharing(context)
        self._http = web.Server(self.handle, access_log=None, handler_cancellation=True)
        make = self.shared.protocol_factory(self._http)

        def counted() -> asyncio.BaseProtocol:
            self.connections += 1
            return make()

        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            counted, "127.0.0.1", self.port, ssl=context, backlog=1024
        )
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        self.shared.go_away()
        await self._http.shutdown(1)
        await self.shared.close()

    @asynccontextmanager
    async def place(self, *, shares: bool = True) -> AsyncIterator[SharedPool]:
        """Yield the connections of another node to this listener."""
        context = client_context(ASKING, certificate_of(SERVING))
        if shares:
            offer_sharing(context)
        pool = SharedPool(tcp_dialer("127.0.0.1", self.port, context, name=""), PATIENT)
        try:
            yield pool
        finally:
            pool.close()


async def answered(pool: SharedPool, body: bytes = b"") -> bytes:
    reply = await pool.ask(request_head(START, {}, len(body)), body)
    return await reply.read_up_to(2**30)


async def at_once(_: web.BaseRequest) -> web.Response:
    return web.Response(text="done")


async def echo(request: web.BaseRequest) -> web.Response:
    return web.Response(body=await request.content.read())


class Endless:
    """Handler that answers without end and counts the bytes it has written."""

    def __init__(self) -> None:
        self.written = 0
        self.begun = self.ended = 0

    async def __call__(self, request: web.BaseRequest) -> web.StreamResponse:
        if request.method == "GET":
            return web.Response(text="done")
        response = web.StreamResponse()
        await response.prepare(request)
        self.begun += 1
        try:
            while True:
                await response.write(bytes(PIECE))
                self.written += PIECE
        finally:
            self.ended += 1


async def test_five_hundred_requests_at_once_take_a_few_connections_and_none_fails() -> None:
    arrived = 0
    everybody = asyncio.Event()

    async def together(_: web.BaseRequest) -> web.Response:
        nonlocal arrived
        arrived += 1
        if arrived == MANY:
            everybody.set()
        await everybody.wait()
        return web.Response(text="done")

    async with Served(together) as node, node.place() as pool:
        answers = await asyncio.gather(*(answered(pool) for _ in range(MANY)))
        assert answers == [b"done"] * MANY
        assert node.connections == -(-MANY // STREAMS)


async def test_the_connections_of_one_node_share_the_limit_of_streams_that_are_opened_in_vain() -> (
    None
):
    async with Served(at_once) as node, node.place() as one, node.place() as two:
        assert [await answered(pool) for pool in (one, two)] == [b"done"] * 2
        first, second = node.shared._peers
        assert first.mux.wasted_streams is second.mux.wasted_streams


async def test_requests_one_after_another_take_one_connection() -> None:
    async with Served(at_once) as node, node.place() as pool:
        for _ in range(10):
            assert await answered(pool) == b"done"
        assert node.connections == 1


@pytest.mark.parametrize(("asks", "serves"), [(True, False), (False, True), (False, False)])
async def test_with_a_node_of_the_previous_version_each_request_has_its_own_connection(
    asks: bool, serves: bool
) -> None:
    async with Served(echo, shares=serves) as node, node.place(shares=asks) as pool:
        answers = await asyncio.gather(*(answered(pool, b"%d" % n) for n in range(10)))
        assert answers == [b"%d" % n for n in range(10)]
        assert node.connections == 10


async def test_a_node_that_returns_with_the_new_version_gets_shared_connections_at_once() -> None:
    before = Served(at_once, shares=False)
    async with before, before.place() as pool:
        await answered(pool)
        await before.__aexit__()
        async with Served(at_once, port=before.port) as after:
            pool.close_idle()
            await answered(pool)
            await asyncio.gather(*(answered(pool) for _ in range(20)))
            assert after.connections == 1


@pytest.mark.parametrize("size", [0, 1, WINDOW - 1, WINDOW, 5_000_000])
async def test_bodies_of_any_size_go_both_ways(size: int) -> None:
    async with Served(echo) as node, node.place() as pool:
        bodies = [bytes([n]) * size for n in range(4)]
        assert await asyncio.gather(*(answered(pool, b) for b in bodies)) == bodies


async def test_a_handler_sees_the_certificate_of_the_asking_node() -> None:
    seen = []

    async def look(request: web.BaseRequest) -> web.Response:
        assert request.transport is not None
        secured = request.transport.get_extra_info("ssl_object")
        seen.append((secured.getpeercert(binary_form=True), secured.version(), request.remote))
        return web.Response()

    async with Served(look) as node, node.place() as pool:
        await answered(pool)
    assert seen == [(certificate_of(ASKING), "TLSv1.3", "127.0.0.1")]


async def test_a_hundred_stalled_readers_hold_little_memory_and_delay_no_other_request() -> None:
    endless = Endless()
    async with Served(endless) as node, node.place() as pool:
        stalled = [await pool.ask(HEAD, b"") for _ in range(READERS)]
        written = -1
        while written < endless.written:
            written = endless.written
            for _ in range(50):
                began = time.monotonic()
                assert await _asked(pool) == b"done"
                assert time.monotonic() - began < 5
        assert endless.begun == READERS
        # All bytes that are written but not read lie in the two nodes, or in the sockets between them.
        assert written < READERS * HELD + EXTRA_BYTES
        for reply in stalled:
            reply.close()
        await until(lambda: endless.ended == READERS)


async def _asked(pool: SharedPool) -> bytes:
    reply = await pool.ask(b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n", b"")
    return await reply.read_some()


async def test_a_request_that_is_given_up_ends_at_the_other_node_and_the_rest_go_on() -> None:
    endless = Endless()
    async with Served(endless) as node, node.place() as pool:
        left, stays = await pool.ask(HEAD, b""), await pool.ask(HEAD, b"")
        left.close()
        await until(lambda: endless.ended == 1)
        assert await stays.read_some()
        asking = asyncio.ensure_future(pool.ask(HEAD, b""))
        await until(lambda: endless.begun == 3 or asking.done())
        asking.cancel()
        (await asking).close() if asking.done() and not asking.cancelled() else None
        assert node.connections == 1


async def test_a_request_on_a_stuck_connection_is_sent_again_in_small_packets() -> None:
    small = []

    async def answer_if_small(request: web.BaseRequest) -> web.Response:
        assert request.transport is not None
        wire = request.transport.get_extra_info("socket")
        small.append(wire.getsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG) <= SMALL_SEGMENT)
        if not small[-1]:
            await asyncio.Event().wait()
        return web.Response(text="done")

    async with Served(answer_if_small) as node, node.place() as pool:
        first = asyncio.ensure_future(answered(pool))
        await until(lambda: len(small) == 1)
        # Only a request for which a connection was open already is sent again.
        later = [asyncio.ensure_future(ask(pool)) for ask in (answered, _resumed)]
        await until(lambda: len(small) == 3)
        (stuck,) = pool._shared._shared
        stuck.was_stuck = stuck.loses_large = True
        stuck.abort()
        with pytest.raises(CannotConnect):
            await first
        assert await asyncio.gather(*later) == [b"done"] * 2
        assert pool.stuck_at > 0
    assert small == [False] * 3 + [True] * 2


async def test_a_request_to_a_service_is_not_sent_again_if_its_connection_got_stuck() -> None:
    begun: list[str] = []

    async def hang(request: web.BaseRequest) -> web.Response:
        begun.append(request.path)
        await asyncio.Event().wait()
        raise AssertionError("it hangs")

    for_service = HEAD.replace(b"\r\n\r\n", f"\r\n{TARGET}: POST /jobs\r\n\r\n".encode())
    async with Served(hang) as node, node.place() as pool:
        asked = [asyncio.ensure_future(pool.ask(HEAD, b""))]
        await until(lambda: len(begun) == 1)
        asked.append(asyncio.ensure_future(pool.ask(for_service, b"")))
        await until(lambda: len(begun) == 2)
        (stuck,) = pool._shared._shared
        stuck.was_stuck = True
        stuck.abort()
        with pytest.raises(HungUp):
            await asked[1]
        with pytest.raises(CannotConnect):
            await asked[0]
    assert len(begun) == 2


async def _resumed(pool: SharedPool) -> bytes:
    connection = pool.take_idle()
    assert connection is not None
    reply = await pool.resume(connection.begin(HEAD, b""), HEAD, b"")
    return await reply.read_up_to(2**30)


async def test_an_answer_that_is_cut_raises_an_error_and_the_connection_stays_in_use() -> None:
    waiting = asyncio.Event()

    async def half(request: web.BaseRequest) -> web.StreamResponse:
        if request.method == "GET":
            return web.Response(text="done")
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"half")
        await waiting.wait()
        assert request.transport is not None
        request.transport.abort()
        return response

    async with Served(half) as node, node.place() as pool:
        reply = await pool.ask(HEAD, b"")
        assert await reply.read_some() == b"half"
        waiting.set()
        with pytest.raises(HungUp):
            await reply.read_some()
        assert await _asked(pool) == b"done"
        assert node.connections == 1


async def test_a_node_that_goes_away_finishes_its_requests_and_refuses_new_ones_unread() -> None:
    go, begun = asyncio.Event(), asyncio.Event()

    async def slow(_: web.BaseRequest) -> web.Response:
        begun.set()
        await go.wait()
        return web.Response(text="done")

    async with Served(slow) as node, node.place() as pool:
        under_way = asyncio.ensure_future(answered(pool))
        await begun.wait()
        node.shared.go_away()
        node._server.close()
        # Sent before the other node's notice has arrived, or after it: in either case the request is not read.
        with pytest.raises(CannotConnect):
            await answered(pool)
        with pytest.raises(CannotConnect):
            await answered(pool)
        go.set()
        assert await under_way == b"done"
        await until(lambda: not len(pool._shared))


async def test_requests_during_a_restart_are_answered_or_safe_to_retry() -> None:
    """Requests to a node that stops meet the same errors as with a connection for each, and mostly fewer."""
    first = Served(at_once)
    await first.__aenter__()
    failures: list[HttpError] = []
    told = 0

    async def ask_on(pool: SharedPool) -> None:
        nonlocal told
        while not done.is_set():
            try:
                assert await answered(pool) == b"done"
                told += 1
            except HttpError as error:
                failures.append(error)
                await asyncio.sleep(0)

    done = asyncio.Event()
    async with first.place() as pool:
        asking = [asyncio.ensure_future(ask_on(pool)) for _ in range(20)]
        await until(lambda: told > 100)
        await first.__aexit__()
        before = told
        async with Served(at_once, port=first.port):
            await until(lambda: told > before + 100)
            done.set()
            await asyncio.gather(*asking)
    # No answer broke off: of the answers to the failed requests, no byte had come.
    assert all(
        isinstance(e, CannotConnect) or (isinstance(e, HungUp) and e.untouched) for e in failures
    )


async def test_a_doubted_connection_that_answers_is_kept() -> None:
    async with Served(at_once) as node, node.place() as pool:
        await answered(pool)
        await pool.open_spare()
        await answered(pool)
        assert node.connections == 1


async def test_a_connection_made_after_its_place_has_closed_is_cut() -> None:
    async with Served(at_once) as node, node.place() as pool:
        pool.close()
        with pytest.raises(OSError, match="ended with its handshake"):
            await pool._shared(lambda: Connection(pool))
        await until(lambda: not len(pool._shared))


async def test_a_connection_that_is_let_go_of_gets_no_new_requests_and_ends_with_its_last() -> None:
    endless = Endless()
    async with Served(endless) as node, node.place() as pool:
        old: Reply = await pool.ask(HEAD, b"")
        pool.close_idle()
        assert await _asked(pool) == b"done"
        assert node.connections == 2
        assert await old.read_some()
        old.close()
        await until(lambda: len(pool._shared) == 1)


async def test_a_client_that_negotiates_sharing_but_sends_plain_http_is_cut_off() -> None:
    async with Served(at_once) as node:
        context = client_context(ASKING, certificate_of(SERVING))
        offer_sharing(context)
        reader, writer = await asyncio.open_connection("127.0.0.1", node.port, ssl=context)
        writer.write(b"GET / HTTP/1.1\r\n\r\n")
        with suppress(ConnectionError, ssl.SSLError):
            assert await reader.read() == b""
        writer.transport.abort()
