"""Contract of every mesh, whatever carries it."""

import asyncio
import hashlib
import threading
from collections.abc import AsyncIterator

import pytest

from registry.errors import InvalidFrame, LimitReached, MeshDown, PeerUnreachable
from registry.mesh import (
    MAX_ANSWER_BYTES,
    MAX_FRAME_BYTES,
    MAX_QUESTION_BYTES,
    Arrived,
    Direction,
    Joined,
    Origin,
    PeerLeft,
    Pipe,
)
from tests.registry.mesh.worlds import (
    LibP2PWorld,
    MemoryWorld,
    Seat,
    World,
    identity,
    joined,
    until,
    world_of,
)


@pytest.fixture(params=[MemoryWorld, LibP2PWorld])
async def world(request: pytest.FixtureRequest) -> AsyncIterator[World]:
    async with world_of(request.param) as world:
        yield world


async def read_all(pipe: Pipe) -> bytes:
    parts = []
    while chunk := await pipe.read():
        parts.append(chunk)
    return b"".join(parts)


async def published(seat: Seat, frame: bytes, *others: Seat) -> None:
    """Publish until the gossip has reached all the others: a young mesh may lose a frame."""
    async with asyncio.timeout(10):
        while not all(frame in other.frames() for other in others):
            await seat.mesh.publish(frame)
            await asyncio.sleep(0.05)


async def test_a_frame_reaches_every_node_but_its_author(world: World) -> None:
    first = await world.seat("first")
    second = await world.seat("second", first)
    third = await world.seat("third", second)
    await published(third, b"from the third", first, second)
    await published(first, b"from the first", second, third)
    assert b"from the third" not in third.frames()
    assert {event.via for event in third.seen if isinstance(event, Arrived)} == {second.mesh.peer}


async def test_a_mesh_says_how_many_tasks_it_has_of_its_own_and_none_once_it_is_down(
    world: World,
) -> None:
    seat = await world.seat("first")
    own_loop = isinstance(world, LibP2PWorld)
    await until(lambda: (seat.mesh.task_count() > 0) is own_loop)
    await seat.mesh.stop()
    assert seat.mesh.task_count() == 0


async def test_a_mesh_says_which_protocols_it_speaks_and_what_its_peers_said(world: World) -> None:
    first = await world.seat("first")
    second = await world.seat("second", first)
    own_protocols = await first.mesh.protocols(first.mesh.peer)
    assert all(name.startswith("/") for name in own_protocols)
    if isinstance(world, LibP2PWorld):
        assert {"/modelvine/ask/1", "/modelvine/pipe/1", "/meshsub/1.1.0", "/ipfs/id/1.0.0"} <= {
            *own_protocols
        }
    async with asyncio.timeout(10):
        while not await second.mesh.protocols(first.mesh.peer):  # noqa: ASYNC110 (the other end says it)
            await asyncio.sleep(0.01)
    assert {*await second.mesh.protocols(first.mesh.peer)} == {*own_protocols}
    assert await first.mesh.protocols(identity("a stranger").peer) == ()
    await first.mesh.stop()
    assert await first.mesh.protocols(first.mesh.peer) == ()


async def test_frames_of_one_author_arrive_whole_up_to_the_limit(world: World) -> None:
    first = await world.seat("first")
    second = await world.seat("second", first)
    await published(first, b"warm", second)
    largest = bytes(MAX_FRAME_BYTES)
    await published(first, largest, second)
    with pytest.raises(InvalidFrame):
        await first.mesh.publish(largest + b"!")


async def test_both_sides_see_a_connection_and_its_direction(world: World) -> None:
    first = await world.seat("first")
    second = await world.seat("second", first)
    (inbound,) = first.mesh.connections()
    (outbound,) = second.mesh.connections()
    assert (inbound.peer, inbound.direction) == (second.mesh.peer, Direction.INBOUND)
    assert (outbound.peer, outbound.direction) == (first.mesh.peer, Direction.OUTBOUND)
    assert outbound.address.endswith(f"/p2p/{first.mesh.peer}")
    assert first.mesh.addresses()[0].endswith(f"/p2p/{first.mesh.peer}")
    await until(lambda: Joined(second.mesh.peer) in first.seen)
    await until(lambda: Joined(first.mesh.peer) in second.seen)


async def test_a_peer_that_stops_is_seen_to_part_once(world: World) -> None:
    first = await world.seat("first")
    second = await world.seat("second", first)
    await second.mesh.stop()
    await until(lambda: PeerLeft(second.mesh.peer) in first.seen)
    assert first.mesh.connections() == ()
    assert first.seen.count(Joined(second.mesh.peer)) == 1
    assert first.seen.count(PeerLeft(second.mesh.peer)) == 1


