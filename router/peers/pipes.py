"""Pipes to peers over the mesh, and HTTPS through them by way of a socket pair: TLS at one end, a pump to the pipe at the other.

TLS runs from node to node, so nodes that carry the pipe can read nothing. Buffers are those of the sockets and streams, some
hundred KiB a direction; a slow reader slows its writer. Closing the connection resets the pipe, and the other way round.

A peer that is not connected is dialled at its addresses, soon after that through its relays, then through peers that reach it.
An address that did not answer is left alone, longer each time; no request waits for it again until the peer is heard anew.
"""

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from registry.catalog import Catalog
from registry.clock import Clock
from registry.errors import MeshError, PeerUnreachable, RegistryError
from registry.intake import dialable
from registry.members.backoff import Backoff
from registry.members.liveness import MemberHealth, Status
from registry.mesh import Mesh, Pipe
from registry.records import PeerId, Reach
from registry.task_group import BackgroundTasks
from router.http.dial import RawDial

ADDRESSES_DIALLED = 2
"""Addresses of each kind that a request waits for; nodes name first those that other nodes dial most easily."""

HEAD_START = 0.4
"""Seconds that a peer's own addresses get before its relays are tried as well; a dial takes 0.25 at least."""

HELPERS_ASKED = 4
"""Connected peers that are asked, one after the other, to carry a circuit to a peer that this node does not reach."""

_FIRST_PAUSE = 5.0
_LONGEST_PAUSE = 320.0


class Records(Protocol):
    """Source of the records of other nodes, and of their liveness."""

    @property
    def catalog(self) -> Catalog:
        """The newest record of every node."""

    def health_of(self, node: PeerId) -> MemberHealth | None:
        """Return what is known of another node's liveness."""


class Peers(Protocol):
    """Other nodes, and the ways to them over the mesh."""

    @property
    def version(self) -> int | None:
        """Number that is another one after any peer's `reach` has changed; `None` if that is not known."""

    def reach(self, peer: PeerId) -> Reach | None:
        """Return how a peer says that it is reached, `None` for an unknown peer."""

    async def open_pipe(self, peer: PeerId) -> Pipe:
        """Open a pipe; raise a `RegistryError`."""

    async def connects_through_relay(self, peer: PeerId) -> bool:
        """Have a peer connected, and return whether that is through a relay; never raise."""

    def is_cut_off(self, peer: PeerId) -> bool:
        """Return whether the direct way to a live peer is shut: other nodes prove it alive, or a relay carries to it."""


@dataclass
class NoMesh:
    """Peers of a process without a mesh, which knows at most their records."""

    reaches: Mapping[PeerId, Reach] = field(default_factory=dict)
    version: int | None = None

    def reach(self, peer: PeerId) -> Reach | None:
        """Return how a peer says that it is reached."""
        return self.reaches.get(peer)

    async def open_pipe(self, peer: PeerId) -> Pipe:
        """Raise `PeerUnreachable`."""
        raise PeerUnreachable(f"this process has no mesh, and no address of {peer}")

    async def connects_through_relay(self, peer: PeerId) -> bool:  # noqa: ARG002 (Peers)
        """Return false: there is no relay."""
        return False

    def is_cut_off(self, peer: PeerId) -> bool:  # noqa: ARG002 (Peers)
        """Return false: no cut is known."""
        return False


