"""HTTP face of the provider of batches: OpenAI's files and batches, for the node that it is registered at."""

import asyncio
import hmac
import logging
import os
import re
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Any

from aiohttp import BodyPartReader, web

from node.provide.engine import MAX_FILE_BYTES, Engine, NoRoom, new_id
from node.provide.form import MAX_JSON_BYTES, Fault, as_json, object_of, take
from node.provide.lines import ENDPOINTS
from node.provide.store import DatabaseError
from node.provide.uploads import Uploads

log = logging.getLogger("modelvine.provide")

MAX_METADATA = 16
MAX_PAGE = 100

_WINDOW = re.compile(r"([1-9][0-9]{0,2})([hd])")
_HOURS = {"h": 3600, "d": 86_400}
_CHUNK = 256 * 1024


def application(engine: Engine, key: str, now: Callable[[], float]) -> web.Application:
    """Return the server; whoever does not show the key learns nothing."""

    @web.middleware
    async def admit(
        request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        shown = request.headers.get("authorization", "")
        # Being on this machine proves nothing.
        if not hmac.compare_digest(shown.encode(errors="replace"), f"Bearer {key}".encode()):
            raise Fault(401, "only the node that this is registered at may ask")
        try:
            return await handler(request)
        except ConnectionError:
            raise
        except NoRoom as full:
            raise Fault(507, str(full)) from full
        except (OSError, DatabaseError) as error:
            log.error("%s %s failed: %s", request.method, request.path, error)  # noqa: TRY400
            raise Fault(507, "this service cannot keep anything now; its log says why") from error

    face, uploads = _Face(engine, now), Uploads(engine, engine.folder.parent / "uploads", now)
    app = web.Application(middlewares=[admit], client_max_size=MAX_JSON_BYTES)
    app.add_routes(
        [
            web.get("/v1/models", face.models),
            web.get("/v1/files", face.files),
            web.post("/v1/files", face.upload),
            web.get("/v1/files/{id}", face.file),
            web.delete("/v1/files/{id}", face.delete),
            web.get("/v1/files/{id}/content", face.content),
            web.post("/v1/uploads", uploads.create),
            web.post("/v1/uploads/{id}/parts", uploads.add_part),
            web.post("/v1/uploads/{id}/complete", uploads.complete),
            web.post("/v1/uploads/{id}/cancel", uploads.cancel),
            web.get("/v1/batches", face.batches),
            web.post("/v1/batches", face.create),
            web.get("/v1/batches/{id}", face.batch),
            web.post("/v1/batches/{id}/cancel", face.cancel),
        ]
    )
    return app


class _Face:
    """What may be asked."""

    def __init__(self, engine: Engine, now: Callable[[], float]) -> None:
        self._engine = engine
        self._store = engine.store
        self._run = engine.run_in_thread
        self._now = now

    async def models(self, _: web.Request) -> web.Response:
        """Have none."""
        return as_json({"object": "list", "data": []})

    # Files.

    async def files(self, http: web.Request) -> web.Response:
        """List files."""
        found = await self._run(self._store.files)
        purpose = http.query.get("purpose")
        return _page(http, [f for f in found if purpose in (None, f["purpose"])])

    async def file(self, http: web.Request) -> web.Response:
        """Show a file."""
        return as_json(await self._file(http))

    async def content(self, http: web.Request) -> web.StreamResponse:
        """Send what is in a file."""
        found = await self._file(http)
        headers = {"content-type": "application/octet-stream"}
        return web.FileResponse(
            self._engine.folder / found["id"], headers=headers, chunk_size=_CHUNK
        )

    async def delete(self, http: web.Request) -> web.Response:
        """Delete a file, once no batch reads it any more."""
        found = await self._file(http)
        path = self._engine.folder / found["id"]

        def remove() -> None:
            self._store.remove_file(found["id"])
            path.unlink(missing_ok=True)

        await self._run(remove)
        return as_json({"id": found["id"], "object": "file", "deleted": True})

    async def upload(self, http: web.Request) -> web.Response:
        """Take in a file, as long as it is short enough; nothing is left behind of one that is not."""
        if not http.content_type.startswith("multipart/"):
            raise Fault(400, "send a form with `purpose` and `file`")
        await self._engine.require_room(http.content_length or 0)
        id_ = new_id("file-")
        part = self._engine.folder / f"{id_}.part"
        name, purpose, size = "", "", -1
        try:
            async for field in await http.multipart():
                if not isinstance(field, BodyPartReader):
                    raise Fault(400, "the form is nested")
                if field.name == "purpose":
                    purpose = (await field.read(decode=True)).decode(errors="replace")[:64]
                elif field.name == "file":
                    name = (field.filename or "file")[:255]
                    size = await take(field, part, most=MAX_FILE_BYTES)
            if purpose != "batch":
                raise Fault(400, "`purpose` must be batch", param="purpose")
            if size < 0:
                raise Fault(400, "the form has no `file`", param="file")
            await asyncio.to_thread(os.replace, part, self._engine.folder / id_)
        except ValueError as error:
            raise Fault(400, "the form is malformed") from error
        finally:
            part.unlink(missing_ok=True)
        made = await self._run(
            lambda: self._store.add_file(id_, int(self._now()), size, name, purpose)
        )
        return as_json(made)

    async def _file(self, http: web.Request) -> dict[str, Any]:
        id_ = http.match_info["id"]
        found = await self._run(lambda: self._store.file(id_))
        if found is None:
            raise Fault(404, f"no file is called {id_[:100]!r}", param="id")
        return found

    # Batches.

    async def batches(self, http: web.Request) -> web.Response:
        """List batches."""
        ids = await self._run(self._store.batches)
        page, more = _cut(http, ids)
        shown = [
            found for id_ in page if (found := await self._run(partial(self._store.batch, id_)))
        ]
        return _listed(shown, more=more)

    async def batch(self, http: web.Request) -> web.Response:
        """Show a batch."""
        return as_json(await self._batch(http))

    async def create(self, http: web.Request) -> web.Response:
        """Take in a batch."""
        asked = await object_of(http)
        file, endpoint = asked.get("input_file_id"), asked.get("endpoint")
        window, metadata = asked.get("completion_window"), asked.get("metadata")
        seconds = _seconds(window)
        if endpoint not in ENDPOINTS:
            raise Fault(400, f"`endpoint` must be one of {', '.join(ENDPOINTS)}", param="endpoint")
        if not isinstance(file, str) or await self._run(lambda: self._store.file(file)) is None:
            raise Fault(400, "`input_file_id` names no file that is here", param="input_file_id")
        if metadata is not None and not _is_metadata(metadata):
            raise Fault(400, f"`metadata` has up to {MAX_METADATA} short texts", param="metadata")
        id_, now = new_id("batch_"), int(self._now())
        said = {
            "input_file_id": file,
            "endpoint": endpoint,
            "completion_window": window,
            "metadata": metadata,
            "errors": None,
            "output_file_id": None,
            "error_file_id": None,
        }
        await self._run(lambda: self._store.add_batch(id_, now, now + seconds, said))
        self._engine.wake()
        return as_json(await self._run(lambda: self._store.batch(id_)))

    async def cancel(self, http: web.Request) -> web.Response:
        """End a batch before its time; what has a result keeps it."""
        found = await self._batch(http)
        if found["status"] not in ("validating", "in_progress", "cancelling"):
            raise Fault(409, f"the batch is {found['status']} already")
        id_, now = found["id"], int(self._now())
        await self._run(lambda: self._store.stand(id_, "cancelling", now))
        self._engine.wake()
        return as_json(await self._run(lambda: self._store.batch(id_)))

    async def _batch(self, http: web.Request) -> dict[str, Any]:
        id_ = http.match_info["id"]
        found = await self._run(lambda: self._store.batch(id_))
        if found is None:
            raise Fault(404, f"no batch is called {id_[:100]!r}", param="id")
        return found


def _seconds(window: object) -> int:
    said = _WINDOW.fullmatch(window) if isinstance(window, str) else None
    if said is None:
        raise Fault(400, "`completion_window` is a time such as 24h", param="completion_window")
    return int(said[1]) * _HOURS[said[2]]


def _is_metadata(given: object) -> bool:
    return (
        isinstance(given, dict)
        and len(given) <= MAX_METADATA
        and all(
            len(name) <= 64 and isinstance(v, str) and len(v) <= 512 for name, v in given.items()
        )
    )


def _cut(http: web.Request, ids: list[str]) -> tuple[list[str], bool]:
    """Return the page of a list that is asked for, and whether there is more."""
    limit, after = http.query.get("limit", "20"), http.query.get("after")
    if not limit.isdigit() or not 1 <= int(limit) <= 10_000:
        raise Fault(400, "`limit` is a number from 1", param="limit")
    if after is not None and after not in ids:
        raise Fault(400, "`after` names nothing that is here", param="after")
    begin = ids.index(after) + 1 if after else 0
    end = begin + min(int(limit), MAX_PAGE)
    return ids[begin:end], end < len(ids)


def _page(http: web.Request, found: list[dict[str, Any]]) -> web.Response:
    page, more = _cut(http, [one["id"] for one in found])
    return _listed([one for one in found if one["id"] in set(page)], more=more)


def _listed(data: Iterable[dict[str, Any]], *, more: bool) -> web.Response:
    shown = list(data)
    first, last = (shown[0]["id"], shown[-1]["id"]) if shown else (None, None)
    return as_json(
        {"object": "list", "data": shown, "first_id": first, "last_id": last, "has_more": more}
    )
