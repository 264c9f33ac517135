"""Response to a request of the lane, written straight to its connection.

It has the part of aiohttp's `StreamResponse` that writers of answers use.
"""

import time
from collections.abc import Mapping
from email.utils import formatdate
from functools import lru_cache
from http import HTTPStatus

from node.lane.request import LaneWire
from router.http.heads import header_lines
from router.peers.headers import ATTEMPTS, NODE, ROUTE

COPIED_BYTES = 64 * 1024
"""Most bytes that are joined, so that the transport gets one piece."""

STEADY_LINES = 64
"""Sets of header lines that are cached, mostly one per content type; beyond that, the least recently used is evicted."""

_STARTS = {s.value: f"HTTP/1.1 {s.value} {s.phrase}\r\n" for s in HTTPStatus}


@lru_cache(maxsize=4)
def _end_of_head(second: int, fixed: str) -> str:
    return f"\r\nDate: {formatdate(second, usegmt=True)}\r\n{fixed}\r\n"


@lru_cache(maxsize=STEADY_LINES)
def steady_lines(content_type: str, node: str, route: str, attempts: int) -> tuple[str, str]:
    """Return the header lines of an answer before and after its request id, the only part that differs.

    The headers are those of `headers_of`. Raise `ValueError` for a value that would make two headers.
    """
    before = header_lines({"content-type": content_type})
    behind = header_lines({NODE: node, ROUTE: route, ATTEMPTS: str(attempts)})
    return f"{before}x-request-id: ", f"\r\n{behind}"


def head_of(status: int, lines: str, length: int | None, fixed: str) -> bytes:
    """Return the bytes of an answer's head: these header lines, the framing, and the headers that all answers have."""
    start = _STARTS.get(status) or f"HTTP/1.1 {status} \r\n"
    framed = "Transfer-Encoding: chunked" if length is None else f"Content-Length: {length}"
    return f"{start}{lines}{framed}{_end_of_head(int(time.time()), fixed)}".encode()


def _chunk_of(piece: bytes) -> tuple[bytes, ...]:
    # An empty chunk would be the last one (RFC 9112 7.1).
    return (b"%x\r\n" % len(piece), piece, b"\r\n") if piece else ()


class LaneResponse:
    """Answer that is sent as it comes. Its head is sent with its first bytes."""

    __slots__ = ("_head", "_line", "chunked", "content_length")

    prepared = True

    def __init__(
        self, line: LaneWire, status: int, headers: Mapping[str, str], length: int | None
    ) -> None:
        """Begin an answer, chunked if its length is unknown."""
        self.content_length = length
        self._line = line
        self.chunked = False
        """Whether the answer is chunked and its head was sent."""
        self._head = line.head(status, header_lines(headers), length)

    def write_now(self, piece: bytes) -> None:
        """Send bytes; raise `ConnectionError` if the caller is gone."""
        if self.chunked and 0 < len(piece) <= COPIED_BYTES:
            self._line.send_on(b"%x\r\n%b\r\n" % (len(piece), piece))
            return
        head, self._head = self._head, b""
        if self.content_length is not None:
            self._line.send_now(head, piece)
        else:
            self.chunked = True
            self._line.send_now(head, *_chunk_of(piece))

    async def write(self, piece: bytes) -> None:
        """Send bytes, and wait while the transport's buffer is full; raise `ConnectionError` if the caller is gone."""
        self.write_now(piece)
        await self._line.drain()

    async def write_eof(self) -> None:
        """End the answer; raise `ConnectionError` if the caller is gone."""
        head, self._head = self._head, b""
        self._line.send_now(head, b"" if self.content_length is not None else b"0\r\n\r\n")
        await self._line.drain()
