"""Request that the lane takes: a call of a model that all readers read alike, with its whole body.

That is a strict subset of what aiohttp takes. Whatever is not plainly such a call is left to aiohttp, untouched.
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
"""The longest body that is read here: for longer ones, what aiohttp takes besides is little."""

# One blank after the colon, none after the value, and nothing but ASCII: clients send nothing else.
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
"""Headers that change how a body is framed or packed, what becomes of the connection, or who may read the answer."""


class Fields(dict[str, str]):
    """Headers by lower-case name, each of which stands once."""

    def getall(self, name: str, default: Iterable[str] = ()) -> Iterable[str]:
        """Return what stands under a name, as of headers that may stand several times."""
        found = self.get(name)
        return default if found is None else (found,)


class LaneHead:
    """What a request begins with. `end` is the length of the whole request, in bytes.

    `id` is what it calls itself, if anything. `headers` are all others but its length, and `derived` is what was made of them,
    for whoever finds the same again. It is `admitted` where whatever begins so on its connection is let in without a key.
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
        """Return the same head with another length and another id of the request; `None` where aiohttp is to read it."""
        if length > MAX_BODY_BYTES:
            return None
        name = id_.decode() if id_ else self.id
        return LaneHead(self.path, self.headers, body_at, length, name, self.derived)


@lru_cache(maxsize=256)
def _lower(name: str) -> str:
    """Return the same text for the same name: thousands of connections keep their heads."""
    return name.lower()


def read_head(data: bytes) -> LaneHead | None:
    """Return the head that `data` begins with; `None` for whatever is aiohttp's to read, a head that is not whole among it."""
    found = _HEAD.match(data)
    if found is None or found.end() > MAX_HEAD_BYTES:
        return None
    path, lines = found[1].decode("ascii"), found[2].decode("ascii").split("\r\n")[:-1]
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
    return LaneHead(path, headers, found.end(), int(length), id_, {}) if plain else None


class WholeBody:
    """A body that is here, as handlers read it."""

    __slots__ = ("_bytes", "total_bytes")

    def __init__(self, body: bytes) -> None:
        self._bytes = body
        self.total_bytes = len(body)

    def is_eof(self) -> bool:
        """Return that nothing more will come."""
        return True

    def at_eof(self) -> bool:
        """Return whether all was read."""
        return not self._bytes

    def read_nowait(self) -> bytes:
        """Return all of it, once."""
        body, self._bytes = self._bytes, b""
        return body

    async def readany(self) -> bytes:
        """Return all of it, once."""
        return self.read_nowait()


class LaneWire(Protocol):
    """The connection that a request came on, and its answer goes to."""

    address: str
    """The caller's IP address."""

    transport: asyncio.Transport | None

    def head(self, status: int, lines: str, length: int | None) -> bytes:
        """Return the bytes of a head with these header lines; an answer of no known length goes in chunks."""

    def send_now(self, *parts: bytes) -> None:
        """Send bytes; raise `ConnectionError` when nobody takes them."""

    def send_on(self, piece: bytes) -> None:
        """Send more of an answer of which something was sent; raise as `send_now` does."""

    async def drain(self) -> None:
        """Wait while the transport holds enough; raise `ConnectionError` when nobody takes it."""


class LaneRequest:
    """A request to a handler: of aiohttp's `Request` what handlers of models use, and what is noted of it, by aiohttp's keys.

    `output_size` is how many bytes of its answer were written at least: none, or those that it began with. It has `begun` where
    a handler goes on with what was begun.
    """

    __slots__ = (
        "_content", "_noted", "app", "begun", "body", "head", "headers", "line", "method", "output_size", "version",
    )  # fmt: skip

    method: str
    version: HttpVersion

    def __init__(self, head: LaneHead, body: bytes, app: web.Application, line: LaneWire) -> None:
        """Take a request from the line that its answer goes to."""
        self._content: WholeBody | None = None
        self._noted: dict[Any, Any] = {}
        self.app = app
        self.begun = False
        self.body = body
        self.head = head
        self.headers = head.headers
        self.line = line
        self.method = "POST"
        self.output_size = 0
        self.version = HttpVersion11

    @property
    def path(self) -> str:
        """What is asked."""
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
        return self.line.address

    @property
    def transport(self) -> asyncio.Transport | None:
        """What the connection is sent on; `None` once it is gone."""
        return self.line.transport

    @property
    def writer(self) -> "LaneRequest":
        """What knows how much was written, by aiohttp's name."""
        return self

    @property
    def protocol(self) -> LaneWire:
        """The connection, by aiohttp's name."""
        return self.line

    def __getitem__(self, key: Any) -> Any:
        return self._noted[key]

    def __setitem__(self, key: Any, value: Any) -> None:
        self._noted[key] = value

    def __contains__(self, key: Any) -> bool:
        return key in self._noted

    def get(self, key: Any, default: Any = None) -> Any:
        """Return what is noted under a key, if anything."""
        return self._noted.get(key, default)


HttpRequest = web.Request | LaneRequest
"""A request that a handler of models is given."""
