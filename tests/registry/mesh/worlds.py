"""Two small worlds under one contract: nodes in one process, and nodes over real sockets."""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from registry.mesh import (
    Answerer,
    Arrived,
    Knows,
    Mesh,
    MeshEvent,
    Pipe,
    PipeHandler,
    knows_nobody,
)
from registry.mesh.libp2p.mesh import LibP2PMesh
from registry.mesh.memory import MemoryMesh, MemoryNet
from registry.settings import MeshSettings
from registry.signing import Identity


def identity(name: str) -> Identity:
    """Make the same identity for the same name."""
    return Identity(hashlib.sha256(name.encode()).digest())


async def until(holds: Callable[[], bool], *, within: float = 30.0) -> None:
    """Return as soon as a condition holds."""
    async with asyncio.timeout(within):
        while not holds():  # noqa: ASYNC110 (what is awaited is real I/O, not an event of ours)
            await asyncio.sleep(0.01)


async def echo(asker: str, question: bytes) -> bytes:
    return asker.encode() + b" asked " + question


async def return_everything(pipe: Pipe) -> None:
    while chunk := await pipe.read():
        await pipe.write(chunk)
    await pipe.finish()


@dataclass(eq=False)
class Seat:
    """A started mesh and what it has seen."""

    mesh: Mesh
    seen: list[MeshEvent] = field(default_factory=list)

    def frames(self) -> list[bytes]:
        return [event.frame for event in self.seen if isinstance(event, Arrived)]

    def peers(self) -> set[str]:
        return {connection.peer for connection in self.mesh.connections()}

    async def watch(self) -> None:
        async for event in self.mesh.events():
            self.seen.append(event)

    async def watch_some(self, count: int) -> None:
        async for event in self.mesh.events():
            self.seen.append(event)
            if len(self.seen) == count:
                return


class World:
    """A world that seats nodes, and ends them with the test."""

    knows: Knows = staticmethod(knows_nobody)
    """Says of which peers each node holds a record."""

    def __init__(self, tasks: asyncio.TaskGroup) -> None:
        self._tasks = tasks
        self._seats: list[Seat] = []

    def build(self, name: str, bootstrap: tuple[str, ...], limits: Mapping[str, Any]) -> Mesh:
        raise NotImplementedError

    async def seat(
        self,
        name: str,
        *bootstrap: Seat,
        answer: Answerer = echo,
        serve_pipe: PipeHandler = return_everything,
        **limits: Any,
    ) -> Seat:
        """Start a node that is connected to the ones named, and watch its events."""
        addresses = tuple(address for seat in bootstrap for address in seat.mesh.addresses())
        seat = Seat(self.build(name, addresses, limits))
        await seat.mesh.start(answer, serve_pipe, knows=self.knows)
        self._seats.append(seat)
        if limits.get("queue") is None:
            self._tasks.create_task(seat.watch())
        for other in bootstrap:
            await joined(seat, other)
        return seat

    async def close(self) -> None:
        for seat in self._seats:
            await seat.mesh.stop()


async def joined(one: Seat, other: Seat) -> None:
    """Wait until two nodes are connected, as both see it."""
    await until(lambda: other.mesh.peer in one.peers() and one.mesh.peer in other.peers())


class MemoryWorld(World):
    def __init__(self, tasks: asyncio.TaskGroup) -> None:
        super().__init__(tasks)
        self.net = MemoryNet()

    def build(self, name: str, bootstrap: tuple[str, ...], limits: Mapping[str, Any]) -> Mesh:
        return MemoryMesh(identity(name).peer, self.net, bootstrap=bootstrap, **limits)


class LibP2PWorld(World):
    swarm_key: str | None = None

    def build(self, name: str, bootstrap: tuple[str, ...], limits: Mapping[str, Any]) -> Mesh:
        mesh_settings = settings(bootstrap=bootstrap, **limits)
        return LibP2PMesh(identity(name), mesh_settings, swarm_key=self.swarm_key)


def inside(seat: Seat) -> tuple[Any, Any]:
    """Return the libp2p host of a node, and the thread to use it in."""
    assert isinstance(seat.mesh, LibP2PMesh)
    node: Any = seat.mesh._node
    return node._host, seat.mesh.thread


def settings(**changes: Any) -> MeshSettings:
    """Return settings for nodes of one machine, quick to dial again."""
    return MeshSettings(
        **{"listen": ("/ip4/127.0.0.1/tcp/0",), "redial": 0.2, "ping": 3, **changes}
    )


@asynccontextmanager
async def world_of(kind: type[World]) -> AsyncIterator[World]:
    async with asyncio.TaskGroup() as tasks:
        world = kind(tasks)
        try:
            yield world
        finally:
            await world.close()
