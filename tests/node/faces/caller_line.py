"""Stub of a connection to a caller that may be slow, for tests of what is sent to it."""

import asyncio


class CallerLine:
    """Connection that keeps what was `sent`; `unread` bytes wait until `read` is set. Its heads are always `head`."""

    address = "127.0.0.1"

    def __init__(self, head: bytes = b"") -> None:
        self.transport = self
        self.unread, self.closed = 0, False
        self.sent: list[bytes] = []
        self.read = asyncio.Event()
        self._head = head

    def get_write_buffer_size(self) -> int:
        return self.unread

    def is_closing(self) -> bool:
        return self.closed

    def get_extra_info(self, _: str) -> None:
        return None

    def head(self, status, headers, length) -> bytes:
        return self._head

    def write(self, piece: bytes) -> None:
        self.sent.append(piece)

    def send_now(self, *parts: bytes) -> None:
        self.write(b"".join(parts))

    def send_on(self, piece: bytes) -> None:
        self.write(piece)

    async def drain(self) -> None:
        if self.unread:
            await self.read.wait()
