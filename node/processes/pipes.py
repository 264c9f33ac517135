"""Mesh pipes of a helper: through the first process, which opens the pipe and carries its bytes.

TLS runs between the helper and the peer, as it does over a pipe of one's own. After a line with the peer's id one byte says that
the pipe is open, then every byte is the peer's.
"""

import asyncio
import socket
from collections.abc import Awaitable, Callable

from node.processes.descriptors import Door, Doors
from registry.errors import PeerUnreachable, RegistryError
from registry.mesh import Pipe
from registry.records import PeerId
from router.peers.pipes import couple

_CHUNK_BYTES = 64 * 1024
_LONGEST_ID = 256
_OPEN = b"+"


class BorrowedPipe:
    """A pipe whose mesh is the first process's."""

    def __init__(
        self, peer: PeerId, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._peer = peer
        self._reader = reader
        self._writer = writer

    @property
    def peer(self) -> PeerId:
        """The peer at the other end."""
        return self._peer

    async def read(self) -> bytes:
        """Return the next bytes, `b""` at the end; raise `PeerUnreachable` when the pipe was cut."""
        try:
            return await self._reader.read(_CHUNK_BYTES)
        except OSError as error:
            raise PeerUnreachable("the pipe was cut") from error

    async def write(self, chunk: bytes) -> None:
        """Send all of `chunk`; raise `PeerUnreachable` when the pipe was cut."""
        try:
            self._writer.write(chunk)
            await self._writer.drain()
        except OSError as error:
            raise PeerUnreachable("the pipe was cut") from error

    async def finish(self) -> None:
        """Say that nothing more will be written."""
        if self._writer.can_write_eof() and not self._writer.is_closing():
            self._writer.write_eof()

    async def reset(self) -> None:
        """Cut the pipe at once."""
        self._writer.transport.abort()


async def borrow(doors: Doors, peer: PeerId) -> Pipe:
    """Have the first process open a pipe to a peer; raise `PeerUnreachable`."""
    try:
        end = doors.open(Door.PIPE)
        reader, writer = await asyncio.open_connection(sock=end, limit=_CHUNK_BYTES)
        writer.write(f"{peer}\n".encode())
        opened = await reader.read(1)
    except OSError as error:
        raise PeerUnreachable("the first process of this node opens no pipe") from error
    if opened != _OPEN:
        writer.transport.abort()
        raise PeerUnreachable(f"no pipe to {peer}")
    return BorrowedPipe(peer, reader, writer)


async def lend(connection: socket.socket, open_pipe: Callable[[PeerId], Awaitable[Pipe]]) -> None:
    """Open the pipe that a helper asks for over a connection, and carry its bytes until either side ends."""
    reader, writer = await asyncio.open_connection(sock=connection, limit=_CHUNK_BYTES)
    try:
        line = await reader.readuntil(b"\n")
        pipe = await open_pipe(PeerId(line[:_LONGEST_ID].decode(errors="replace").strip()))
    except (OSError, EOFError, asyncio.LimitOverrunError, RegistryError):
        writer.transport.abort()
        return
    writer.write(_OPEN)
    await couple(pipe, reader, writer, pipe.reset)
