"""Questions over standing streams: which streams are kept, which are closed, and how many a peer may hold."""

import asyncio
import struct
from collections.abc import AsyncIterator
from typing import Any

import pytest
import trio
from libp2p.abc import INetStream
from libp2p.peer.id import ID

from registry.errors import PeerUnreachable
from registry.mesh.libp2p import ask as libp2p_ask
from registry.mesh.libp2p.ask import (
    ASK,
    KEPT_PER_PEER,
    LONG_BYTES,
    STANDING_PER_PEER,
    STREAMS_PER_PEER,
    read_exactly,
)
from tests.registry.mesh.worlds import LibP2PWorld, Seat, inside, until, world_of


@pytest.fixture
async def world() -> AsyncIterator[LibP2PWorld]:
    async with world_of(LibP2PWorld) as world:
        assert isinstance(world, LibP2PWorld)
        yield world


def streams(seat: Seat) -> list[Any]:
    """List the streams for questions that a node has, whichever side opened them."""
    host, _ = inside(seat)
    every = [s for conn in host.get_network().get_connections() for s in conn.get_streams()]
    return [stream for stream in every if stream.get_protocol() == ASK]


async def open_stream(asker: Seat, answerer: Seat) -> INetStream:
    host, thread = inside(asker)
    stream: INetStream = await thread.call(
        host.new_stream, ID.from_string(answerer.mesh.peer), [ASK]
    )
    return stream


async def ask_on(asker: Seat, stream: INetStream, question: bytes) -> bytes:
    _, thread = inside(asker)

    async def ask() -> bytes:
        await stream.write(struct.pack("!I", len(question)) + question)
        with trio.fail_after(5):
            (size,) = struct.unpack("!I", await read_exactly(stream, 4))
            return await read_exactly(stream, size)

    answer: bytes = await thread.call(ask)
    return answer


async def is_refused(asker: Seat, stream: INetStream) -> bool:
    try:
        await ask_on(asker, stream, b"?")
    except Exception:  # noqa: BLE001 (libp2p raises what it likes)
        return True
    return False


async def test_questions_one_after_another_take_one_stream(world: LibP2PWorld) -> None:
    first = await world.seat("first")
    second = await world.seat("second", first)
    for _ in range(5):
        assert await second.mesh.ask(first.mesh.peer, b"who?", timeout=5)
    assert len(streams(second)) == len(streams(first)) == 1


async def test_questions_at_one_time_take_streams_of_their_own_and_few_are_kept(
    world: LibP2PWorld,
) -> None:
    free = asyncio.Event()

    async def wait(asker: str, question: bytes) -> bytes:
        await free.wait()
        return question

    first = await world.seat("first", answer=wait)
    second = await world.seat("second", first)
    async with asyncio.TaskGroup() as tasks:
        pending = [
            tasks.create_task(second.mesh.ask(first.mesh.peer, bytes([n]), timeout=5))
            for n in range(6)
        ]
        await until(lambda: len(streams(first)) == 6)
        free.set()
    assert [task.result() for task in pending] == [bytes([n]) for n in range(6)]
    await until(lambda: len(streams(first)) == KEPT_PER_PEER)
    assert len(streams(second)) == KEPT_PER_PEER

    def standing() -> int:
        assert first.mesh.task_count() >= 0
        return first.mesh.idle_stream_count()

    await until(lambda: standing() == KEPT_PER_PEER)
    await first.mesh.stop()
    assert first.mesh.idle_stream_count() == 0


async def test_a_question_that_was_refused_takes_its_stream_with_it(world: LibP2PWorld) -> None:
    async def refuse(asker: str, question: bytes) -> bytes:
        raise PeerUnreachable("no")

    first = await world.seat("first", answer=refuse)
    second = await world.seat("second", first)
    with pytest.raises(PeerUnreachable):
        await second.mesh.ask(first.mesh.peer, b"?", timeout=5)
    await until(lambda: not streams(first) and not streams(second))


