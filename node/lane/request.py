"""Request that the lane takes: a model call that every parser reads the same way, with its whole body.

The lane takes a strict subset of what aiohttp accepts. Everything else is left to aiohttp, untouched.
"""

import asyncio
import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Any, Protocol

from aiohttp import HttpVersion, HttpVersion11, web

MAX_HEAD_BYTES = 8 * 1024
"""The longest head that is read here."""

MAX_BODY_BYTES = 256 * 1024
"""The longest body that is read here: for longer bodies, aiohttp's extra cost hardly matters."""

# One blank after the colon, none after the value, and nothing but ASCII: clients send no other form.
_HEAD = re.compile(
    rb"POST (/[A-Za-z0-9/_-]{1,100}) HTTP/1\.1\r\n"
    rb"((?:[A-Za-z0-9-]{1,60}: (?:[!-~](?:[ !-~]*[!-~])?)?\r\n){2,48})\r\n"
)
_LENGTH = re.compile(r"0|[1-9][0-9]{0,6}")

_NOT_PLAIN = frozenset(
    {
        "transfer-encoding",
        "content-encoding",
        "expect",
        "upgrade",
        "http2-settings",
        "te",
        "trailer",
        "origin",
    }
)
"""Headers that change a body's framing or coding, the fate of the connection, or which pages may read the answer."""


class Fields(dict[str, str]):
    """Headers by lower-case name, each of which occurs once."""

    def getall(self, name: str, default: Iterable[str] = ()) -> Iterable[str]:
        """Return the values of a header, as mappings do in which a header may occur several times."""
        value = self.get(name)
        return default if value is None else (value,)


class LaneHead:
    """Parsed head of a request. `end` is the length of the whole request, in bytes.

    `id` is its request id, empty for none. `headers` are all headers but the id and the length. `derived` caches what was derived
    from them, for the next request with the same head. If `admitted`, requests with this head need no key on this connection.
    """

    __slots__ = ("admitted", "body_at", "derived", "end", "headers", "id", "path")

    def __init__(
        self,
        path: str,
        headers: Fields,
        body_at: int,
        length: int,
        id_: str,
        derived: dict[type, Any],
    ) -> None:
        self.admitted = False
        self.derived = derived
        self.path = path
        self.headers = headers
        self.body_at = body_at
        self.end = body_at + length
        self.id = id_

    def again(self, body_at: int, length: int, id_: bytes) -> "LaneHead | None":
        """Return the same head with another body length and request id; `None` if aiohttp has to read the request."""
        if length > MAX_BODY_BYTES:
            return None
        name = id_.decode() if id_ else self.id
        return LaneHead(self.path, self.headers, body_at, length, name, self.derived)


@lru_cache(maxsize=256)
def _lower(name: str) -> str:
    """Return the lower-case name, as one shared string: thousands of connections keep their heads."""
    return name.lower()


def read_head(data: bytes) -> LaneHead | None:
    """Return the head at the start of `data`; `None` if aiohttp has to read it, or if it is incomplete."""
    match = _HEAD.match(data)
    if match is None or match.end() > MAX_HEAD_BYTES:
        return None
    path, lines = match[1].decode("ascii"), match[2].decode("ascii").split("\r\n")[:-1]
    parts = [line.partition(": ") for line in lines]
    headers = Fields([(_lower(name), value) for name, _, value in parts])
    once = len(headers) == len(parts)
    length, id_ = headers.pop("content-length", ""), headers.pop("x-request-id", "")
    plain = (
        once
        and _LENGTH.fullmatch(length)
        and int(length) <= MAX_BODY_BYTES
        and headers.get("host")
        and _NOT_PLAIN.isdisjoint(headers)
        and headers.get("connection", "keep-alive").lower() == "keep-alive"
    )
    return LaneHead(path, headers, match.end(), int(length), id_, {}) if plain else None


class WholeBody:
    """Body that is complete, with the methods by which handlers read one."""

    __slots__ = ("_bytes", "total_bytes")

    def __init__(self, body: bytes) -> None:
        self._bytes = body
        self.total_bytes = len(body)

    def is_eof(self) -> bool:
        """Return `True`: nothing more will come."""
        return True

    def at_eof(self) -> bool:
        """Return whether the whole body was read."""
        return not self._bytes

    def read_nowait(self) -> bytes:
        """Return the whole body, empty after the first call."""
        body, self._bytes = self._bytes, b""
        return body

    async def readany(self) -> bytes:
        """Return the whole body, empty after the first call."""
        return self.read_nowait()


class LaneWire(Protocol):
    """The connection that a request came on, and that its answer is sent on."""

    address: str
    """The caller's IP address."""

    transport: asyncio.Transport | None

    def head(self, status: int, lines: str, length: int | None) -> bytes:
        """Return the bytes of a head with these header lines; an answer of unknown length is chunked."""

    def send_now(self, *parts: bytes) -> None:
        """Send bytes; raise `ConnectionError` if the caller is gone."""

    def send_on(self, piece: bytes) -> None:
        """Send more of an answer that has begun; raise as `send_now` does."""

    async def drain(self) -> None:
        """Wait while the transport's buffer is full; raise `ConnectionError` if the caller is gone."""


class LaneRequest:
    """Request to a handler: the part of aiohttp's `Request` that model handlers use, with notes under aiohttp's keys.

    `output_size` is a lower bound of the answer's bytes written: 0, or those that it began with. `begun` is set once the request
    has an account, so that a handler continues it.
    """

    __slots__ = (
        "_content", "_notes", "app", "begun", "body", "head", "headers", "method", "output_size", "version", "wire",
    )  # fmt: skip

    method: str
    version: HttpVersion

    def __init__(self, head: LaneHead, body: bytes, app: web.Application, wire: LaneWire) -> None:
        """Take a request; `wire` is the connection that its answer goes to."""
        self._content: WholeBody | None = None
        self._notes: dict[Any, Any] = {}
        self.app = app
        self.begun = False
        self.body = body
        self.head = head
        self.headers = head.headers
        self.wire = wire
        self.method = "POST"
        self.output_size = 0
        self.version = HttpVersion11

    @property
    def path(self) -> str:
        """Path of the URL."""
        return self.head.path

    @property
    def content_length(self) -> int:
        """Bytes of the body."""
        return len(self.body)

    @property
    def content(self) -> WholeBody:
        """The body, to be read once."""
        if self._content is None:
            self._content = WholeBody(self.body)
        return self._content

    @property
    def remote(self) -> str:
        """The caller's IP address."""
        return self.wire.address

    @property
    def transport(self) -> asyncio.Transport | None:
        """Transport of the connection; `None` once it is gone."""
        return self.wire.transport

    @property
    def writer(self) -> "LaneRequest":
        """The object with `output_size`, under aiohttp's name."""
        return self

    @property
    def protocol(self) -> LaneWire:
        """The connection, under aiohttp's name."""
        return self.wire

    def __getitem__(self, key: Any) -> Any:
        return self._notes[key]

    def __setitem__(self, key: Any, value: Any) -> None:
        self._notes[key] = value

    def __contains__(self, key: Any) -> bool:
        return key in self._notes

    def get(self, key: Any, default: Any = None) -> Any:
        """Return the note under a key, or `default`."""
        return self._notes.get(key, default)


HttpRequest = web.Request | LaneRequest
"""A request as model handlers get it."""
