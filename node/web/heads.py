"""Checks of request heads: limits of its size, and rules under which everybody reads it alike.

Two servers in a row that disagree on where a request ends can be made to take a part of its body for another request.
What is sent on from here is framed anew; what comes in is refused wherever readers are known to disagree.
"""

import re

from node.web.messages import Fault, Headers, HeadTooLarge, Malformed, UrlTooLong
from router.peers.headers import HOP

MAX_URL_BYTES = 8 * 1024
"""The longest URL."""

MAX_FIELD_BYTES = 16 * 1024
"""The longest header, its name included; tokens of some identity providers take a dozen kilobytes."""

MAX_FIELDS = 128
"""The most headers of one request, and the most trailers."""

MAX_HEAD_BYTES = 64 * 1024
"""All headers together, or all trailers."""

_BESIDES = len(": \r\n")
_SPOKEN = frozenset({"1.0", "1.1"})
_PATH = re.compile(rb"/[!-\"$-~]*")
# Targets that are no paths, which some methods may have: nothing is served under them.
_ODD = {b"*": "OPTIONS"}
# Of these, two could mean two things, and one behind the body another than one before it.
_ONCE = frozenset(
    {
        "authorization",
        "content-length",
        "content-type",
        "expect",
        "host",
        "origin",
        "transfer-encoding",
        HOP,
    }
)


class Unspoken(Fault):
    """A version of HTTP whose answers we do not know how to write."""


class Head:
    """A request's head while it comes in, and the trailers behind its body."""

    __slots__ = ("_count", "_size", "fields", "url")

    def __init__(self) -> None:
        self.url = b""
        self.fields: Headers = {}
        self._count = self._size = 0

    def take_url(self, piece: bytes) -> None:
        """Take in a piece of the target; raise `UrlTooLong`."""
        self.url += piece
        if len(self.url) > MAX_URL_BYTES:
            raise UrlTooLong(f"the URL has more than {MAX_URL_BYTES} bytes")

    def take_field(self, name: bytes, value: bytes) -> None:
        """Take in a header; raise `HeadTooLarge` or `Malformed`."""
        self._measure(len(name) + len(value))
        field, text = name.decode("latin-1").lower(), value.decode("utf-8", "replace")
        if (before := self.fields.get(field)) is not None:
            if field in _ONCE:
                raise Malformed("a header that may stand once stands twice")
            text = f"{before}, {text}"
        self.fields[field] = text

    def take_trailer(self, name: bytes, value: bytes) -> None:
        """Look at a header behind the body, which counts for nothing; raise `HeadTooLarge` or `Malformed`."""
        self._measure(len(name) + len(value))
        if name.decode("latin-1").lower() in _ONCE:
            raise Malformed("what a head says cannot be said behind the body")

    def check(self, method: str, version: str) -> None:
        """Look at the whole once all of it is there; raise `Unspoken` or `Malformed`."""
        self._count = self._size = 0
        if version not in _SPOKEN:
            raise Unspoken("not HTTP/1.0 or HTTP/1.1")
        if _PATH.fullmatch(self.url) is None and method not in ("CONNECT", _ODD.get(self.url)):
            raise Malformed("the URL is no path; send the path alone")
        if "host" not in self.fields and version != "1.0":
            raise Malformed("a request of HTTP/1.1 has a Host header")
        coding = self.fields.get("transfer-encoding")
        if coding is None:
            return
        if coding.strip(" \t").lower() != "chunked":
            raise Malformed("this Transfer-Encoding is not read; send chunked, or a Content-Length")
        # RFC 9112 6.1: whoever speaks 1.0 may have passed the header on without knowing it.
        if version == "1.0" or "content-length" in self.fields:
            raise Malformed("a Transfer-Encoding goes with HTTP/1.1 and without a Content-Length")

    def framing(self) -> str:
        """Return the header that says how the body is framed."""
        if "transfer-encoding" in self.fields:
            return "Transfer-Encoding: chunked"
        return f"Content-Length: {self.fields.get('content-length', '0')}"

    def _measure(self, size: int) -> None:
        self._count += 1
        self._size += size + _BESIDES
        if size > MAX_FIELD_BYTES:
            raise HeadTooLarge(f"a header has more than {MAX_FIELD_BYTES} bytes")
        if self._count > MAX_FIELDS:
            raise HeadTooLarge(f"there are more than {MAX_FIELDS} headers")
        if self._size > MAX_HEAD_BYTES:
            raise HeadTooLarge(f"the headers have more than {MAX_HEAD_BYTES} bytes together")
