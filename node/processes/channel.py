"""Channel for messages between two processes of a node: over one end of a socket pair, in order, at once."""

import asyncio
import logging
import socket
from collections.abc import Callable
from typing import Generic, TypeVar, cast

from node.processes.protocol import Frames, Said, Told, Unreadable, framed

log = logging.getLogger("modelvine.processes")

MAX_UNREAD_BYTES = 64 * 1024 * 1024
"""What may wait for the other end to read it. Beyond that it is taken for dead, and the connection ends."""

Heard = TypeVar("Heard")


class Channel(asyncio.Protocol, Generic[Heard]):
    """One end. It closes when the other does, and when what comes cannot be read."""

    def __init__(self, read: Callable[[bytes], Heard], take: Callable[[Heard], None]) -> None:
        """`read` makes a message of a frame, `take` is called with each."""
        self._read = read
        self._take = take
        self._frames = Frames()
        self._transport: asyncio.Transport | None = None
        self.closed = asyncio.Event()

    async def open(self, end: socket.socket) -> None:
        """Speak over an end of a socket pair, which belongs to the channel from now on."""
        end.settimeout(0)
        await asyncio.get_running_loop().create_connection(lambda: self, sock=end)

    def tell(self, word: Told | Said) -> None:
        """Send a message; nothing is sent any more once the channel is closed."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        transport.write(framed(word))
        if transport.get_write_buffer_size() > MAX_UNREAD_BYTES:
            log.error("another process of this node has stopped reading")
            transport.abort()

    def close(self) -> None:
        """End at once."""
        if self._transport is not None:
            self._transport.abort()

    # What asyncio calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Take in what comes."""
        try:
            for frame in self._frames.cut(data):
                self._take(self._read(frame))
        except Unreadable:
            log.exception("a process of this node sent an invalid message")
            self.close()

    def connection_lost(self, error: Exception | None) -> None:  # noqa: ARG002
        """End."""
        self.closed.set()