async def test_connect_dials_an_address_and_disconnect_ends_it(world: World) -> None:
    first = await world.seat("first")
    second = await world.seat("second")
    address = first.mesh.addresses()[0]
    assert await second.mesh.connect(address, timeout=5) == first.mesh.peer
    await joined(first, second)
    await second.mesh.connect(address, timeout=5)
    assert len(second.mesh.connections()) == 1
    await second.mesh.disconnect(first.mesh.peer)
    await until(lambda: not first.peers() and not second.peers())
    await second.mesh.disconnect(first.mesh.peer)


async def test_keep_connects_to_the_peers_that_it_names(world: World) -> None:
    first = await world.seat("first")
    second = await world.seat("second")
    third = await world.seat("third")
    third.mesh.set_neighbours(
        first.mesh.addresses() + second.mesh.addresses() + third.mesh.addresses()
    )
    await joined(third, first)
    await joined(third, second)


async def test_pinned_addresses_take_the_place_of_those_configured(world: World) -> None:
    first, second, third = [await world.seat(name) for name in ("first", "second", "third")]
    fourth = await world.seat("fourth", first)
    fourth.mesh.set_bootstrap(second.mesh.addresses())
    await joined(fourth, second)
    await fourth.mesh.disconnect(first.mesh.peer)
    fourth.mesh.set_bootstrap(second.mesh.addresses() + third.mesh.addresses())
    # A dial takes longer than the pause after which a lost peer would be dialled again.
    await joined(fourth, third)
    assert fourth.peers() == {second.mesh.peer, third.mesh.peer}


async def test_a_connection_tells_how_it_came_about(world: World) -> None:
    first, second, third = [await world.seat(name) for name in ("first", "second", "third")]
    fourth = await world.seat("fourth", first)
    fourth.mesh.set_neighbours(second.mesh.addresses())
    await joined(fourth, second)
    await fourth.mesh.connect(third.mesh.addresses()[0], timeout=5)
    await joined(fourth, third)
    assert {c.peer: c.origin for c in fourth.mesh.connections()} == {
        first.mesh.peer: Origin.BOOTSTRAP,
        second.mesh.peer: Origin.RECORD,
        third.mesh.peer: Origin.ASKED,
    }
    assert [c.origin for c in first.mesh.connections()] == [Origin.INBOUND]


async def test_a_node_does_not_dial_itself(world: World) -> None:
    first = await world.seat("first")
    with pytest.raises(PeerUnreachable):
        await first.mesh.connect(first.mesh.addresses()[0], timeout=5)


@pytest.mark.parametrize(
    "address", ["", "/p2p/", "nonsense", "/ip4/127.0.0.1/tcp/1", "/p2p/not-an-id"]
)
async def test_an_address_that_names_no_reachable_peer_is_unreachable(
    world: World, address: str
) -> None:
    first = await world.seat("first")
    with pytest.raises(PeerUnreachable):
        await first.mesh.connect(address, timeout=2)


async def test_the_node_that_answers_a_question_knows_the_asker(world: World) -> None:
    first = await world.seat("first")
    second = await world.seat("second", first)
    answer = await second.mesh.ask(first.mesh.peer, b"who?", timeout=5)
    assert answer == second.mesh.peer.encode() + b" asked who?"
    assert await first.mesh.ask(second.mesh.peer, b"", timeout=5)


async def test_questions_run_side_by_side(world: World) -> None:
    release = asyncio.Event()

    async def wait_for_it(asker: str, question: bytes) -> bytes:
        if question == b"slow":
            await release.wait()
        else:
            release.set()
        return question

    first = await world.seat("first", answer=wait_for_it)
    second = await world.seat("second", first)
    slow, quick = await asyncio.gather(
        second.mesh.ask(first.mesh.peer, b"slow", timeout=5),
        second.mesh.ask(first.mesh.peer, b"quick", timeout=5),
    )
    assert (slow, quick) == (b"slow", b"quick")


async def test_a_raising_answerer_costs_the_asker_its_answer_only(world: World) -> None:
    async def fail(asker: str, question: bytes) -> bytes:
        if question == b"fail":
            raise RuntimeError("a fault of ours")
        return question

    first = await world.seat("first", answer=fail)
    second = await world.seat("second", first)
    with pytest.raises(PeerUnreachable):
        await second.mesh.ask(first.mesh.peer, b"fail", timeout=5)
    assert await second.mesh.ask(first.mesh.peer, b"fine", timeout=5) == b"fine"


