"""Exchange over one connection without a network; the test dictates the answer."""

import asyncio
import itertools
from collections.abc import Sequence

from router.http.connection import Connection
from router.http.reply import Reply

HEAD = b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\n"
BODY = b"hi"


class Wire(asyncio.Transport):
    """A transport without a network: written bytes are kept, and the test supplies the bytes read."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.closed = False
        self.unsent = 0
        self.reading = True

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += data

    def abort(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True


class Pool:
    """The pool of a single connection."""

    def __init__(self) -> None:
        self.freed = 0

    def release(self, _: Connection) -> None:
        self.freed += 1

    def discard(self, _: Connection) -> None:
        return


class Exchange:
    """One request on one connection; the test dictates the answer."""

    def __init__(self) -> None:
        self.pool, self.wire = Pool(), Wire()
        self.connection = Connection(self.pool)
        self.connection.connection_made(self.wire)
        self.asking: asyncio.Task[Reply]

    async def ask(self) -> None:
        self.asking = asyncio.ensure_future(self.connection.ask(HEAD, BODY))
        await asyncio.sleep(0)

    def say(self, *pieces: bytes) -> None:
        for piece in pieces:
            if not self.wire.closed:
                self._bring(piece)
        if self.wire.closed:
            self.connection.connection_lost(None)

    def _bring(self, piece: bytes) -> None:
        while piece:
            buffer = self.connection.get_buffer(-1)
            part, piece = piece[: len(buffer)], piece[len(buffer) :]
            buffer[: len(part)] = part
            self.connection.buffer_updated(len(part))

    async def whole(self) -> tuple[int, bytes]:
        reply = await self.asking
        body = b""
        while piece := await reply.read_some():
            body += piece
        return reply.status, body


def split(data: bytes, cuts: Sequence[int]) -> list[bytes]:
    bounds = sorted({0, len(data), *(cut % len(data) for cut in cuts)})
    return [data[a:b] for a, b in itertools.pairwise(bounds)]
