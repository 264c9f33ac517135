"""Reader of request bodies, and writer of JSON and streamed answers. Every length, wait and encoding has a limit."""

import asyncio
import zlib
from collections.abc import Mapping
from functools import partial
from typing import Any, TypeVar

import orjson
from aiohttp import HttpVersion11, StreamReader, web
from aiohttp.abc import AbstractStreamWriter
from pydantic import BaseModel, ValidationError

from node.config.settings import Settings
from node.config.web import WEB_DEFAULTS
from node.faces.errors import (
    BodyTooLarge,
    BodyTooSlow,
    NoRoomForBody,
    Unparseable,
    UnsupportedMediaType,
    WrongParameter,
)
from node.lane.request import HttpRequest, WholeBody
from router.large_bodies import in_thread_if_large, run_in_thread
from router.openai.body import parse_json_object
from router.openai.media_type import media_of

Shape = TypeVar("Shape", bound=BaseModel)

MAX_CONTROL_BYTES = 2 * 1024 * 1024
"""The longest body of a control request: a record's 2,000 models fit easily, even with names of full length."""

JSON = "application/json"
TAKEN_FOR_JSON = frozenset(
    {JSON, "application/x-www-form-urlencoded", "application/octet-stream", ""}
)
"""Content types that are read as JSON at `/api/v0`: its clients send those of `curl -d`, or none."""

SHARED = web.RequestKey("shared", dict[str, str])
"""Headers that let a page of another origin read the answer (CORS)."""

EXPECTS = web.RequestKey("expects", bool)
"""Set if the caller waits for `100 Continue` before it sends the body (`Expect`)."""

HELD = web.RequestKey("held", int)
"""Bytes of `ROOM` that this request holds until it is answered."""


class BodyMemory:
    """Memory that the bodies of all requests to one listener share."""

    __slots__ = ("_limit", "held")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.held = 0

    def fits(self, size: int) -> bool:
        """Return whether `size` more bytes may be held."""
        return self.held + size <= self._limit


ROOM = web.AppKey("room", BodyMemory)
"""The memory budget of an application for bodies."""

MIN_RATE = WEB_DEFAULTS.min_body_rate

SMALL = 64 * 1024
"""Bodies up to this many bytes are always admitted: most requests have no more, and they are not worth counting."""

MAX_LISTED = 10_000
"""The most entries of one list that a caller may ask for."""

# RFC 9110 8.4.1.2: `deflate` is the zlib format; some clients send bare deflate, which has no header.
_GZIP, _ZLIB, _BARE = 16 + zlib.MAX_WBITS, zlib.MAX_WBITS, -zlib.MAX_WBITS
MAX_MEMBERS = 16
"""The most consecutive members of one gzip body; each costs more than its bytes."""

MAX_RATIO = 200
"""The highest compression ratio of a body that unpacks to more than a megabyte; repetitive chats reach 20."""

_ALWAYS = 1024 * 1024
# Inflating to more than this takes long enough to delay other requests.
_INFLATE_HERE = 256 * 1024


async def read_body(
    request: HttpRequest, *, limit: int, idle: float, rate: int = MIN_RATE
) -> bytes:
    """Return the body, unpacked; at most `limit` bytes packed and unpacked, at most `idle` seconds between two pieces.

    Beyond the first `idle` seconds in total, it must arrive at `rate` bytes a second on average.

    Raise `BodyTooLarge`, `BodyTooSlow`, `NoRoomForBody`, `Unparseable` or `UnsupportedMediaType`.
    """
    body = await read_raw(request, limit=limit, idle=idle, rate=rate)
    encoding = ", ".join(request.headers.getall("content-encoding", ()))
    if encoding:
        body = await _unpack(body, encoding, limit)
        if len(body) > SMALL:
            _hold(request, len(body))
    return body