class MeshPeers:
    """Opener of pipes to peers, which connects to those that are not connected. For one event loop."""

    def __init__(self, mesh: Mesh, records: Records, *, timeout: float, now: Clock) -> None:
        self._mesh = mesh
        self._records = records
        self._timeout = timeout
        self._now = now
        self._backoff = Backoff[str](_FIRST_PAUSE, _LONGEST_PAUSE)
        self._dials: dict[PeerId, asyncio.Task[None]] = {}
        self._tasks = BackgroundTasks()

    @property
    def version(self) -> int:
        """The digest of the catalog."""
        return self._records.catalog.total

    def reach(self, peer: PeerId) -> Reach | None:
        """Return how a peer says that it is reached, `None` for an unknown peer."""
        return self._records.catalog.reach_of(peer)

    async def open_pipe(self, peer: PeerId) -> Pipe:
        """Open a pipe, at most `timeout` seconds for it and for each way; raise `PeerUnreachable` or `MeshDown`."""
        if not self._is_connected(peer):
            await self._connect(peer)
        return await self._mesh.open_pipe(peer, timeout=self._timeout)

    async def connects_through_relay(self, peer: PeerId) -> bool:
        """Connect to a peer unless it is connected, and return whether that is through a relay; never raise."""
        if not self._is_connected(peer):
            with suppress(MeshError, TimeoutError):
                async with asyncio.timeout(self._timeout):
                    await self._connect(peer)
        return self._is_relayed(peer)

    def is_cut_off(self, peer: PeerId) -> bool:
        """Return whether the direct way to a live peer is shut: other nodes prove it alive, or a relay carries to it."""
        health = self._records.health_of(peer)
        unreached = health is not None and health.contact is Status.UNREACHABLE
        return unreached or self._is_relayed(peer)

    def retry_addresses(self, peer: PeerId) -> None:
        """Let requests wait again for the addresses of a peer that was lost and is alive."""
        for address in (*self._direct_addresses(peer), *self._relay_addresses(peer)):
            self._backoff.forget(address)

    async def close(self) -> None:
        """End every dial."""
        await self._tasks.cancel_all()

    async def _connect(self, peer: PeerId) -> None:
        # Concurrent requests wait for the same dials.
        meeting = self._dials.get(peer)
        if meeting is None:
            meeting = self._dials[peer] = self._tasks.spawn(self._dial(peer))
            meeting.add_done_callback(lambda _: self._dials.pop(peer, None))
        await asyncio.shield(meeting)

    async def _dial(self, peer: PeerId) -> None:
        direct, relayed = self._direct_addresses(peer), self._relay_addresses(peer)
        self._retry_silent([*direct, *relayed])
        attempts = {self._tasks.spawn(self._connect_first(self._addresses_to_try(direct)))}
        await asyncio.wait(attempts, timeout=HEAD_START)
        if not any(attempt.done() and attempt.result() for attempt in attempts):
            attempts.add(self._tasks.spawn(self._connect_first(self._addresses_to_try(relayed))))
            if self.is_cut_off(peer):
                attempts.add(self._tasks.spawn(self._through_helpers(peer)))
        for finished in asyncio.as_completed(attempts):
            if await finished:
                return
        raise PeerUnreachable(f"no address of {peer} answers")

    async def _through_helpers(self, peer: PeerId) -> bool:
        health = self._records.health_of(peer)
        last = health.proved_by if health else None
        near = [c for c in self._mesh.connections() if not c.relayed and c.peer != peer]
        # The node that last proved the peer alive is connected to it.
        near.sort(key=lambda c: (c.peer != last, c.round_trip))
        for helper in near[:HELPERS_ASKED]:
            with suppress(MeshError):
                address = f"/p2p/{helper.peer}/p2p-circuit/p2p/{peer}"
                await self._mesh.connect(address, timeout=self._timeout)
                return True
        return False

    async def _connect_first(self, addresses: Sequence[str]) -> bool:
        for address in addresses:
            if await self._try_connect(address):
                return True
        return False

    async def _try_connect(self, address: str) -> bool:
        try:
            await self._mesh.connect(address, timeout=self._timeout)
        except PeerUnreachable:
            self._backoff.note_failure(address, self._now())
            return False
        except MeshError:  # our own mesh is down, which says nothing about an address
            return False
        self._backoff.forget(address)
        return True

    def _retry_silent(self, addresses: Sequence[str]) -> None:
        """Try again, in the background, addresses that failed long enough ago."""
        now = self._now()
        for address in addresses:
            if self._backoff.is_known(address) and self._backoff.is_due(address, now):
                self._backoff.note_failure(address, now)
                self._tasks.spawn(self._try_connect(address))

    def _addresses_to_try(self, addresses: Sequence[str]) -> Sequence[str]:
        return [a for a in addresses if not self._backoff.is_known(a)][:ADDRESSES_DIALLED]

    def _direct_addresses(self, peer: PeerId) -> Sequence[str]:
        return dialable.direct_addresses(
            self.reach(peer) or Reach(), peer, together=self._is_one_machine()
        )

    def _relay_addresses(self, peer: PeerId) -> Sequence[str]:
        return dialable.relayed_addresses(
            self.reach(peer) or Reach(), peer, together=self._is_one_machine()
        )

    def _is_one_machine(self) -> bool:
        reach = self.reach(self._mesh.peer)
        return reach is not None and dialable.is_local_only(reach)

    def _is_relayed(self, peer: PeerId) -> bool:
        return any(c.relayed for c in self._mesh.connections() if c.peer == peer)

    def _is_connected(self, peer: PeerId) -> bool:
        return any(connection.peer == peer for connection in self._mesh.connections())


