"""Response to a request of the lane, written straight to its connection.

It has the part of aiohttp's `StreamResponse` that writers of answers use.
"""

from collections.abc import Mapping
from email.utils import formatdate
from http import HTTPStatus

from node.lane.request import LaneWire
from router.http.heads import header_lines
from router.peers.headers import ATTEMPTS, NODE, ROUTE

COPIED_BYTES = 64 * 1024
"""Most bytes that are joined, so that the transport gets one piece."""

_STEADY = 5  # headers that `SteadyLines` writes, with the request id
_STARTS = {s.value: f"HTTP/1.1 {s.value} {s.phrase}\r\n" for s in HTTPStatus}


class EndOfHead:
    """End of the heads of one listener: the date, and the headers that all answers have. It is made once a second."""

    __slots__ = ("_fixed", "_second", "_text")

    def __init__(self) -> None:
        self._second = -1
        self._fixed = self._text = ""

    def at(self, second: int, fixed: str) -> str:
        """Return it for a Unix time and these header lines."""
        if second != self._second or fixed is not self._fixed:
            self._second, self._fixed = second, fixed
            self._text = f"\r\nDate: {formatdate(second, usegmt=True)}\r\n{fixed}\r\n"
        return self._text


class SteadyLines:
    """Header lines of most answers: `before` and `behind` the request id, the only part that differs.

    They are kept for the next answer, which nearly always has the same.
    """

    __slots__ = ("_attempts", "_content_type", "_node", "_route", "before", "behind")

    def __init__(self) -> None:
        self._content_type = self._node = self._route = self.before = self.behind = ""
        self._attempts = 0

    def look_up(self, content_type: str, node: str, route: str, attempts: int) -> None:
        """Set the lines; the headers are those of `headers_of`. Raise `ValueError` for a value that would make two headers."""
        is_same = content_type == self._content_type and node == self._node
        if is_same and route == self._route and attempts == self._attempts:
            return
        behind = header_lines({NODE: node, ROUTE: route, ATTEMPTS: str(attempts)})
        self.before = f"{header_lines({'content-type': content_type})}x-request-id: "
        self.behind = f"\r\n{behind}"
        self._content_type, self._node, self._route = content_type, node, route
        self._attempts = attempts


_LINES_OF_STREAMS = SteadyLines()


def lines_of(headers: Mapping[str, str]) -> str:
    """Return header lines; where only the request id differs from the last answer's headers, the lines are not made anew."""
    node, route, id_ = headers.get(NODE), headers.get(ROUTE), headers.get("x-request-id")
    if len(headers) != _STEADY or node is None or route is None or id_ is None:
        return header_lines(headers)
    steady = _LINES_OF_STREAMS
    steady.look_up(headers["content-type"], node, route, int(headers[ATTEMPTS]))
    return f"{steady.before}{id_}{steady.behind}"


def head_of(status: int, lines: str, length: int | None, end: str) -> bytes:
    """Return the bytes of an answer's head: these header lines, the framing, and what `EndOfHead` returns."""
    start = _STARTS.get(status) or f"HTTP/1.1 {status} \r\n"
    framed = "Transfer-Encoding: chunked" if length is None else f"Content-Length: {length}"
    return f"{start}{lines}{framed}{end}".encode()


def _chunk_of(piece: bytes) -> tuple[bytes, ...]:
    # An empty chunk would be the last one (RFC 9112 7.1).
    return (b"%x\r\n" % len(piece), piece, b"\r\n") if piece else ()


class LaneResponse:
    """Answer that is sent as it comes. Its head is sent with its first bytes."""

    __slots__ = ("_head", "_wire", "chunked", "content_length")

    prepared = True

    def __init__(
        self, wire: LaneWire, status: int, headers: Mapping[str, str], length: int | None
    ) -> None:
        """Begin an answer, chunked if its length is unknown."""
        self.content_length = length
        self._wire = wire
        self.chunked = False
        """Whether the answer is chunked and its head was sent."""
        self._head = wire.head(status, lines_of(headers), length)

    def write_now(self, piece: bytes) -> None:
        """Send bytes; raise `ConnectionError` if the caller is gone."""
        if self.chunked and 0 < len(piece) <= COPIED_BYTES:
            self._wire.send_on(b"%x\r\n%b\r\n" % (len(piece), piece))
            return
        head, self._head = self._head, b""
        if self.content_length is not None:
            self._wire.send_now(head, piece)
        else:
            self.chunked = True
            self._wire.send_now(head, *_chunk_of(piece))

    async def write(self, piece: bytes) -> None:
        """Send bytes, and wait while the transport's buffer is full; raise `ConnectionError` if the caller is gone."""
        self.write_now(piece)
        await self._wire.drain()

    async def write_eof(self) -> None:
        """End the answer; raise `ConnectionError` if the caller is gone."""
        head, self._head = self._head, b""
        self._wire.send_now(head, b"" if self.content_length is not None else b"0\r\n\r\n")
        await self._wire.drain()
