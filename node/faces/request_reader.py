"""Reader of request bodies, and writer of JSON answers. Every length, wait and encoding has a limit."""

import asyncio
import zlib
from collections.abc import Mapping
from typing import Any

import orjson

from node import web
from node.config.settings import Settings
from node.faces.errors import (
    BodyTooLarge,
    BodyTooSlow,
    Unparseable,
    UnsupportedMediaType,
    WrongParameter,
    of_fault,
)
from node.web.settings import WebSettings
from router.openai.body import object_of
from router.openai.media_type import media_of

MAX_CONTROL_BYTES = 2 * 1024 * 1024
"""The longest body of a control request: a record's 2,000 models, each named at full length, fit well."""

JSON = "application/json"
TAKEN_FOR_JSON = frozenset(
    {JSON, "application/x-www-form-urlencoded", "application/octet-stream", ""}
)
"""Content types of JSON at `/api/v0`: its clients name what `curl -d` does, or none."""

MIN_RATE = WebSettings().min_body_rate

SMALL = 64 * 1024
"""Bytes of a body that always find room: what most requests have, and not worth counting."""

MAX_LISTED = 10_000
"""The most entries of one list that a caller may ask for."""

# RFC 9110 8.4.1.2: zlib's own format; some clients send bare deflate, which has no header.
_GZIP, _ZLIB, _BARE = 16 + zlib.MAX_WBITS, zlib.MAX_WBITS, -zlib.MAX_WBITS
MAX_MEMBERS = 16
"""Members of one gzip body, one after the other; each costs more than its bytes."""

MAX_RATIO = 200
"""How many times its size a packed body may unpack to, beyond the first megabyte; repetitive chats reach 20."""

_ALWAYS = 1024 * 1024
# Inflating more than this takes long enough to hold up other requests.
_INFLATE_HERE = 256 * 1024


async def read_body(
    request: web.HttpRequest, *, limit: int, idle: float, rate: int = MIN_RATE
) -> bytes:
    """Return the body, unpacked; at most `limit` bytes before and after, at most `idle` seconds between two pieces.

    After as many seconds in all it must have come at `rate` bytes a second on average.

    Raise `BodyTooLarge`, `BodyTooSlow`, `NoRoomForBody`, `Unparseable` or `UnsupportedMediaType`.
    """
    body = await read_raw(request, limit=limit, idle=idle, rate=rate)
    encoding = request.headers.get("content-encoding", "")
    if encoding:
        body = await _unpacked(body, encoding, limit)
        if len(body) > SMALL:
            _hold(request, len(body))
    return body


async def read_raw(
    request: web.HttpRequest, *, limit: int, idle: float, rate: int = MIN_RATE
) -> bytes:
    """Return the body as it was sent; raise `BodyTooLarge`, `BodyTooSlow`, `NoRoomForBody` or `Unparseable`."""
    length = request.content_length or 0
    if length > limit:
        raise BodyTooLarge(limit)
    if length > SMALL:
        _expect(request, length)
    pieces: list[bytes] = []
    taken, complete = 0, False
    began = 0.0
    while not complete:
        try:
            # Most bodies are here already, all of them: then there is nothing to wait for.
            if request.complete:
                piece = request.rest()
            else:
                now = asyncio.get_running_loop().time()
                began = began or now
                due = began + idle + taken / rate
                async with asyncio.timeout(min(idle, max(due - now, 0.0))):
                    piece = await request.some()
        except TimeoutError as error:
            raise BodyTooSlow(
                f"no more of the body came within {idle:g} s, or less than {rate} bytes a second"
            ) from error
        except web.Fault as error:
            raise of_fault(error) from error
        taken += len(piece)
        if taken > limit:
            raise BodyTooLarge(limit)
        if taken > SMALL:
            _hold(request, taken)
        pieces.append(piece)
        complete = request.ended
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _expect(request: web.HttpRequest, size: int) -> None:
    """Refuse unread what would be refused once it has come."""
    try:
        request.expect(size)
    except web.NoRoom as full:
        raise of_fault(full) from full


def _hold(request: web.HttpRequest, size: int) -> None:
    try:
        request.hold(size)
    except web.NoRoom as full:
        raise of_fault(full) from full


async def read_fields(request: web.HttpRequest, settings: Settings) -> Mapping[str, object]:
    """Return what is asked of a model in another protocol than OpenAI's: a JSON object.

    Raise what `read_body` does, `UnsupportedMediaType`, or what `bodies.object_of` does.
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
    return object_of(body)


async def read_object(request: web.HttpRequest, *, idle: float) -> dict[str, Any]:
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
    return lowered(parsed)


def lowered(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return a mapping with its keys in lower case; an exact key wins over another spelling of it."""
    inexact = {key.lower(): value for key, value in given.items()}
    return inexact | {key: value for key, value in given.items() if key in inexact}


def text_of(given: Mapping[str, Any], name: str) -> str:
    """Return a field that is text, `""` where it is missing or null; raise `Unparseable` for another type."""
    match given.get(name):
        case None:
            return ""
        case str(value):
            return value
        case _:
            raise Unparseable("Parsing error")


def number_of(given: Mapping[str, Any], name: str, *, default: int = 0) -> int:
    """Return a field that is a whole number; raise `Unparseable` for another type."""
    match given.get(name):
        case None:
            return default
        case bool():
            raise Unparseable("Parsing error")
        case int(value):
            return value
        case _:
            raise Unparseable("Parsing error")


def count_in_query(request: web.HttpRequest, *, default: int, at_most: int = MAX_LISTED) -> int:
    """Return the `number` of entries that a caller wants, 0 for as many as by default; raise `WrongParameter`."""
    asked = request.query.get("number", "")
    if not asked:
        return default
    if not (asked.isascii() and asked.isdigit()) or len(asked) > 9:
        raise WrongParameter("number must be a whole number, 0 for the default", param="number")
    return min(int(asked), at_most) or default


def json_answer(value: object, *, status: int = 200) -> web.Response:
    """Return a value as JSON."""
    return web.Response(body=orjson.dumps(value), status=status, content_type="application/json")


def done(message: str = "ok", **fields: object) -> web.Response:
    """Return success in api-v0's shape: `code` 0, a message, and what else there is to say."""
    return json_answer({"code": 0, "message": message, **fields})


async def _unpacked(body: bytes, encoding: str, limit: int) -> bytes:
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
            raise UnsupportedMediaType(f"content encoding {other[:40]!r} is not read; use gzip")
    if len(body) < _INFLATE_HERE // 16:
        return _inflated(body, window, limit)
    return await asyncio.to_thread(_inflated, body, window, limit)


def _inflated(packed: bytes, window: int, limit: int) -> bytes:
    """Unpack every member of `packed`; raise `BodyTooLarge` as soon as a limit is passed."""
    limit = left = min(limit, max(_ALWAYS, MAX_RATIO * len(packed)))
    pieces: list[bytes] = []
    for _ in range(MAX_MEMBERS):
        member = zlib.decompressobj(window)
        try:
            pieces.append(member.decompress(packed, left + 1))
        except zlib.error as error:
            raise Unparseable("the body is not packed as its content encoding says") from error
        left -= len(pieces[-1])
        if left < 0:
            raise BodyTooLarge(limit)
        if not member.eof:
            raise Unparseable("the packed body is broken off")
        packed = member.unused_data
        if not packed:
            return b"".join(pieces)
    raise Unparseable(f"the body is packed in more than {MAX_MEMBERS} members")