_Made = TypeVar("_Made", bound=asyncio.BaseProtocol)

_CHUNK_BYTES = 64 * 1024
_CONNECT_SECONDS = 5.0
_LINGER_SECONDS = 5.0
"""Seconds that the asking end may take to read the last of an answer before the pipe is cut."""


def pipe_dialer(
    peers: Peers, peer: PeerId, *, context: ssl.SSLContext, tasks: BackgroundTasks
) -> RawDial:
    """Return a function that connects to a peer over pipes, with a pipe for each connection."""

    async def dial(make: Callable[[], _Made], /, *, small_packets: bool = False) -> _Made:  # noqa: ARG001 (RawDial)
        try:
            pipe = await peers.open_pipe(peer)
        except RegistryError as error:
            raise OSError(f"no pipe: {type(error).__name__}") from error
        ours, theirs = socket.socketpair()
        ours.settimeout(0)
        theirs.settimeout(0)
        tasks.spawn(_serve_local_end(pipe, theirs))
        try:
            _, connection = await asyncio.get_running_loop().create_connection(
                make, sock=ours, ssl=context, server_hostname=""
            )
        except BaseException:
            # The loop still has the socket, and releases it at its end. Closed here, its descriptor could be reused before.
            with suppress(OSError):
                ours.shutdown(socket.SHUT_RDWR)
            raise
        return connection

    return dial


async def serve_pipe(pipe: Pipe, *, port: int, host: str = "127.0.0.1") -> None:
    """Carry an incoming pipe to this node's own HTTPS listener until either side ends."""
    async with asyncio.timeout(_CONNECT_SECONDS):
        reader, writer = await asyncio.open_connection(host, port, limit=_CHUNK_BYTES)
    await relay_bytes(pipe, reader, writer, pipe.finish)


async def _serve_local_end(pipe: Pipe, end: socket.socket) -> None:
    try:
        reader, writer = await asyncio.open_connection(sock=end, limit=_CHUNK_BYTES)
        await relay_bytes(pipe, reader, writer, pipe.reset)
    finally:
        end.close()
        await pipe.reset()


async def relay_bytes(
    pipe: Pipe,
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    at_local_end: Callable[[], Awaitable[None]],
) -> None:
    """Carry bytes both ways. The end of either direction lets the other one end: a closed writer ends its reader."""
    try:
        async with asyncio.TaskGroup() as directions:
            inward = directions.create_task(_inward(pipe, writer))
            await _outward(reader, writer, pipe)
            with suppress(RegistryError):
                await at_local_end()
            await asyncio.wait({inward}, timeout=_LINGER_SECONDS)
            inward.cancel()
    finally:
        writer.transport.abort()


async def _inward(pipe: Pipe, writer: asyncio.StreamWriter) -> None:
    try:
        while chunk := await pipe.read():
            writer.write(chunk)
            await writer.drain()
        writer.close()
    except (RegistryError, OSError):
        writer.transport.abort()


async def _outward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, pipe: Pipe) -> None:
    try:
        while chunk := await reader.read(_CHUNK_BYTES):
            await pipe.write(chunk)
    except (RegistryError, OSError):
        writer.transport.abort()
