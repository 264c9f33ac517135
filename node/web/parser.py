"""Parser of HTTP/1.1 requests, and 1.0, by httptools: bytes in, heads and pieces of bodies out. Only this module knows httptools.

Whatever else a caller offers to speak, it stays with HTTP/1.1 (RFC 9110, 7.8).

Checks of request heads: limits of its size, and rules under which everybody reads it alike.

Two servers in a row that disagree on where a request ends can be made to take a part of its body for another request.
What is sent on from here is framed anew; what comes in is refused wherever readers are known to disagree.
"""

import re
from typing import Protocol

from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser

from node.web.messages import Fault, Headers, HeadLimit, Malformed, UrlLimit
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


class RequestHead:
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
            raise UrlLimit(f"the URL has more than {MAX_URL_BYTES} bytes")

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
            raise HeadLimit(f"a header has more than {MAX_FIELD_BYTES} bytes")
        if self._count > MAX_FIELDS:
            raise HeadLimit(f"there are more than {MAX_FIELDS} headers")
        if self._size > MAX_HEAD_BYTES:
            raise HeadLimit(f"the headers have more than {MAX_HEAD_BYTES} bytes together")


_NO_HTTP = "these bytes are no HTTP request; send HTTP/1.1, without TLS on this port"


class Receiver(Protocol):
    """Who is told what was parsed. A `Fault` raised by it ends the parsing."""

    def head_began(self) -> None:
        """The first bytes of a head are there."""

    def head_ended(self, head: RequestHead, method: str, *, version: str, kept: bool) -> None:
        """A head is there, which may be believed. `kept`: its connection may serve another request."""

    def body_came(self, piece: bytes) -> None:
        """A piece of the body is there."""

    def body_ended(self) -> None:
        """All of the body is there."""


class Parser:
    """Parses what comes by one connection."""

    def __init__(self, receiver: Receiver) -> None:
        self.head = RequestHead()
        """The last head of which a part is there."""
        self.in_head = False
        """Whether a part of it is still to come."""
        self.left = 0
        """Bytes of the present body that are still to come, where its head says how many."""
        self._receiver = receiver
        self._parser = HttpRequestParser(self)
        self._barren = 0
        """Bytes that came since the last one of a body."""
        self._in_body = self._declined = False
        """`_declined`: the head that is being parsed is our own, after another protocol was declined."""

    def close(self) -> None:
        """Parse no more."""
        # They refer to one another: together they would stay until the garbage collector comes.
        del self._parser, self._receiver

    def feed(self, data: bytes | memoryview) -> None:
        """Parse bytes; raise a `Fault`, after which nothing more can be parsed."""
        self._barren += len(data)
        try:
            # Not by recursion: there may be ten thousand offers in what came at once.
            while data:
                data = data[self._fed(data) :]
        except HttpParserError as error:
            fault = error.__context__
            raise (fault if isinstance(fault, Fault) else Malformed(_NO_HTTP)) from None
        if self._barren > MAX_HEAD_BYTES:
            raise HeadLimit(f"the headers have more than {MAX_HEAD_BYTES} bytes together")

    def _fed(self, data: bytes | memoryview) -> int:
        """Return how many of the bytes were parsed: not all where they offer another protocol."""
        try:
            self._parser.feed_data(data)
        except HttpParserUpgrade as offered:
            parsed = int(offered.args[0])
        else:
            return len(data)
        # The parser would take the body for something else; another one is told how the body is framed, and no more.
        self._parser, self._declined = HttpRequestParser(self), True
        self._parser.feed_data(f"POST / HTTP/1.1\r\n{self.head.framing()}\r\n\r\n".encode())
        return parsed

    # What httptools calls. What is raised here ends the parsing, and is the context of its own error.

    def on_message_begin(self) -> None:
        """A head begins."""
        if not self._declined:
            self.head, self.in_head, self._in_body = RequestHead(), True, False
            self._receiver.head_began()

    def on_url(self, piece: bytes) -> None:
        """Take in the target."""
        if not self._declined:
            self.head.take_url(piece)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take in a header, or a trailer."""
        if not self._in_body:
            self.head.take_field(name, value)
        elif not self._declined:
            self.head.take_trailer(name, value)

    def on_headers_complete(self) -> None:
        """The head is there."""
        if self._declined:
            self._declined = False
            return
        parser, version = self._parser, self._parser.get_http_version()
        method = parser.get_method().decode()
        self.head.check(method, version)
        self.in_head, self._in_body = False, True
        self.left = int(self.head.fields.get("content-length", 0))
        kept = parser.should_keep_alive() and method != "CONNECT"
        self._receiver.head_ended(self.head, method, version=version, kept=kept)

    def on_body(self, piece: bytes) -> None:
        """Take in bytes of the body."""
        self._barren = 0
        self.left -= len(piece)
        self._receiver.body_came(piece)

    def on_message_complete(self) -> None:
        """The body is complete."""
        if not self._parser.should_upgrade():
            self._barren = 0
            self._receiver.body_ended()
