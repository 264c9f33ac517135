"""HTTP face of a provider's files: OpenAI's `/v1/files` and `/v1/uploads`."""

import asyncio
import os
from collections.abc import Collection
from typing import Any

from aiohttp import BodyPartReader, web

from node.provide.face import BROKEN_FORM, Fault, as_json, name_of, page_of, require_purpose, take
from node.provide.files import Files, new_id
from node.provide.uploads import MAX_FILE_BYTES, Uploads
from registry.clock import Clock

_CHUNK = 256 * 1024


class FileFace:
    """Handlers for files. `purposes` are those that may be uploaded."""

    def __init__(self, files: Files, purposes: Collection[str], wall: Clock) -> None:
        self._files = files
        self._table = files.table
        self._run = files.run_in_thread
        self._purposes = purposes
        self._wall = wall

    def routes(self) -> list[web.RouteDef]:
        """Return the HTTP routes."""
        uploads = Uploads(self._files, self._purposes, self._wall)
        return [
            web.get("/v1/files", self.all),
            web.post("/v1/files", self.upload),
            web.get("/v1/files/{id}", self.file),
            web.delete("/v1/files/{id}", self.delete),
            web.get("/v1/files/{id}/content", self.content),
            web.post("/v1/uploads", uploads.create),
            web.post("/v1/uploads/{id}/parts", uploads.add_part),
            web.post("/v1/uploads/{id}/complete", uploads.complete),
            web.post("/v1/uploads/{id}/cancel", uploads.cancel),
        ]

    async def all(self, http: web.Request) -> web.Response:
        """List files."""
        found = await self._run(self._table.all)
        purpose = http.query.get("purpose")
        return page_of(http, [f for f in found if purpose in (None, f["purpose"])])

    async def file(self, http: web.Request) -> web.Response:
        """Show a file."""
        return as_json(await self._file(http))

    async def content(self, http: web.Request) -> web.StreamResponse:
        """Send the content of a file."""
        found = await self._file(http)
        headers = {"content-type": "application/octet-stream"}
        path = await self._run(lambda: self._files.fetch(found["id"]))
        return web.FileResponse(path, headers=headers, chunk_size=_CHUNK)

    async def delete(self, http: web.Request) -> web.Response:
        """Delete a file."""
        found = await self._file(http)
        path = self._files.path(found["id"])

        def remove() -> None:
            self._table.remove(found["id"])
            path.unlink(missing_ok=True)

        await self._run(remove)
        return as_json({"id": found["id"], "object": "file", "deleted": True})

    async def upload(self, http: web.Request) -> web.Response:
        """Store a file of at most `MAX_FILE_BYTES`; leave nothing behind of one that is too long or malformed."""
        if not http.content_type.startswith("multipart/"):
            raise Fault(400, "send a form with `purpose` and `file`")
        await self._files.require_room(http.content_length or 0)
        id_ = new_id("file-")
        part = self._files.path(f"{id_}.part")
        name, purpose, size = "", "", -1
        try:
            async for field in await http.multipart():
                if not isinstance(field, BodyPartReader):
                    raise Fault(400, "the form is nested")
                if field.name == "purpose":
                    purpose = (await field.read()).decode(errors="replace")[:64]
                elif field.name == "file":
                    name = name_of(field.filename)
                    size = await take(field, part, most=MAX_FILE_BYTES)
            require_purpose(purpose, self._purposes)
            if size < 0:
                raise Fault(400, "the form has no `file`", param="file")
            await asyncio.to_thread(os.replace, part, self._files.path(id_))
        except BROKEN_FORM as error:
            raise Fault(400, "the form is malformed") from error
        finally:
            part.unlink(missing_ok=True)
        made = await self._run(lambda: self._files.add(id_, int(self._wall()), name, purpose))
        return as_json(made)

    async def _file(self, http: web.Request) -> dict[str, Any]:
        id_ = http.match_info["id"]
        found = await self._run(lambda: self._table.find(id_))
        if found is None:
            raise Fault(404, f"no file is called {id_[:100]!r}", param="id")
        return found