async def read_raw(request: HttpRequest, *, limit: int, idle: float, rate: int = MIN_RATE) -> bytes:
    """Return the body as it was sent; raise `BodyTooLarge`, `BodyTooSlow`, `NoRoomForBody` or `Unparseable`."""
    length = request.content_length or 0
    if length > limit:
        raise BodyTooLarge(limit)
    if length > SMALL:
        _check_room(request, length)
    content = request.content
    pieces: list[bytes] = []
    taken, began = 0, 0.0
    while True:
        # Most bodies have arrived completely by now, and need no wait.
        if content.is_eof():
            piece = content.read_nowait()
        else:
            now = asyncio.get_running_loop().time()
            if not began:
                began = now
                _send_continue(request)
            due = began + idle + taken / rate
            piece = await _read_more(
                content, within=min(idle, max(due - now, 0.0)), idle=idle, rate=rate
            )
        taken += len(piece)
        if taken > limit:
            raise BodyTooLarge(limit)
        if taken > SMALL:
            _hold(request, taken)
        pieces.append(piece)
        if content.at_eof():
            return pieces[0] if len(pieces) == 1 else b"".join(pieces)


async def _read_more(
    content: StreamReader | WholeBody, *, within: float, idle: float, rate: int
) -> bytes:
    try:
        async with asyncio.timeout(within):
            return await content.readany()
    except TimeoutError as error:
        raise BodyTooSlow(
            f"the body stalled for {idle:g} s, or arrived at less than {rate} bytes a second"
        ) from error
    except web.RequestPayloadError as error:
        raise Unparseable("the body does not match its framing headers") from error


def _send_continue(request: HttpRequest) -> None:
    """Send `100 Continue` to a caller that waits for it before it sends the body."""
    is_waiting = EXPECTS in request and request.version == HttpVersion11
    if is_waiting and request.transport is not None:
        request.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")


_NO_ROOM = "too many large requests are in flight; try again"


def _check_room(request: HttpRequest, size: int) -> None:
    """Refuse a body unread that would be refused on arrival. Nothing is reserved: the body may never arrive."""
    if not request.app[ROOM].fits(size - request.get(HELD, 0)):
        raise NoRoomForBody(_NO_ROOM)


def _hold(request: HttpRequest, size: int) -> None:
    if not hold(request, size):
        raise NoRoomForBody(_NO_ROOM)


def hold(request: HttpRequest, size: int) -> bool:
    """Hold `size` bytes in all for this request until it is answered; return whether they fit."""
    room, more = request.app[ROOM], size - request.get(HELD, 0)
    if not room.fits(more):
        return False
    room.held += more
    request[HELD] = size
    return True


def release(request: HttpRequest) -> None:
    """Release all bytes that the request holds."""
    request.app[ROOM].held -= request.get(HELD, 0)
    request[HELD] = 0


async def read_fields(request: web.Request, settings: Settings) -> Mapping[str, object]:
    """Return the JSON object of a model request in a protocol other than OpenAI's.

    Raise what `read_body` and `parse_json_object` raise, or `UnsupportedMediaType`.
    """
    kind = media_of(request.headers.get("content-type") or "application/json").kind
    if kind != "application/json" and not kind.endswith("+json"):
        raise UnsupportedMediaType(f"send application/json, not {kind[:100]!r}")
    body = await read_body(
        request,
        limit=settings.router.max_body_bytes,
        idle=settings.router.idle_timeout,
        rate=settings.web.min_body_rate,
    )
    return await in_thread_if_large(body, partial(parse_json_object, body))


async def read_object(request: web.Request, *, idle: float) -> dict[str, Any]:
    """Return the body of a control request as a JSON object, its keys in lower case; raise `Unparseable`.

    Clients of api-v0 write `project`, `Project` or `PROJECT`. A key that is lower case already wins.
    """
    return parse_object(await read_body(request, limit=MAX_CONTROL_BYTES, idle=idle))


def parse_object(body: bytes) -> dict[str, Any]:
    """Return a JSON object with its keys in lower case; raise `Unparseable`."""
    try:
        parsed = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise Unparseable("Parsing error") from error
    if not isinstance(parsed, dict):
        raise Unparseable("Parsing error")
    return lower_keys(parsed)


