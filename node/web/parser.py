"""Parser of HTTP/1.1 requests, and 1.0, by httptools: bytes in, heads and pieces of bodies out. Only this module knows httptools.

Whatever else a caller offers to speak, it stays with HTTP/1.1 (RFC 9110, 7.8).
"""

from typing import Protocol

from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser

from node.web.heads import MAX_HEAD_BYTES, Head
from node.web.messages import Fault, HeadTooLarge, Malformed

_NO_HTTP = "these bytes are no HTTP request; send HTTP/1.1, without TLS on this port"


class Receiver(Protocol):
    """Who is told what was parsed. A `Fault` raised by it ends the parsing."""

    def head_began(self) -> None:
        """The first bytes of a head are there."""

    def head_ended(self, head: Head, method: str, *, version: str, kept: bool) -> None:
        """A head is there, which may be believed. `kept`: its connection may serve another request."""

    def body_came(self, piece: bytes) -> None:
        """A piece of the body is there."""

    def body_ended(self) -> None:
        """All of the body is there."""


class Parser:
    """Parses what comes by one connection."""

    def __init__(self, receiver: Receiver) -> None:
        self.head = Head()
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
            raise HeadTooLarge(f"the headers have more than {MAX_HEAD_BYTES} bytes together")

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
            self.head, self.in_head, self._in_body = Head(), True, False
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
