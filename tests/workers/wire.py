"""TCP proxy to a worker that can be cut, for workers whose library always closes connections gracefully."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Wire:
    """Forwards connections to a port of loopback, until `cut`. `opened` counts them."""

    def __init__(self, to: int) -> None:
        self._to = to
        self._writers: set[asyncio.StreamWriter] = set()
        self.opened = 0
        self.port = 0

    def cut(self) -> None:
        """Reset every connection."""
        for writer in self._writers:
            writer.transport.abort()

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Forward one connection, both ways."""
        self.opened += 1
        ends = {writer}
        self._writers |= ends
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._to)
            ends.add(far_writer)
            self._writers |= ends
            await asyncio.gather(_pump(reader, far_writer), _pump(far_reader, writer))
        except OSError:
            pass  # the other end is gone
        finally:
            self._writers -= ends
            for end in ends:
                end.transport.abort()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while piece := await reader.read(65_536):
            writer.write(piece)
            await writer.drain()
    except ConnectionError:
        pass
    finally:
        writer.transport.abort()


@asynccontextmanager
async def wire(to: int) -> AsyncIterator[Wire]:
    """Run a proxy from a free port of loopback to another port of it."""
    laid = Wire(to)
    server = await asyncio.start_server(laid.carry, "127.0.0.1", 0)
    laid.port = server.sockets[0].getsockname()[1]
    try:
        yield laid
    finally:
        server.close()
        # A connection accepted a moment ago is not carried yet, and would be left open.
        for _ in range(5):
            await asyncio.sleep(0)
        laid.cut()
        await asyncio.sleep(0)
