"""Connections passed by descriptor: a helper opens one, the first process accepts it; and pipes carried over them."""

import asyncio
import socket
from collections.abc import AsyncIterator

import pytest

from node.processes.forward import (
    ConnectionUse,
    DescriptorReceiver,
    DescriptorSender,
    borrow_pipe,
    lend_pipe,
)
from registry.errors import PeerUnreachable
from registry.mesh import Pipe
from registry.mesh.memory import pipe_between
from registry.records import PeerId
from registry.task_group import BackgroundTasks
from router.peers.pipes import NoMesh
from tests.router.world import until

US, THEM = PeerId("us"), PeerId("them")


class Building:
    """A helper's sender of descriptors, and the receiver at the first process."""

    def __init__(self) -> None:
        own, self.end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.came: list[tuple[ConnectionUse, socket.socket]] = []
        self.doors = DescriptorSender(self.end)
        self.receiver = DescriptorReceiver(own, lambda door, end: self.came.append((door, end)))


@pytest.fixture
async def building() -> AsyncIterator[Building]:
    made = Building()
    yield made
    made.receiver.close()
    made.end.close()
    for _, connection in made.came:
        connection.close()


async def test_each_connection_comes_in_at_the_door_that_it_is_for(building: Building) -> None:
    with (
        building.doors.open(ConnectionUse.HTTP) as connection,
        building.doors.open(ConnectionUse.PIPE) as two,
    ):
        await until(lambda: len(building.came) == 2)
        assert [door for door, _ in building.came] == [ConnectionUse.HTTP, ConnectionUse.PIPE]
        connection.send(b"first")
        two.send(b"second")
        assert [end.recv(9) for _, end in building.came] == [b"first", b"second"]


async def test_no_connection_is_lost_when_more_are_opened_than_are_accepted_at_once(
    building: Building,
) -> None:
    opened = [building.doors.open(ConnectionUse.HTTP) for _ in range(150)]
    await until(lambda: len(building.came) == 150)
    for connection in opened:
        connection.close()


async def test_opening_a_connection_to_a_process_that_is_gone_raises_an_error(
    building: Building,
) -> None:
    building.receiver.close()
    with pytest.raises(OSError, match=r"Broken pipe|reset"):
        building.doors.open(ConnectionUse.HTTP)
    with pytest.raises(PeerUnreachable):
        await borrow_pipe(building.doors, THEM)


async def test_the_end_of_a_helper_brings_no_connection_to_the_receiver(
    building: Building,
) -> None:
    building.end.close()
    await asyncio.sleep(0)
    assert building.came == []


async def test_a_pipe_is_carried_both_ways_and_to_its_end(building: Building) -> None:
    own, other = pipe_between(US, THEM)
    dialed: list[PeerId] = []

    class Peers(NoMesh):
        async def open_pipe(self, peer: PeerId) -> Pipe:
            dialed.append(peer)
            return own

    tasks = BackgroundTasks()
    slots = tasks.spawn(borrow_pipe(building.doors, THEM))
    await until(lambda: bool(building.came))
    tasks.spawn(lend_pipe(building.came.pop()[1], Peers()))
    pipe = await slots
    assert (dialed, pipe.peer) == ([THEM], THEM)
    await pipe.write(b"x" * 300_000)
    received = 0
    while received < 300_000:
        received += len(await other.read())
    await other.write(b"answer")
    assert await pipe.read() == b"answer"
    await other.finish()
    assert await pipe.read() == b""
    await pipe.reset()
    await until(lambda: not len(tasks))


async def test_a_helper_is_told_that_a_peer_is_unreachable(building: Building) -> None:
    tasks = BackgroundTasks()
    slots = tasks.spawn(borrow_pipe(building.doors, THEM))
    await until(lambda: bool(building.came))
    tasks.spawn(lend_pipe(building.came.pop()[1], NoMesh()))
    with pytest.raises(PeerUnreachable):
        await slots