async def test_an_answer_that_takes_too_long_is_given_up_on_both_sides(world: World) -> None:
    given_up = asyncio.Event()

    async def never(asker: str, question: bytes) -> bytes:
        try:
            await asyncio.Event().wait()
        finally:
            given_up.set()
        return b""

    first = await world.seat("first", answer=never)
    second = await world.seat("second", first)
    with pytest.raises(PeerUnreachable):
        await second.mesh.ask(first.mesh.peer, b"?", timeout=0.3)
    async with asyncio.timeout(5):
        await given_up.wait()


async def test_an_asker_that_leaves_ends_the_work_for_its_answer(world: World) -> None:
    begun, given_up = asyncio.Event(), asyncio.Event()

    async def never(asker: str, question: bytes) -> bytes:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            given_up.set()
        return b""

    first = await world.seat("first", answer=never)
    second = await world.seat("second", first)
    async with asyncio.TaskGroup() as tasks:
        asking = tasks.create_task(second.mesh.ask(first.mesh.peer, b"?", timeout=30))
        await begun.wait()
        asking.cancel()
    async with asyncio.timeout(5):
        await given_up.wait()


async def test_large_questions_and_answers_pass_up_to_the_limit(world: World) -> None:
    async def answer(asker: str, question: bytes) -> bytes:
        lengths = {b"much": MAX_ANSWER_BYTES, b"too much": MAX_ANSWER_BYTES + 1}
        return bytes(lengths[question]) if question in lengths else question

    first = await world.seat("first", answer=answer)
    second = await world.seat("second", first)
    largest = bytes(MAX_QUESTION_BYTES)
    assert len(await second.mesh.ask(first.mesh.peer, b"much", timeout=10)) == MAX_ANSWER_BYTES
    assert await second.mesh.ask(first.mesh.peer, largest, timeout=10) == largest
    with pytest.raises(LimitReached):
        await second.mesh.ask(first.mesh.peer, largest + b"!", timeout=10)
    with pytest.raises(PeerUnreachable):
        await second.mesh.ask(first.mesh.peer, b"too much", timeout=10)


async def test_a_stranger_cannot_be_asked(world: World) -> None:
    first = await world.seat("first")
    stranger = identity("stranger").peer
    with pytest.raises(PeerUnreachable):
        await first.mesh.ask(stranger, b"?", timeout=2)
    with pytest.raises(PeerUnreachable):
        await first.mesh.open_pipe(stranger, timeout=2)


async def test_a_pipe_carries_megabytes_both_ways_and_knows_its_peer(world: World) -> None:
    sizes: list[int] = []

    async def count_and_return(pipe: Pipe) -> None:
        body = await read_all(pipe)
        sizes.append(len(body))
        await pipe.write(pipe.peer.encode() + body)
        await pipe.finish()

    first = await world.seat("first", serve_pipe=count_and_return)
    second = await world.seat("second", first)
    body = b"".join(hashlib.sha256(b"%d" % n).digest() for n in range(160 * 1024))
    pipe = await second.mesh.open_pipe(first.mesh.peer, timeout=5)
    assert pipe.peer == first.mesh.peer
    await pipe.write(body)
    await pipe.finish()
    assert await read_all(pipe) == second.mesh.peer.encode() + body
    assert await pipe.read() == b""
    assert sizes == [5 * 1024 * 1024]


async def test_a_finished_answer_arrives_though_its_writer_left_the_rest_unread(
    world: World,
) -> None:
    async def answer_early(pipe: Pipe) -> None:
        await pipe.read()
        await pipe.write(b"enough")
        await pipe.finish()

    first = await world.seat("first", serve_pipe=answer_early)
    second = await world.seat("second", first)
    pipe = await second.mesh.open_pipe(first.mesh.peer, timeout=5)
    await pipe.write(b"a beginning")
    assert await read_all(pipe) == b"enough"


async def test_a_pipe_is_cut_for_both_when_one_side_resets_it(world: World) -> None:
    outcome: asyncio.Queue[str] = asyncio.Queue()

    async def expect_the_cut(pipe: Pipe) -> None:
        await pipe.write(b"hello")
        try:
            await read_all(pipe)
        except PeerUnreachable:
            outcome.put_nowait("cut")

    first = await world.seat("first", serve_pipe=expect_the_cut)
    second = await world.seat("second", first)
    pipe = await second.mesh.open_pipe(first.mesh.peer, timeout=5)
    assert await pipe.read() == b"hello"
    await pipe.reset()
    async with asyncio.timeout(5):
        assert await outcome.get() == "cut"
    with pytest.raises(PeerUnreachable):
        await pipe.write(b"more")
    await pipe.reset()


