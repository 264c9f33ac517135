"""Laws of the connection that carries many streams: one write per turn, backpressure, and a peer that may be dead."""

import asyncio
import socket
import struct

import pytest

from router.http.errors import LinkStuck
from router.peers.mux import WINDOW, Flag, FrameType
from router.peers.muxed import (
    IDLE_CHECKS,
    READ_BYTES,
    SILENT_CHECKS,
    STUCK_CHECKS,
    STUCK_RETRANSMISSIONS,
    TURN_BYTES,
    MuxedConnection,
)
from router.peers.muxed_stream import MuxedStream


class Kernel:
    """The kernel's side of a TCP connection: how often it has sent the same bytes in a row, as Linux tells it."""

    family = socket.AF_INET

    def __init__(self) -> None:
        self.retransmissions = 0

    def setsockopt(self, *_: int) -> None:
        pass

    def getsockopt(self, _level: int, _option: int, size: int) -> bytes:
        return bytes((1, 4, self.retransmissions)).ljust(size, b"\0")


class Wire(asyncio.Transport):
    """Transport that records each write."""

    def __init__(self) -> None:
        super().__init__()
        self.kernel = Kernel()
        self.writes: list[bytes] = []
        self.closed = self.aborted = self.paused = False

    def get_extra_info(self, name: str, default: object = None) -> object:
        return self.kernel if name == "socket" else default

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.writes.append(bytes(data))

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def is_closing(self) -> bool:
        return self.closed or self.aborted

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.aborted = True


