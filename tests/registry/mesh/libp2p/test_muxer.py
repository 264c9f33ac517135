"""Bounds of one connection: a peer that exceeds one loses its connection, and the other peers lose nothing."""

import asyncio
import logging
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import Any

import pytest
import trio
from libp2p.custom_types import TProtocol
from libp2p.io.exceptions import IOException
from libp2p.network.connection.exceptions import RawConnError
from libp2p.peer.id import ID

from registry.mesh import MAX_QUESTION_BYTES, PeerLeft, Restarted
from registry.mesh.libp2p.muxer import MAX_STREAMS
from tests.registry.mesh.libp2p.test_faults import frames_flow, inside, prefixed
from tests.registry.mesh.worlds import LibP2PWorld, Seat, joined, until, world_of

DATA, WINDOW, PING = range(3)
SYN = 1


@pytest.fixture
async def world() -> AsyncIterator[LibP2PWorld]:
    async with world_of(LibP2PWorld) as world:
        assert isinstance(world, LibP2PWorld)
        yield world


def muxed(kind: int, flags: int, stream: int, length: int, body: bytes = b"") -> bytes:
    return struct.pack("!BBHII", 0, kind, flags, stream, length) + body


async def write_below(liar: Seat, victim: Seat, *frames: bytes, then_hang_up: bool = False) -> None:
    """Write yamux frames of our choice into the connection of two nodes."""
    host, thread = inside(liar)

    async def write() -> None:
        (conn,) = host.get_network().get_connections(ID.from_string(victim.mesh.peer))
        secured: Any = conn.muxed_conn.secured_conn
        # The victim may have had enough before we have said everything.
        with suppress(IOException, RawConnError):
            for frame in frames:
                await secured.write(frame)
        if then_hang_up:
            await secured.close()

    await thread.call(write)


async def lose_connection(
    world: LibP2PWorld, victim: Seat, offend: Callable[[Seat], Awaitable[None]]
) -> None:
    # A machine that is busy with other things answers pings late, which is not tested here.
    bystander = await world.seat("bystander", victim, ping_timeout=30)
    # Not a bootstrap peer: it would be back before its parting could be seen.
    liar = await world.seat("liar")
    await liar.mesh.connect(victim.mesh.addresses()[0], timeout=5)
    await joined(liar, victim)
    await offend(liar)
    await until(lambda: PeerLeft(liar.mesh.peer) in victim.seen, within=30)
    await frames_flow(bystander, victim, b"still here")
    assert PeerLeft(bystander.mesh.peer) not in victim.seen
    assert Restarted() not in victim.seen


async def test_bytes_beyond_the_window_cost_the_connection(world: LibP2PWorld) -> None:
    victim = await world.seat("victim", ping_timeout=30)
    deaf: list[Any] = []

    async def read_nothing(stream: Any) -> None:
        deaf.append(stream.muxed_stream)
        await trio.Event().wait()

    inside(victim)[0].set_stream_handler(TProtocol("/deaf/1"), read_nothing)
    hello = prefixed(b"/multistream/1.0.0\n") + prefixed(b"/deaf/1\n")

    async def say_too_much(liar: Seat) -> None:
        opened = muxed(WINDOW, SYN, 1001, 0) + muxed(DATA, 0, 1001, len(hello), hello)
        await write_below(liar, victim, opened)
        await until(lambda: bool(deaf))
        # How large the window became while the greeting was read depends on the speed of this machine.
        enough = 2 * deaf[0].target_recv_window // 60_000 + 1
        await write_below(liar, victim, *[muxed(DATA, 0, 1001, 60_000, bytes(60_000))] * enough)

    await lose_connection(world, victim, say_too_much)


async def test_streams_without_end_cost_the_connection(world: LibP2PWorld) -> None:
    victim = await world.seat("victim", ping_timeout=30)
    opened = [muxed(WINDOW, SYN, 1001 + 2 * n, 0) for n in range(MAX_STREAMS + 20)]
    await lose_connection(world, victim, lambda liar: write_below(liar, victim, *opened))


async def test_a_connection_that_cannot_be_written_to_is_given_up_whatever_waits_to_be_read(
    world: LibP2PWorld, caplog: pytest.LogCaptureFixture
) -> None:
    victim = await world.seat("victim", ping_timeout=30)
    liar = await world.seat("liar", victim)
    caplog.set_level(logging.DEBUG, logger="modelvine.mesh")
    await write_below(
        liar, victim, *[muxed(PING, SYN, 0, n) * 100 for n in range(100)], then_hang_up=True
    )
    await until(lambda: PeerLeft(liar.mesh.peer) in victim.seen)
    await asyncio.sleep(0.5)
    complaints = [r for r in caplog.records if "handle_incoming" in r.getMessage()]
    assert len(complaints) <= 2
    assert all(record.levelno == logging.DEBUG for record in complaints)


async def test_long_questions_and_answers_are_no_offence(world: LibP2PWorld) -> None:
    first = await world.seat("first")
    second = await world.seat("second", first)
    question = bytes(MAX_QUESTION_BYTES)
    answers = await asyncio.gather(
        *(second.mesh.ask(first.mesh.peer, question, timeout=20) for _ in range(3))
    )
    assert all(answer.endswith(question) for answer in answers)
    assert PeerLeft(second.mesh.peer) not in first.seen


@pytest.mark.parametrize("speaks", [True, False], ids=["speaks", "silent"])
async def test_a_peer_that_answers_no_ping_keeps_its_connection_while_it_speaks(
    world: LibP2PWorld, *, speaks: bool
) -> None:
    victim = await world.seat("victim", ping=0.2, ping_timeout=0.4)
    peer = await world.seat("peer", ping=30, ping_timeout=30)
    await peer.mesh.connect(victim.mesh.addresses()[0], timeout=5)
    await joined(peer, victim)
    await frames_flow(peer, victim, b"first")
    unanswered: list[bytes] = []

    async def answer_no_ping() -> None:
        (conn,) = inside(peer)[0].get_network().get_connections(ID.from_string(victim.mesh.peer))
        wire: Any = conn.muxed_conn
        write = wire._write_frame

        async def write_unless_pong(frame: bytes) -> None:
            if frame[1] == PING:
                unanswered.append(frame)
            else:
                await write(frame)

        wire._write_frame = write_unless_pong

    await inside(peer)[1].call(answer_no_ping)
    for number in range(1_000):
        if len(unanswered) >= 4 or PeerLeft(peer.mesh.peer) in victim.seen:
            break
        if speaks:
            await peer.mesh.publish(b"number %d" % number)
        await asyncio.sleep(0.05)
    assert (PeerLeft(peer.mesh.peer) not in victim.seen) == speaks
