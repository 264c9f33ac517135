"""Channel for messages between two processes of a node, over one end of a socket pair: in order, without delay."""

import asyncio
import logging
import socket
from collections.abc import Callable
from typing import Generic, TypeVar, cast

from node.processes.protocol import Frames, ToFirst, ToHelper, Unreadable, encode_frame

log = logging.getLogger("modelvine.processes")

MAX_UNREAD_BYTES = 64 * 1024 * 1024
"""Bytes that may wait for the other end to read them. Beyond that it is taken for dead, and the connection is closed."""

Message = TypeVar("Message")


class Channel(asyncio.Protocol, Generic[Message]):
    """One end. It closes when the other end does, and on a message that cannot be read."""

    def __init__(self, read: Callable[[bytes], Message], take: Callable[[Message], None]) -> None:
        """`read` parses a frame into a message; `take` is called with each message."""
        self._read = read
        self._take = take
        self._frames = Frames()
        self._transport: asyncio.Transport | None = None
        self.closed = asyncio.Event()

    async def open(self, end: socket.socket) -> None:
        """Connect over an end of a socket pair, which the channel owns from now on."""
        end.settimeout(0)
        await asyncio.get_running_loop().create_connection(lambda: self, sock=end)

    def send(self, message: ToHelper | ToFirst) -> None:
        """Send a message; once the channel is closed, drop it."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        transport.write(encode_frame(message))
        if transport.get_write_buffer_size() > MAX_UNREAD_BYTES:
            log.error("another process of this node has stopped reading")
            transport.abort()

    def close(self) -> None:
        """Close the channel at once."""
        if self._transport is not None:
            self._transport.abort()

    # Callbacks of asyncio.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Parse the received bytes, and pass on the messages."""
        try:
            for frame in self._frames.split(data):
                self._take(self._read(frame))
        except Unreadable:
            log.exception("a process of this node sent an invalid message")
            self.close()

    def connection_lost(self, error: Exception | None) -> None:  # noqa: ARG002
        """Set `closed`."""
        self.closed.set()
