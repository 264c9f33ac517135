"""HTTP face of a provider's files: OpenAI's `/v1/files`, and `/v1/uploads` for files that are too long for one request."""

import asyncio
import os
import shutil
from collections.abc import Collection
from pathlib import Path
from typing import Any

import orjson
from aiohttp import BodyPartReader, web

from node.provide.face import (
    BROKEN_FORM,
    Fault,
    as_json,
    name_of,
    object_of,
    page_of,
    require_purpose,
    take,
)
from node.provide.files import Files, new_id
from registry.clock import Clock

MAX_FILE_BYTES = 200 * 1000 * 1000
"""Bytes of the longest file: OpenAI's limit of a batch."""

MAX_OPEN = 8
"""Uploads that may be open at a time; a new one evicts the oldest."""

MAX_PARTS = 1_000
LASTS = 3_600
"""Seconds after which an incomplete upload may be removed."""

_ABOUT = "about.json"


class Uploads:
    """Handlers for uploads. Each upload is a folder with its description and its parts."""

    def __init__(self, files: Files, purposes: Collection[str], wall: Clock) -> None:
        self._files = files
        self._folder = files.folder.parent / "uploads"
        self._purposes = purposes
        self._wall = wall

    async def create(self, http: web.Request) -> web.Response:
        """Start an upload."""
        fields = await object_of(http)
        size = fields.get("bytes")
        require_purpose(fields.get("purpose"), self._purposes)
        if not isinstance(size, int) or not 0 < size <= MAX_FILE_BYTES:
            raise Fault(400, f"`bytes` is a number up to {MAX_FILE_BYTES:,}", param="bytes")
        await self._files.require_room(size)
        id_, now = new_id("upload_"), int(self._wall())
        about = {
            "id": id_,
            "object": "upload",
            "bytes": size,
            "created_at": now,
            "expires_at": now + LASTS,
            "filename": name_of(fields.get("filename")),
            "purpose": fields["purpose"],
            "status": "pending",
        }
        await asyncio.to_thread(self._begin, id_, about)
        return as_json(about)

    async def add_part(self, http: web.Request) -> web.Response:
        """Store one part."""
        folder, about = await self._found(http)
        sizes = [path.stat().st_size for path in folder.iterdir()]
        # Each part may be sent twice, if its answer was lost.
        if len(sizes) > MAX_PARTS or sum(sizes) > 2 * about["bytes"] + MAX_FILE_BYTES // 100:
            raise Fault(413, "the upload has too many parts, or too long ones")
        id_ = new_id("part_")
        part = folder / f"{id_}.part"
        size = -1
        try:
            async for field in await http.multipart():
                if isinstance(field, BodyPartReader) and field.name == "data":
                    size = await take(field, part, limit=about["bytes"])
            if size < 0:
                raise Fault(400, "the form has no `data`", param="data")
            await asyncio.to_thread(part.replace, folder / id_)
        except BROKEN_FORM as error:
            raise Fault(400, "the form is malformed") from error
        finally:
            part.unlink(missing_ok=True)
        now = int(self._wall())
        row = {"id": id_, "object": "upload.part", "created_at": now, "upload_id": about["id"]}
        return as_json(row)

    async def complete(self, http: web.Request) -> web.Response:
        """Join the parts, in the requested order, into a file."""
        folder, about = await self._found(http)
        ids = (await object_of(http)).get("part_ids")
        parts = [folder / str(id_) for id_ in ids] if isinstance(ids, list) else []
        uploaded = set(folder.iterdir()) - {folder / _ABOUT}
        if not parts or not uploaded.issuperset(parts):
            raise Fault(400, "`part_ids` names no parts of this upload", param="part_ids")
        if sum(part.stat().st_size for part in parts) != about["bytes"]:
            raise Fault(400, f"the parts do not have the announced {about['bytes']:,} bytes")
        id_, now = new_id("file-"), int(self._wall())
        await asyncio.to_thread(_join, parts, self._files.path(id_))
        file_row = (id_, now, about["filename"], about["purpose"])
        file = await self._files.run_in_thread(lambda: self._files.add(*file_row))
        await asyncio.to_thread(shutil.rmtree, folder)
        return as_json({**about, "status": "completed", "file": file})

    async def cancel(self, http: web.Request) -> web.Response:
        """Remove an upload."""
        folder, about = await self._found(http)
        await asyncio.to_thread(shutil.rmtree, folder)
        return as_json({**about, "status": "cancelled"})

    def _begin(self, id_: str, about: dict[str, Any]) -> None:
        self._folder.mkdir(exist_ok=True)
        folders = sorted(self._folder.iterdir(), key=lambda path: path.stat().st_mtime)
        old = [path for path in folders if path.stat().st_mtime < self._wall() - LASTS]
        for path in {*old, *folders[: max(0, len(folders) + 1 - MAX_OPEN)]}:
            shutil.rmtree(path)
        folder = self._folder / id_
        folder.mkdir()
        (folder / _ABOUT).write_bytes(orjson.dumps(about))

    async def _found(self, http: web.Request) -> tuple[Path, dict[str, Any]]:
        id_ = http.match_info["id"]
        folder = self._folder / id_
        # The id is a single identifier, so it cannot lead out of the folder.
        if not id_.startswith("upload_") or not id_.isidentifier() or not folder.is_dir():
            raise Fault(404, f"no upload is called {id_[:100]!r}", param="id")
        about: dict[str, Any] = orjson.loads((folder / _ABOUT).read_bytes())
        return folder, about


def _join(parts: list[Path], path: Path) -> None:
    joined = path.with_name(f"{path.name}.part")
    try:
        with joined.open("wb") as file:
            for part in parts:
                with part.open("rb") as source:
                    shutil.copyfileobj(source, file)
            file.flush()
            os.fsync(file.fileno())
        joined.replace(path)
    finally:
        joined.unlink(missing_ok=True)


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
        files = await self._run(self._table.all)
        purpose = http.query.get("purpose")
        return page_of(http, [f for f in files if purpose in (None, f["purpose"])])

    async def file(self, http: web.Request) -> web.Response:
        """Show a file."""
        return as_json(await self._file(http))

    async def content(self, http: web.Request) -> web.StreamResponse:
        """Send the content of a file."""
        file = await self._file(http)
        headers = {"content-type": "application/octet-stream"}
        path = await self._run(lambda: self._files.fetch(file["id"]))
        return web.FileResponse(path, headers=headers, chunk_size=_CHUNK)

    async def delete(self, http: web.Request) -> web.Response:
        """Delete a file."""
        file = await self._file(http)
        path = self._files.path(file["id"])

        def remove() -> None:
            self._table.remove(file["id"])
            path.unlink(missing_ok=True)

        await self._run(remove)
        return as_json({"id": file["id"], "object": "file", "deleted": True})

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
                    size = await take(field, part, limit=MAX_FILE_BYTES)
            require_purpose(purpose, self._purposes)
            if size < 0:
                raise Fault(400, "the form has no `file`", param="file")
            await asyncio.to_thread(os.replace, part, self._files.path(id_))
        except BROKEN_FORM as error:
            raise Fault(400, "the form is malformed") from error
        finally:
            part.unlink(missing_ok=True)
        file = await self._run(lambda: self._files.add(id_, int(self._wall()), name, purpose))
        return as_json(file)

    async def _file(self, http: web.Request) -> dict[str, Any]:
        id_ = http.match_info["id"]
        file = await self._run(lambda: self._table.find(id_))
        if file is None:
            raise Fault(404, f"no file is called {id_[:100]!r}", param="id")
        return file
