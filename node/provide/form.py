"""Forms and JSON bodies that a provider accepts, and the errors and answers that it returns, in OpenAI's shapes."""

import asyncio
import os
from collections.abc import Collection
from pathlib import Path
from typing import Any

import orjson
from aiohttp import BodyPartReader, web
from aiohttp.http_exceptions import BadHttpMessage

from node.provide.asker import NodeAnswer

MAX_JSON_BYTES = 64 * 1024 * 1024
"""Bytes of the longest body that a node passes on."""

BROKEN_FORM = (ValueError, RuntimeError, BadHttpMessage)
"""What aiohttp raises for a form that it cannot read."""

_CHUNK = 256 * 1024


class Fault(web.HTTPException):
    """An error in OpenAI's form."""

    def __init__(self, status: int, message: str, *, param: str | None = None) -> None:
        self.status_code = status
        kind = "invalid_request_error" if status < 500 else "server_error"
        error = {"message": message, "type": kind, "param": param, "code": None}
        super().__init__(
            text=orjson.dumps({"error": error}).decode(), content_type="application/json"
        )


async def object_of(http: web.Request) -> dict[str, Any]:
    """Return a request's JSON object; raise `Fault`."""
    try:
        said = orjson.loads(await http.read())
        # What is nested deeply can be read, but not written again.
        orjson.dumps(said)
    except orjson.JSONDecodeError as error:
        raise Fault(400, f"the body is not JSON: {error.msg}") from error
    except orjson.JSONEncodeError as error:
        raise Fault(400, "the body is nested too deeply") from error
    if not isinstance(said, dict):
        raise Fault(400, "the body must be a JSON object")
    return said


async def take(field: BodyPartReader, part: Path, *, most: int) -> int:
    """Write a form's file to `part`, and return its number of bytes; raise `Fault` if there are more than `most`."""
    size = 0
    with part.open("wb") as file:
        while chunk := await field.read_chunk(_CHUNK):
            size += len(chunk)
            if size > most:
                raise Fault(413, f"a file has at most {most:,} bytes here", param="file")
            await asyncio.to_thread(file.write, chunk)
        await asyncio.to_thread(sync, file.fileno())
    return size


def name_of(said: object) -> str:
    """Return the name of a file, without what no database stores: bytes that are not UTF-8, and NUL."""
    return str(said or "file").encode(errors="replace").decode().replace("\0", "?")[:255]


def require_purpose(said: object, purposes: Collection[str]) -> None:
    """Raise `Fault` unless a file's purpose is one of these."""
    if not isinstance(said, str) or said not in purposes:
        raise Fault(400, f"`purpose` must be {' or '.join(sorted(purposes))}", param="purpose")


def passed(heard: NodeAnswer) -> web.Response:
    """Return a node's answer as this provider's own; a missing answer becomes a 502."""
    headers = {"retry-after": heard.after} if heard.after else {}
    kind = "application/json"
    return web.Response(
        status=heard.status or 502, body=heard.body, content_type=kind, headers=headers
    )


def as_json(value: object) -> web.Response:
    """Return a response with a value as JSON."""
    return web.Response(body=orjson.dumps(value), content_type="application/json")


def sync(number: int) -> None:
    """Flush a file to the disk, by its descriptor."""
    os.fsync(number)