async def test_a_peer_that_closes_after_each_answer_is_asked_on_a_new_stream(
    world: LibP2PWorld,
) -> None:
    first = await world.seat("first")
    second = await world.seat("second", first)
    host, _ = inside(first)

    async def answer_once(stream: INetStream) -> None:
        (size,) = struct.unpack("!I", await read_exactly(stream, 4))
        await stream.write(struct.pack("!I", size) + await read_exactly(stream, size))
        await stream.close()

    host.set_stream_handler(ASK, answer_once)
    for question in (b"one", b"two", b"three"):
        assert await second.mesh.ask(first.mesh.peer, question, timeout=5) == question


async def test_an_asker_that_closes_after_its_answer_leaves_nothing_open(
    world: LibP2PWorld,
) -> None:
    first = await world.seat("first")
    second = await world.seat("second", first)
    _, thread = inside(second)
    stream = await open_stream(second, first)
    assert (await ask_on(second, stream, b"who?")).endswith(b"asked who?")
    await thread.call(stream.close)
    await until(lambda: not streams(first))


async def test_an_answerer_keeps_a_few_idle_streams_of_a_peer_and_closes_the_others(
    world: LibP2PWorld,
) -> None:
    first = await world.seat("first")
    second = await world.seat("second", first)
    opened = [await open_stream(second, first) for _ in range(STANDING_PER_PEER + 2)]
    for stream in opened:
        await ask_on(second, stream, b"?")
    refused = [await is_refused(second, stream) for stream in opened]
    assert refused == [False] * STANDING_PER_PEER + [True] * 2


async def test_a_peer_that_opens_streams_and_asks_nothing_is_refused_more_and_hinders_no_other(
    world: LibP2PWorld,
) -> None:
    first = await world.seat("first")
    second = await world.seat("second", first)
    third = await world.seat("third", first)
    for _ in range(STREAMS_PER_PEER):
        await open_stream(second, first)
    await until(lambda: len(streams(first)) == STREAMS_PER_PEER)
    assert await is_refused(second, await open_stream(second, first))
    assert first.mesh.refusal_counts()["streams_refused"] == 1
    assert await third.mesh.ask(first.mesh.peer, b"?", timeout=5)


async def begin(asker: Seat, answerer: Seat, size: int) -> None:
    """Announce a question of this size, and send no more."""
    _, thread = inside(asker)
    stream = await open_stream(asker, answerer)
    await thread.call(stream.write, struct.pack("!I", size))


async def test_peers_that_begin_questions_and_do_not_end_them_hinder_no_short_question(
    world: LibP2PWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(libp2p_ask, "LONG_MESSAGES", 1)
    first = await world.seat("first")
    second = await world.seat("second", first)
    third = await world.seat("third", first)
    for size in (33, 33, LONG_BYTES, LONG_BYTES + 1):
        await begin(second, first, size)
    await until(lambda: len(streams(first)) == 4)
    assert await third.mesh.ask(first.mesh.peer, b"?", timeout=5)
    with pytest.raises(PeerUnreachable):
        await third.mesh.ask(first.mesh.peer, bytes(LONG_BYTES + 1), timeout=5)
    assert first.mesh.refusal_counts()["streams_refused"]


async def test_streams_without_use_are_closed(
    world: LibP2PWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(libp2p_ask, "IDLE_SECONDS", 0.1)
    monkeypatch.setattr(libp2p_ask, "TIDY_SECONDS", 0.05)
    first = await world.seat("first")
    second = await world.seat("second", first)
    assert await second.mesh.ask(first.mesh.peer, b"?", timeout=5)
    await until(lambda: not streams(first) and not streams(second))
    assert await second.mesh.ask(first.mesh.peer, b"?", timeout=5)


async def test_an_answerer_closes_a_stream_on_which_nothing_is_asked_any_more(
    world: LibP2PWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(libp2p_ask, "STANDING_SECONDS", 0.1)
    first = await world.seat("first")
    second = await world.seat("second", first)
    for _ in range(3):
        assert await second.mesh.ask(first.mesh.peer, b"?", timeout=5)
        await until(lambda: all(s.muxed_stream.recv_closed for s in streams(second)))