def lower_keys(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return a mapping with its keys in lower case; an exact key wins over another spelling of it."""
    inexact = {key.lower(): value for key, value in fields.items()}
    return inexact | {key: value for key, value in fields.items() if key in inexact}


def text_of(fields: Mapping[str, Any], name: str) -> str:
    """Return a field that is text, `""` where it is missing or null; raise `Unparseable` for another type."""
    match fields.get(name):
        case None:
            return ""
        case str(value):
            return value
        case _:
            raise Unparseable("Parsing error")


def number_of(fields: Mapping[str, Any], name: str, *, default: int = 0) -> int:
    """Return a field that is a whole number; raise `Unparseable` for another type."""
    match fields.get(name):
        case None:
            return default
        case bool():
            raise Unparseable("Parsing error")
        case int(value):
            return value
        case _:
            raise Unparseable("Parsing error")


def count_in_query(request: web.Request, *, default: int, at_most: int = MAX_LISTED) -> int:
    """Return the `number` of entries in the query, at most `at_most`; missing and 0 mean `default`. Raise `WrongParameter`."""
    text = request.query.get("number", "")
    if not text:
        return default
    if not (text.isascii() and text.isdigit()) or len(text) > 9:
        raise WrongParameter("number must be a whole number, 0 for the default", param="number")
    return min(int(text), at_most) or default


def json_answer(value: object) -> web.Response:
    """Return a value as JSON."""
    return web.Response(body=orjson.dumps(value), content_type=JSON)


def done(message: str = "ok", **fields: object) -> web.Response:
    """Return success in api-v0's shape: `code` 0, a message, and further fields."""
    return json_answer({"code": 0, "message": message, **fields})


async def _unpack(body: bytes, encoding: str, limit: int) -> bytes:
    match encoding.strip().lower():
        case "" | "identity":
            return body
        case "gzip" | "x-gzip":
            window = _GZIP
        case "deflate":
            # A zlib header names method 8 in its low bits and is a multiple of 31 (RFC 1950 2.2).
            headed = len(body) > 1 and body[0] & 15 == 8 and int.from_bytes(body[:2]) % 31 == 0
            window = _ZLIB if headed else _BARE
        case other:
            raise UnsupportedMediaType(
                f"content encoding {other[:40]!r} is not supported; use gzip"
            )
    if len(body) < _INFLATE_HERE // 16:
        return _inflate(body, window, limit)
    return await run_in_thread(partial(_inflate, body, window, limit))


def _inflate(packed: bytes, window: int, limit: int) -> bytes:
    """Unpack every member of `packed`; raise `BodyTooLarge` as soon as a limit is exceeded, or `Unparseable`."""
    limit = remaining = min(limit, max(_ALWAYS, MAX_RATIO * len(packed)))
    pieces: list[bytes] = []
    for _ in range(MAX_MEMBERS):
        member = zlib.decompressobj(window)
        try:
            pieces.append(member.decompress(packed, remaining + 1))
        except zlib.error as error:
            raise Unparseable("the body does not match its content encoding") from error
        remaining -= len(pieces[-1])
        if remaining < 0:
            raise BodyTooLarge(limit)
        if not member.eof:
            raise Unparseable("the compressed body is incomplete")
        packed = member.unused_data
        if not packed:
            return b"".join(pieces)
    raise Unparseable(f"the body is compressed in more than {MAX_MEMBERS} members")


def read_as(shape: type[Shape], fields: Mapping[str, object]) -> Shape:
    """Return a body validated as `shape`; raise `WrongParameter` with the first invalid field."""
    try:
        return shape.model_validate(fields)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        field_path = ".".join(map(str, first["loc"]))
        raise WrongParameter(f"{field_path}: {first['msg']}", param=field_path) from None


class StreamedResponse(web.StreamResponse):
    """An answer that is sent as its bytes arrive. Its headers leave together with the first of them."""

    _send_headers_immediately = False

    async def prepare(self, request: web.BaseRequest) -> AbstractStreamWriter | None:
        """Begin the answer. HTTP/1.0 has no chunks: there, closing the connection ends an answer of unknown length."""
        if self.content_length is None and request.version < HttpVersion11:
            self.force_close()
        return await super().prepare(request)
