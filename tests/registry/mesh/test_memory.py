"""The mesh in memory beyond the contract: faults on request, the same ones every time."""

import random

from registry.mesh import Arrived, Joined, MeshEvent, PeerLeft, Pipe, Restarted
from registry.mesh.memory import Faults, MemoryMesh, MemoryNet, address_of
from tests.registry.mesh.worlds import echo, identity, return_everything

NAMES = ("first", "second", "third")


async def seats(net: MemoryNet) -> list[MemoryMesh]:
    """Seat three nodes in a row."""
    meshes: list[MemoryMesh] = []
    for name in NAMES:
        bootstrap = tuple(address_of(mesh.peer) for mesh in meshes[-1:])
        meshes.append(MemoryMesh(identity(name).peer, net, bootstrap=bootstrap))
        await meshes[-1].start(echo, return_everything)
    return meshes


async def events_until_stop(mesh: MemoryMesh) -> list[MeshEvent]:
    await mesh.stop()
    return [event async for event in mesh.events()]


async def frames_received(faults: Faults, seed: int) -> list[bytes]:
    net = MemoryNet(random.Random(seed), faults)
    first, _, third = await seats(net)
    for number in range(100):
        await first.publish(b"%d" % number)
    net.release()
    return [e.frame for e in await events_until_stop(third) if isinstance(e, Arrived)]


SENT = [b"%d" % number for number in range(100)]


async def test_without_faults_every_frame_arrives_once_and_in_order() -> None:
    assert await frames_received(Faults(), 1) == SENT


async def test_lost_frames_are_missing() -> None:
    received = await frames_received(Faults(lost=0.3), 1)
    assert 50 < len(received) < 90


async def test_doubled_frames_arrive_twice() -> None:
    received = await frames_received(Faults(doubled=0.3), 1)
    assert len(received) > 110
    assert set(received) == set(SENT)


async def test_delayed_frames_arrive_out_of_order_and_none_is_missing() -> None:
    received = await frames_received(Faults(delayed=0.3), 1)
    assert received != SENT
    assert sorted(received) == sorted(SENT)


async def test_one_seed_gives_one_history() -> None:
    faults = Faults(lost=0.2, doubled=0.2, delayed=0.2)
    assert await frames_received(faults, 7) == await frames_received(faults, 7)
    assert await frames_received(faults, 7) != await frames_received(faults, 8)


async def test_a_partition_parts_the_groups_and_healing_joins_them() -> None:
    net = MemoryNet()
    first, second, third = await seats(net)
    net.partition({first.peer}, {second.peer, third.peer})
    assert first.connections() == ()
    await first.publish(b"unheard")
    net.heal()
    await first.publish(b"heard")
    events = await events_until_stop(third)
    assert [e.frame for e in events if isinstance(e, Arrived)] == [b"heard"]
    received = await events_until_stop(first)
    assert received[:3] == [Joined(second.peer), PeerLeft(second.peer), Joined(second.peer)]


async def test_a_failed_mesh_comes_back_and_says_so() -> None:
    net = MemoryNet()
    first, second, _ = await seats(net)
    second.fail()
    assert not second.is_running()
    assert first.connections() == ()
    second.recover()
    assert {c.peer for c in first.connections()} == {second.peer}
    assert Restarted() in await events_until_stop(second)


async def test_a_node_that_comes_late_is_dialled_by_the_nodes_that_wait_for_it() -> None:
    net = MemoryNet()
    early = MemoryMesh(identity("early").peer, net, bootstrap=(address_of(identity("late").peer),))
    late = MemoryMesh(identity("late").peer, net)
    await early.start(echo, return_everything)
    assert early.connections() == ()
    await late.start(echo, return_everything)
    assert {c.peer for c in early.connections()} == {late.peer}
    await late.stop()
    await early.stop()


async def test_a_reader_too_slow_even_for_joins_and_partings_is_told_to_look_afresh() -> None:
    net = MemoryNet()
    mesh = MemoryMesh(identity("first").peer, net, queue=16)
    await mesh.start(echo, return_everything)
    other = MemoryMesh(identity("second").peer, net, bootstrap=(address_of(mesh.peer),))
    await other.start(echo, return_everything)
    for _ in range(20):
        other.fail()
        other.recover()
    events = await events_until_stop(mesh)
    assert events[0] == Restarted()
    assert len(events) < 32
    await other.stop()


async def test_a_pipe_survives_in_one_direction_after_the_other_is_finished() -> None:
    net = MemoryNet()
    first, second, _ = await seats(net)
    pipe: Pipe = await first.open_pipe(second.peer, timeout=1)
    await pipe.write(b"question")
    await pipe.finish()
    assert await pipe.read() == b"question"
    assert await pipe.read() == b""
    for mesh in (first, second):
        await mesh.stop()
