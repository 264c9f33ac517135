"""Pipe inside one process: two byte queues, crossed over."""

from registry.mesh.byte_queue import ByteQueue
from registry.records import PeerId

PIPE_BYTES = 512 * 1024
"""What may wait in one direction of a pipe before its writer waits."""


class MemoryPipe:
    """One end of a pipe between two nodes of one process."""

    def __init__(self, peer: PeerId, incoming: ByteQueue, outgoing: ByteQueue) -> None:
        self._peer = peer
        self._incoming = incoming
        self._outgoing = outgoing

    @property
    def peer(self) -> PeerId:
        """The peer at the other end."""
        return self._peer

    async def read(self) -> bytes:
        """Return the next bytes, `b""` at the end; raise `PeerUnreachable` when cut."""
        return await self._incoming.read()

    async def write(self, chunk: bytes) -> None:
        """Send all of `chunk`, waiting while the other end has enough; raise `PeerUnreachable` when cut."""
        await self._outgoing.write(bytes(chunk))

    async def finish(self) -> None:
        """Say that nothing more will be written."""
        self._outgoing.end()

    async def reset(self) -> None:
        """Cut both directions; what was finished before still arrives."""
        self.cut()

    def cut(self) -> None:
        """Do what `reset` does, without waiting."""
        self._incoming.cut()
        self._outgoing.cut()

    @property
    def open(self) -> bool:
        """Whether either direction may still carry bytes."""
        return not (self._incoming.closed and self._outgoing.closed)


def pipe_between(opener: PeerId, peer: PeerId) -> tuple[MemoryPipe, MemoryPipe]:
    """Return the opener's end and the peer's end of a new pipe."""
    there, back = ByteQueue(PIPE_BYTES), ByteQueue(PIPE_BYTES)
    return MemoryPipe(peer, back, there), MemoryPipe(opener, there, back)
