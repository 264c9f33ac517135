"""Forms and JSON bodies that the provider takes in, and the errors and answers that it gives: OpenAI's shapes."""

import asyncio
import os
from collections.abc import Collection
from pathlib import Path
from typing import Any

import orjson
from aiohttp import BodyPartReader, web

from node.provide.asker import NodeAnswer

MAX_JSON_BYTES = 64 * 1024 * 1024
"""As much as a node passes on."""

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
    """Return a JSON object; raise `Fault`."""
    try:
        said = orjson.loads(await http.read())
    except orjson.JSONDecodeError as error:
        raise Fault(400, f"the body is not JSON: {error.msg}") from error
    if not isinstance(said, dict):
        raise Fault(400, "the body must be a JSON object")
    return said


async def take(field: BodyPartReader, part: Path, *, most: int) -> int:
    """Write a file of a form, and return its bytes; raise `Fault` where it has more than `most`."""
    size = 0
    with part.open("wb") as file:
        while chunk := await field.read_chunk(_CHUNK):
            size += len(chunk)
            if size > most:
                raise Fault(413, f"a file has at most {most:,} bytes here", param="file")
            await asyncio.to_thread(file.write, chunk)
        await asyncio.to_thread(sync, file.fileno())
    return size


def require_purpose(said: object, purposes: Collection[str]) -> None:
    """Raise `Fault` where a file is for what is none of these."""
    if said not in purposes:
        raise Fault(400, f"`purpose` must be {' or '.join(sorted(purposes))}", param="purpose")


def passed(heard: NodeAnswer) -> web.Response:
    """Return what a node answered as this provider's own answer; none at all is a 502."""
    headers = {"retry-after": heard.after} if heard.after else {}
    kind = "application/json"
    return web.Response(
        status=heard.status or 502, body=heard.body, content_type=kind, headers=headers
    )


def as_json(value: object) -> web.Response:
    """Return a value as JSON."""
    return web.Response(body=orjson.dumps(value), content_type="application/json")


def sync(number: int) -> None:
    """Have what was written on the disk."""
    os.fsync(number)
