"""HTTP of a provider, for the node at which it is registered: its server, the bodies that it reads, and what it answers.

Errors and pages of lists have OpenAI's shapes.
"""

import asyncio
import hmac
import logging
import os
import re
from collections.abc import Awaitable, Callable, Collection, Iterable
from pathlib import Path
from typing import Any

import orjson
from aiohttp import BodyPartReader, web
from aiohttp.http_exceptions import BadHttpMessage

from node.provide.asker import NodeAnswer
from node.provide.database import DatabaseError
from node.provide.files import NoRoom

log = logging.getLogger("modelvine.provide")

MAX_JSON_BYTES = 64 * 1024 * 1024
"""Bytes of the longest body that a node passes on."""

BROKEN_FORM = (ValueError, RuntimeError, BadHttpMessage)
"""What aiohttp raises for a form that it cannot read."""

MAX_PAGE = 100

_LIMIT = re.compile("[0-9]{1,5}")
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
        fields = orjson.loads(await http.read())
        # What is nested deeply can be read, but not written again.
        orjson.dumps(fields)
    except orjson.JSONDecodeError as error:
        raise Fault(400, f"the body is not JSON: {error.msg}") from error
    except orjson.JSONEncodeError as error:
        raise Fault(400, "the body is nested too deeply") from error
    if not isinstance(fields, dict):
        raise Fault(400, "the body must be a JSON object")
    return fields


async def take(field: BodyPartReader, part: Path, *, limit: int) -> int:
    """Write a form's file to `part`, and return its number of bytes; raise `Fault` if there are more than `limit`."""
    size = 0
    with part.open("wb") as file:
        while chunk := await field.read_chunk(_CHUNK):
            size += len(chunk)
            if size > limit:
                raise Fault(413, f"a file has at most {limit:,} bytes here", param="file")
            await asyncio.to_thread(file.write, chunk)
        await asyncio.to_thread(sync, file.fileno())
    return size


def name_of(value: object) -> str:
    """Return the name of a file, without what no database stores: bytes that are not UTF-8, and NUL."""
    return str(value or "file").encode(errors="replace").decode().replace("\0", "?")[:255]


def require_purpose(purpose: object, purposes: Collection[str]) -> None:
    """Raise `Fault` unless a file's purpose is one of these."""
    if not isinstance(purpose, str) or purpose not in purposes:
        raise Fault(400, f"`purpose` must be {' or '.join(sorted(purposes))}", param="purpose")


def passed(reply: NodeAnswer) -> web.Response:
    """Return a node's answer as this provider's own; a missing answer becomes a 502."""
    headers = {"retry-after": reply.after} if reply.after else {}
    kind = "application/json"
    return web.Response(
        status=reply.status or 502, body=reply.body, content_type=kind, headers=headers
    )


def as_json(value: object) -> web.Response:
    """Return a response with a value as JSON."""
    return web.Response(body=orjson.dumps(value), content_type="application/json")


def sync(number: int) -> None:
    """Flush a file to the disk, by its descriptor."""
    os.fsync(number)


def application(routes: Iterable[web.RouteDef], key: str) -> web.Application:
    """Return the application. A request without the key learns nothing."""

    @web.middleware
    async def admit(
        request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        authorization = request.headers.get("authorization", "")
        # A caller on this machine needs the key, too.
        if not hmac.compare_digest(
            authorization.encode(errors="replace"), f"Bearer {key}".encode()
        ):
            raise Fault(401, "only the node at which this service is registered may call it")
        try:
            return await handler(request)
        except ConnectionError:
            raise
        except NoRoom as full:
            raise Fault(507, str(full)) from full
        except (OSError, DatabaseError) as error:
            log.error("%s %s failed: %s", request.method, request.path, error)  # noqa: TRY400
            raise Fault(507, "this service cannot store anything now; see its log") from error

    app = web.Application(middlewares=[admit], client_max_size=MAX_JSON_BYTES)
    app.add_routes([web.get("/v1/models", _models), *routes])
    return app


async def _models(_: web.Request) -> web.Response:
    """Return an empty list of models."""
    return as_json({"object": "list", "data": []})


def cut(http: web.Request, ids: list[str]) -> tuple[list[str], bool]:
    """Return the requested page of a list of ids, and whether there are more; raise `Fault`."""
    limit, after = http.query.get("limit", "20"), http.query.get("after")
    if not _LIMIT.fullmatch(limit) or not 1 <= int(limit) <= 10_000:
        raise Fault(400, "`limit` is a number from 1", param="limit")
    if after is not None and after not in ids:
        raise Fault(400, "`after` names nothing of this service", param="after")
    begin = ids.index(after) + 1 if after else 0
    end = begin + min(int(limit), MAX_PAGE)
    return ids[begin:end], end < len(ids)


def page_of(http: web.Request, rows: list[dict[str, Any]]) -> web.Response:
    """Return the requested page of a list whose entries have an `id`; raise `Fault`."""
    ids, more = cut(http, [row["id"] for row in rows])
    page = set(ids)
    return listed([row for row in rows if row["id"] in page], more=more)


def listed(data: Iterable[dict[str, Any]], *, more: bool) -> web.Response:
    """Return one page as OpenAI shows it."""
    rows = list(data)
    first, last = (rows[0]["id"], rows[-1]["id"]) if rows else (None, None)
    return as_json(
        {"object": "list", "data": rows, "first_id": first, "last_id": last, "has_more": more}
    )