class Owner:
    """Owner that records its notifications."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def add_connection(self, connection: MuxedConnection) -> None:
        self.told.append("begun")

    def remove_connection(self, connection: MuxedConnection) -> None:
        self.told.append("ended")


class Noted(asyncio.Protocol):
    """Protocol that records the calls of its transport."""

    def __init__(self) -> None:
        self.told: list[object] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, MuxedStream)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.told.append(data)

    def eof_received(self) -> bool:
        self.told.append("end")
        return True

    def pause_writing(self) -> None:
        self.told.append("full")

    def resume_writing(self) -> None:
        self.told.append("room")

    def connection_lost(self, error: Exception | None) -> None:
        self.told.append(error if error is None else type(error))


class Little(asyncio.Protocol):
    """Protocol that pauses reading after each piece."""

    def __init__(self) -> None:
        self.got = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, MuxedStream)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.got += data
        self.transport.pause_reading()


def frame(kind: int, flags: int, stream: int, number: int = 0, payload: bytes = b"") -> bytes:
    return struct.pack("!BBHII", 0, kind, flags, stream, number) + payload


def data(stream: int, payload: bytes, flags: int = 0) -> bytes:
    return frame(FrameType.DATA, flags, stream, len(payload), payload)


@pytest.fixture
async def owner() -> Owner:
    return Owner()


@pytest.fixture
async def wire() -> Wire:
    return Wire()


@pytest.fixture
async def asking(owner: Owner, wire: Wire) -> MuxedConnection:
    connection = MuxedConnection(owner)
    connection.connection_made(wire)
    return connection


async def turn() -> None:
    await asyncio.sleep(0)
    await asyncio.sleep(0)


def streams(connection: MuxedConnection, count: int) -> list[Noted]:
    opened = [Noted() for _ in range(count)]
    for protocol in opened:
        connection.open_stream(protocol)
    return opened


async def test_all_frames_of_one_turn_are_sent_in_one_write(
    asking: MuxedConnection, wire: Wire
) -> None:
    for number, protocol in enumerate(streams(asking, 50)):
        protocol.transport.write(b"head %d" % number)
        protocol.transport.writelines([b"bo", b"dy"])
    await turn()
    assert len(wire.writes) == 1
    assert wire.writes[0].count(b"body") == 50


async def test_a_full_transport_pauses_streams_and_their_writers(
    asking: MuxedConnection, wire: Wire
) -> None:
    (stream,) = streams(asking, 1)
    asking.pause_writing()
    stream.transport.write(bytes(WINDOW + 1))
    await turn()
    assert wire.writes == []
    assert stream.told == ["full"]
    asking.resume_writing()
    await turn()
    asking.data_received(frame(FrameType.WINDOW, Flag.ACK, 1, WINDOW))
    await turn()
    assert stream.told == ["full", "room"]
    assert max(map(len, wire.writes)) <= TURN_BYTES


async def test_a_reader_that_pauses_gets_the_rest_when_it_resumes(
    asking: MuxedConnection,
) -> None:
    little = Little()
    asking.open_stream(little)
    asking.data_received(data(1, b"0123456789"))
    asking.data_received(data(1, b"abc"))
    asking.data_received(data(1, b"def"))
    for got in (b"0123456789", b"0123456789abc", b"0123456789abcdef"):
        assert little.got == got
        little.transport.resume_reading()
        await turn()


async def test_the_loop_has_a_turn_before_more_than_one_full_read_is_taken_in(
    asking: MuxedConnection, wire: Wire
) -> None:
    pong = frame(FrameType.PING, Flag.ACK, 0)
    asking.data_received(pong)
    assert not wire.paused
    asking.data_received(pong * (READ_BYTES // len(pong) + 1))
    assert wire.paused
    await turn()
    assert not wire.paused


async def test_the_end_of_a_stream_comes_after_all_its_bytes(asking: MuxedConnection) -> None:
    (stream,) = streams(asking, 1)
    stream.transport.pause_reading()
    asking.data_received(data(1, b"last words", Flag.FIN))
    assert stream.told == []
    stream.transport.resume_reading()
    await turn()
    assert stream.told == [b"last words", "end"]


async def test_a_closed_stream_ends_when_all_its_bytes_are_sent(
    asking: MuxedConnection, wire: Wire
) -> None:
    (stream,) = streams(asking, 1)
    stream.transport.write(bytes(WINDOW + 5))
    stream.transport.close()
    await turn()
    assert stream.told == ["full", "room"]
    asking.data_received(frame(FrameType.WINDOW, Flag.ACK, 1, WINDOW))
    await turn()
    await turn()
    assert stream.told[-1] is None
    assert wire.writes[-1] == data(1, bytes(5), Flag.FIN)


async def test_an_aborted_stream_gets_no_more_bytes(asking: MuxedConnection, wire: Wire) -> None:
    (stream,) = streams(asking, 1)
    await turn()
    stream.transport.abort()
    asking.data_received(data(1, b"late"))
    await turn()
    assert stream.told == [None]
    assert wire.writes[-1] == frame(FrameType.WINDOW, Flag.RST, 1)


@pytest.mark.parametrize(
    ("flags", "error"), [(0, ConnectionRefusedError), (Flag.ACK, ConnectionResetError)]
)
async def test_a_refused_stream_and_a_cut_one_raise_different_errors(
    asking: MuxedConnection, flags: int, error: type[Exception]
) -> None:
    (stream,) = streams(asking, 1)
    asking.data_received(frame(FrameType.WINDOW, Flag.RST | flags, 1))
    await turn()
    assert stream.told == [error]


async def test_the_end_of_the_connection_ends_all_its_streams(
    asking: MuxedConnection, owner: Owner
) -> None:
    opened = streams(asking, 3)
    asking.connection_lost(None)
    await turn()
    assert [protocol.told for protocol in opened] == [[ConnectionResetError]] * 3
    assert owner.told == ["begun", "ended"]


async def test_a_protocol_violation_aborts_the_connection_and_is_logged(
    asking: MuxedConnection, wire: Wire, caplog: pytest.LogCaptureFixture
) -> None:
    asking.data_received(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    assert wire.aborted
    assert "it sent an invalid frame" in caplog.text


async def test_a_silent_peer_is_pinged_and_finally_cut_off(
    asking: MuxedConnection, wire: Wire
) -> None:
    streams(asking, 1)
    await turn()
    wire.writes.clear()
    for looks in range(SILENT_CHECKS + 1):
        assert not wire.aborted
        # It gets no new streams once a ping was not answered.
        assert asking.draining == (looks > 1)
        asking._check_connection()
        await turn()
    assert wire.writes == [frame(FrameType.PING, Flag.SYN, 0)] * (SILENT_CHECKS + 1)
    asking._check_connection()
    assert wire.aborted
    asking.connection_lost(None)


async def answer_ping(asking: MuxedConnection) -> None:
    await turn()
    asking.data_received(frame(FrameType.PING, Flag.ACK, 0))


def check_while_heard(asking: MuxedConnection, checks: int) -> None:
    """Check a connection so often; before each, a ping of the other side comes and the own one is not answered."""
    for _ in range(checks):
        asking.data_received(frame(FrameType.PING, Flag.SYN, 0))
        asking._check_connection()


async def test_a_connection_on_which_only_the_other_sides_bytes_arrive_is_cut_after_two_checks(
    asking: MuxedConnection, wire: Wire, owner: Owner, caplog: pytest.LogCaptureFixture
) -> None:
    (read,) = streams(asking, 1)
    await asyncio.gather(asking.check(), answer_ping(asking))
    (stream,) = streams(asking, 1)
    check_while_heard(asking, 1)
    wire.kernel.retransmissions = STUCK_RETRANSMISSIONS
    check_while_heard(asking, STUCK_CHECKS - 1)
    assert not wire.aborted
    check_while_heard(asking, 1)
    assert wire.aborted
    assert "check the MTU of the path" in caplog.text
    asking.connection_lost(None)
    await turn()
    # What was sent before a ping that was answered has arrived.
    assert (read.told, stream.told) == ([ConnectionResetError], [LinkStuck])
    assert asking.was_stuck


@pytest.mark.parametrize("heard", [True, False], ids=["slow line", "no line"])
async def test_a_connection_on_which_bytes_still_arrive_or_none_come_either_is_not_cut_so_soon(
    asking: MuxedConnection, wire: Wire, *, heard: bool
) -> None:
    streams(asking, 1)
    for checks in range(SILENT_CHECKS):
        wire.kernel.retransmissions = checks % STUCK_RETRANSMISSIONS if heard else checks
        if heard:
            check_while_heard(asking, 1)
        else:
            asking._check_connection()
    assert not wire.aborted
    assert not asking.was_stuck
    asking.connection_lost(None)


@pytest.mark.parametrize(("checks", "stuck"), [(1, False), (2, True)])
async def test_a_reset_after_an_unanswered_ping_tells_that_the_other_sides_bytes_were_stuck(
    asking: MuxedConnection, checks: int, *, stuck: bool
) -> None:
    (stream,) = streams(asking, 1)
    for _ in range(checks):
        asking._check_connection()
    asking.connection_lost(ConnectionResetError())
    await turn()
    assert asking.was_stuck is asking.loses_large is stuck
    assert stream.told == [ConnectionResetError]


async def test_a_silent_peer_is_not_pinged_while_the_connection_closes(
    asking: MuxedConnection, wire: Wire
) -> None:
    asking.drain()
    assert wire.closed
    for _ in range(SILENT_CHECKS + 2):
        asking._check_connection()
        await turn()
    assert wire.writes == []
    assert wire.aborted
    asking.connection_lost(None)


async def test_a_peer_that_answers_pings_is_kept_and_an_idle_connection_is_closed(
    asking: MuxedConnection, wire: Wire
) -> None:
    (stream,) = streams(asking, 1)
    for _ in range(3 * SILENT_CHECKS):
        asking._check_connection()
        asking.data_received(frame(FrameType.PING, Flag.ACK, 0))
    stream.transport.abort()
    for _ in range(IDLE_CHECKS):
        asking._check_connection()
        asking.data_received(frame(FrameType.PING, Flag.ACK, 0))
    assert not wire.is_closing()
    asking._check_connection()
    assert wire.closed
    asking.connection_lost(None)


async def test_a_doubted_connection_is_kept_if_it_answers_soon(
    asking: MuxedConnection, wire: Wire
) -> None:
    checked = asyncio.ensure_future(asking.check())
    await turn()
    assert wire.writes == [frame(FrameType.PING, Flag.SYN, 0)]
    asking.data_received(frame(FrameType.PING, Flag.ACK, 0))
    await checked
    assert not asking.draining


async def test_a_doubted_connection_that_stays_silent_is_drained(asking: MuxedConnection) -> None:
    await asking.check(within=0.01)
    assert asking.draining


async def test_a_connection_whose_node_lives_or_has_moved_is_cut_if_it_stays_silent(
    asking: MuxedConnection, wire: Wire
) -> None:
    streams(asking, 1)
    await asyncio.gather(asking.check(within=5, cut=True), answer_ping(asking))
    assert not wire.aborted
    await asking.check(within=0.01, cut=True)
    assert wire.aborted
    assert asking.was_stuck
    assert not asking.loses_large


async def test_a_connection_that_is_heard_but_answers_no_ping_yet_is_not_cut(
    asking: MuxedConnection, wire: Wire
) -> None:
    (stream,) = streams(asking, 1)
    checked = asyncio.ensure_future(asking.check(within=0.05, cut=True))
    await turn()
    while not checked.done():
        asking.data_received(data(1, b"part of a long answer"))
        await turn()
    assert asking.draining
    assert not wire.aborted
    assert stream.told


async def test_streams_whose_bytes_the_kernel_could_not_deliver_are_stuck(
    asking: MuxedConnection,
) -> None:
    (stream,) = streams(asking, 1)
    asking.connection_lost(TimeoutError())
    await turn()
    assert stream.told == [LinkStuck]


async def test_the_asked_side_leaves_closing_the_connection_to_the_asking_side(
    owner: Owner, wire: Wire
) -> None:
    made: list[Noted] = []

    def accept() -> Noted:
        made.append(Noted())
        return made[-1]

    asked = MuxedConnection(owner, accept=accept)
    asked.connection_made(wire)
    asked.data_received(frame(FrameType.WINDOW, Flag.SYN, 1) + data(1, b"question"))
    asked.go_away()
    asked.data_received(frame(FrameType.WINDOW, Flag.SYN, 3) + data(3, b"late"))
    made[0].transport.write(b"answer")
    made[0].transport.close()
    await turn()
    assert [protocol.told for protocol in made] == [[b"question", None]]
    assert b"".join(wire.writes) == (
        frame(FrameType.GO_AWAY, 0, 0)
        + frame(FrameType.WINDOW, Flag.RST, 3)
        + data(1, b"answer", Flag.ACK | Flag.FIN)
    )
    assert not wire.is_closing()
    asked.connection_lost(None)
