"""Response to a request of the lane, written straight to its connection.

Of aiohttp's `StreamResponse` it has what writers of answers use.
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
"""Up to here bytes are joined, so that the transport gets one piece."""

STEADY_LINES = 64
"""Content types, mostly, of answers whose lines are kept; beyond, those that were wanted longest ago are written anew."""

_STARTS = {s.value: f"HTTP/1.1 {s.value} {s.phrase}\r\n" for s in HTTPStatus}


@lru_cache(maxsize=4)
def _end_of_head(second: int, fixed: str) -> str:
    return f"\r\nDate: {formatdate(second, usegmt=True)}\r\n{fixed}\r\n"


@lru_cache(maxsize=STEADY_LINES)
def steady_lines(content_type: str, node: str, route: str, attempts: int) -> tuple[str, str]:
    """Return the header lines of an answer of which only its request's id differs: what stands before that, and behind it.

    They are those of `headers_of`. Raise `ValueError` for a header that would be two.
    """
    before = header_lines({"content-type": content_type})
    behind = header_lines({NODE: node, ROUTE: route, ATTEMPTS: str(attempts)})
    return f"{before}x-request-id: ", f"\r\n{behind}"


def head_of(status: int, lines: str, length: int | None, fixed: str) -> bytes:
    """Return the bytes of an answer's head with these header lines, and with those that all have."""
    start = _STARTS.get(status) or f"HTTP/1.1 {status} \r\n"
    framed = "Transfer-Encoding: chunked" if length is None else f"Content-Length: {length}"
    return f"{start}{lines}{framed}{_end_of_head(int(time.time()), fixed)}".encode()


def _chunk_of(piece: bytes) -> tuple[bytes, ...]:
    # An empty one would be the last (RFC 9112 7.1).
    return (b"%x\r\n" % len(piece), piece, b"\r\n") if piece else ()


class LaneResponse:
    """An answer that is sent as it comes. Its head leaves with its first bytes."""

    __slots__ = ("_head", "_line", "chunked", "content_length")

    prepared = True

    def __init__(
        self, line: LaneWire, status: int, headers: Mapping[str, str], length: int | None
    ) -> None:
        """Begin an answer, in chunks where its length is not known."""
        self.content_length = length
        self._line = line
        self.chunked = False
        """Whether it goes in chunks, and its head has left."""
        self._head = line.head(status, header_lines(headers), length)

    def write_now(self, piece: bytes) -> None:
        """Send some bytes; raise `ConnectionError` when the caller is gone."""
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
        """Send some bytes, and wait while the transport holds enough; raise `ConnectionError` when the caller is gone."""
        self.write_now(piece)
        await self._line.drain()

    async def write_eof(self) -> None:
        """Say that this was all."""
        head, self._head = self._head, b""
        self._line.send_now(head, b"" if self.content_length is not None else b"0\r\n\r\n")
        await self._line.drain()