async def test_a_raising_handler_cuts_its_pipe_and_nothing_else(world: World) -> None:
    async def fail(pipe: Pipe) -> None:
        raise RuntimeError("a fault of ours")

    first = await world.seat("first", serve_pipe=fail)
    second = await world.seat("second", first)
    pipe = await second.mesh.open_pipe(first.mesh.peer, timeout=5)
    with pytest.raises(PeerUnreachable):
        await read_all(pipe)
    assert await second.mesh.ask(first.mesh.peer, b"?", timeout=5)


async def test_a_pipe_is_cut_when_its_peer_goes(world: World) -> None:
    first = await world.seat("first")
    second = await world.seat("second", first)
    pipe = await second.mesh.open_pipe(first.mesh.peer, timeout=5)
    await pipe.write(b"ping")
    assert await pipe.read() == b"ping"
    await first.mesh.stop()
    with pytest.raises(PeerUnreachable):
        await read_all(pipe)


async def test_a_slow_reader_makes_the_writer_wait_instead_of_growing(world: World) -> None:
    sent: list[int] = []

    async def pour(pipe: Pipe) -> None:
        for _ in range(64):
            await pipe.write(bytes(64 * 1024))
            sent.append(1)
        await pipe.finish()

    first = await world.seat("first", serve_pipe=pour)
    second = await world.seat("second", first)
    pipe = await second.mesh.open_pipe(first.mesh.peer, timeout=5)
    await until(lambda: len(sent) >= 4)
    other = await second.mesh.open_pipe(first.mesh.peer, timeout=5)
    assert len(await read_all(other)) == 64 * 64 * 1024
    assert len(sent) < 64 + 32
    assert len(await read_all(pipe)) == 64 * 64 * 1024


async def test_more_pipes_than_the_limit_are_refused_until_one_ends(world: World) -> None:
    first = await world.seat("first")
    second = await world.seat("second", first, max_pipes=2)
    incoming = await second.mesh.open_pipe(first.mesh.peer, timeout=5)
    two = await second.mesh.open_pipe(first.mesh.peer, timeout=5)
    with pytest.raises(LimitReached):
        await second.mesh.open_pipe(first.mesh.peer, timeout=5)
    outgoing = await first.mesh.open_pipe(second.mesh.peer, timeout=5)
    with pytest.raises(PeerUnreachable):
        await read_all(outgoing)
    await incoming.reset()
    third = await second.mesh.open_pipe(first.mesh.peer, timeout=5)
    for pipe in (two, third):
        await pipe.write(b"alive")
        assert await pipe.read() == b"alive"


async def test_frames_that_the_reader_has_no_time_for_are_dropped_and_counted(
    world: World,
) -> None:
    first = await world.seat("first")
    second = await world.seat("second", first, queue=16)
    async with asyncio.timeout(10):
        while second.mesh.dropped_frames() < 5:
            await first.mesh.publish(b"one of many")
            await asyncio.sleep(0.01)
    await second.watch_some(16)
    assert len(second.seen) == 16
    assert second.seen[0] == Joined(first.mesh.peer)


async def test_a_stopped_mesh_leaves_nothing_running_and_says_that_it_is_down(
    world: World,
) -> None:
    threads, tasks = threading.active_count(), asyncio.all_tasks()
    first = await world.seat("first")
    second = await world.seat("second", first)
    pipe = await second.mesh.open_pipe(first.mesh.peer, timeout=5)
    assert second.mesh.is_running()
    for seat in (first, second):
        await seat.mesh.stop()
        await seat.mesh.stop()
        assert not seat.mesh.is_running()
        assert seat.mesh.addresses() == ()
        assert seat.mesh.connections() == ()
    with pytest.raises(PeerUnreachable):
        await pipe.read()
    with pytest.raises(MeshDown):
        await second.mesh.publish(b"frame")
    with pytest.raises(MeshDown):
        await second.mesh.ask(first.mesh.peer, b"?", timeout=1)
    with pytest.raises(MeshDown):
        await second.mesh.connect("/ip4/127.0.0.1/tcp/1/p2p/" + first.mesh.peer, timeout=1)
    await until(lambda: asyncio.all_tasks() <= tasks)
    assert threading.active_count() == threads
