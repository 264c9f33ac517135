"""HTTP face of batches: OpenAI's `/v1/batches`."""

import re
from functools import partial
from typing import Any

from aiohttp import web

from node.provide.batch.engine import BatchEngine
from node.provide.batch.lines import ENDPOINTS
from node.provide.face import Fault, as_json, cut, listed, object_of
from node.provide.files import new_id
from registry.clock import Clock

MAX_METADATA = 16

_WINDOW = re.compile(r"([1-9][0-9]{0,2})([hd])")
_HOURS = {"h": 3600, "d": 86_400}


class BatchFace:
    """Handlers for batches."""

    def __init__(self, engine: BatchEngine, wall: Clock) -> None:
        self._engine = engine
        self._store = engine.store
        self._run = engine.files.run_in_thread
        self._wall = wall

    def routes(self) -> list[web.RouteDef]:
        """Return the HTTP routes."""
        return [
            web.get("/v1/batches", self.batches),
            web.post("/v1/batches", self.create),
            web.get("/v1/batches/{id}", self.batch),
            web.post("/v1/batches/{id}/cancel", self.cancel),
        ]

    async def batches(self, http: web.Request) -> web.Response:
        """List batches."""
        ids = await self._run(self._store.batches)
        page, more = cut(http, ids)
        shown = [
            found for id_ in page if (found := await self._run(partial(self._store.batch, id_)))
        ]
        return listed(shown, more=more)

    async def batch(self, http: web.Request) -> web.Response:
        """Show a batch."""
        return as_json(await self._batch(http))

    async def create(self, http: web.Request) -> web.Response:
        """Create a batch."""
        asked = await object_of(http)
        file, endpoint = asked.get("input_file_id"), asked.get("endpoint")
        window, metadata = asked.get("completion_window"), asked.get("metadata")
        seconds = _seconds(window)
        if endpoint not in ENDPOINTS:
            raise Fault(400, f"`endpoint` must be one of {', '.join(ENDPOINTS)}", param="endpoint")
        if (
            not isinstance(file, str)
            or await self._run(lambda: self._engine.files.table.find(file)) is None
        ):
            raise Fault(400, "`input_file_id` names no file of this service", param="input_file_id")
        if metadata is not None and not _is_metadata(metadata):
            raise Fault(
                400, f"`metadata` may have up to {MAX_METADATA} short texts", param="metadata"
            )
        id_, now = new_id("batch_"), int(self._wall())
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
        """Cancel a batch; lines with a result keep it."""
        id_, now = (await self._batch(http))["id"], int(self._wall())
        begun = await self._run(lambda: self._store.cancel(id_, now))
        self._engine.wake()
        found = await self._batch(http)
        if not begun and found["status"] != "cancelling":
            raise Fault(409, f"the batch is {found['status']} already")
        return as_json(found)

    async def _batch(self, http: web.Request) -> dict[str, Any]:
        id_ = http.match_info["id"]
        found = await self._run(lambda: self._store.batch(id_))
        if found is None:
            raise Fault(404, f"no batch is called {id_[:100]!r}", param="id")
        return found


def _seconds(window: object) -> int:
    said = _WINDOW.fullmatch(window) if isinstance(window, str) else None
    if said is None:
        raise Fault(
            400, "`completion_window` must be a time such as 24h", param="completion_window"
        )
    return int(said[1]) * _HOURS[said[2]]


def _is_metadata(given: object) -> bool:
    return (
        isinstance(given, dict)
        and len(given) <= MAX_METADATA
        and all(
            len(name) <= 64 and isinstance(v, str) and len(v) <= 512 for name, v in given.items()
        )
    )
