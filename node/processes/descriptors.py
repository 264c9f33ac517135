"""Connections from a helper to the first process, by descriptor passing.

It makes a socket pair and hands one end over, by descriptor.

Nothing listens, so nobody else can come in, and nothing is left in the file system whatever ends a process.
"""

import asyncio
import socket
from collections.abc import Callable
from contextlib import suppress
from enum import Enum

from router.http.connection import Connection
from router.http.pool import Dial

_AT_ONCE = 64  # descriptors that are taken in one go; the loop comes back for the others


class Door(Enum):
    """What a connection is for, said with its descriptor."""

    HTTP = b"h"
    """Requests that are passed on."""
    PIPE = b"p"
    """One pipe to a peer: a line with its id, then its bytes."""


class Doors:
    """A helper's end: opens connections."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        end.settimeout(0)

    def open(self, door: Door) -> socket.socket:
        """Return our end of a new connection; raise `OSError` when the first process takes none any more."""
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                socket.send_fds(self._end, [door.value], [theirs.fileno()])
            except OSError:
                ours.close()
                raise
        ours.settimeout(0)
        return ours

    def dial(self) -> Dial:
        """Return how to connect for requests that are passed on."""

        async def dial(make: Callable[[], Connection]) -> Connection:
            _, connection = await asyncio.get_running_loop().create_connection(
                make, sock=self.open(Door.HTTP)
            )
            return connection

        return dial


class Doorway:
    """The first's end: takes connections in until it is closed."""

    def __init__(self, end: socket.socket, take: Callable[[Door, socket.socket], None]) -> None:
        self._end = end
        self._take = take
        end.settimeout(0)
        asyncio.get_running_loop().add_reader(end.fileno(), self._come)

    def close(self) -> None:
        """Take nobody in any more; harmless when it is closed already."""
        if self._end.fileno() >= 0:
            asyncio.get_running_loop().remove_reader(self._end.fileno())
            self._end.close()

    def _come(self) -> None:
        with suppress(BlockingIOError):
            for _ in range(_AT_ONCE):
                said, descriptors, _flags, _address = socket.recv_fds(self._end, 1, 1)
                if not said:
                    # The helper is gone; its channel says so as well.
                    asyncio.get_running_loop().remove_reader(self._end.fileno())
                    return
                for descriptor in descriptors:
                    self._let_in(said, socket.socket(fileno=descriptor))

    def _let_in(self, said: bytes, connection: socket.socket) -> None:
        connection.settimeout(0)
        try:
            door = Door(said)
        except ValueError:
            connection.close()
        else:
            self._take(door, connection)
