"""Provider of batches, with its parts wired, and the HTTP face of OpenAI's `/v1/batches`."""

import re
from collections.abc import Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

from aiohttp import web

from node.provide.asker import Asker
from node.provide.batch.engine import BatchEngine
from node.provide.batch.lines import ENDPOINTS
from node.provide.batch.stack_face import StackFace
from node.provide.batch.store import BatchStore
from node.provide.database import cid_of
from node.provide.face import Fault, as_json, cut, listed, object_of
from node.provide.file_face import FileFace
from node.provide.files import Files, new_id
from node.provide.plan import LLAMA_STACK, OPENAI, ProviderPlan
from registry.clock import Clock
from registry.records import ModelType

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
        rows = [
            batch for id_ in page if (batch := await self._run(partial(self._store.batch, id_)))
        ]
        return listed(rows, more=more)

    async def batch(self, http: web.Request) -> web.Response:
        """Show a batch."""
        return as_json(await self._batch(http))

    async def create(self, http: web.Request) -> web.Response:
        """Create a batch."""
        fields = await object_of(http)
        file, endpoint = fields.get("input_file_id"), fields.get("endpoint")
        window, metadata = fields.get("completion_window"), fields.get("metadata")
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
        row = {
            "input_file_id": file,
            "endpoint": endpoint,
            "completion_window": window,
            "metadata": metadata,
            "errors": None,
            "output_file_id": None,
            "error_file_id": None,
        }
        await self._run(lambda: self._store.add_batch(id_, now, now + seconds, row))
        self._engine.wake()
        return as_json(await self._run(lambda: self._store.batch(id_)))

    async def cancel(self, http: web.Request) -> web.Response:
        """Cancel a batch; lines with a result keep it."""
        id_, now = (await self._batch(http))["id"], int(self._wall())
        begun = await self._run(lambda: self._store.cancel(id_, now))
        self._engine.wake()
        batch = await self._batch(http)
        if not begun and batch["status"] != "cancelling":
            raise Fault(409, f"the batch is {batch['status']} already")
        return as_json(batch)

    async def _batch(self, http: web.Request) -> dict[str, Any]:
        id_ = http.match_info["id"]
        batch = await self._run(lambda: self._store.batch(id_))
        if batch is None:
            raise Fault(404, f"no batch is called {id_[:100]!r}", param="id")
        return batch


def _seconds(window: object) -> int:
    match = _WINDOW.fullmatch(window) if isinstance(window, str) else None
    if match is None:
        raise Fault(
            400, "`completion_window` must be a time such as 24h", param="completion_window"
        )
    return int(match[1]) * _HOURS[match[2]]


def _is_metadata(value: object) -> bool:
    return (
        isinstance(value, dict)
        and len(value) <= MAX_METADATA
        and all(
            len(name) <= 64 and isinstance(v, str) and len(v) <= 512 for name, v in value.items()
        )
    )


class BatchProvider:
    """Files and batches of one folder, or of a database that providers share."""

    types: Mapping[ModelType, str] = MappingProxyType(
        {
            ModelType.BATCH: OPENAI,
            ModelType.REWARD: LLAMA_STACK,
            ModelType.SYNTHETIC: LLAMA_STACK,
        }
    )

    def __init__(self, plan: ProviderPlan, node: str) -> None:
        self._database = plan.open_database("batches")
        self.cid = cid_of(self._database)
        self._store = BatchStore(self._database)
        self._files = Files(plan.folder / "files", self._store.files, keep=plan.keep)
        self._inbox = plan.folder / "inbox"
        self._inbox.mkdir(exist_ok=True)
        self._asker = Asker(node)
        self._engine = BatchEngine(
            self._files,
            self._store,
            node=node,
            concurrency=plan.concurrency,
            wall=self._database.now,
        )

    def routes(self) -> list[web.RouteDef]:
        """Return the HTTP routes."""
        now = self._database.now
        files = FileFace(self._files, {"batch"}, now)
        stack = StackFace(self._engine, self._asker, self._inbox, now)
        return files.routes() + BatchFace(self._engine, now).routes() + stack.routes()

    async def run(self) -> None:
        """Work until cancelled."""
        async with self._asker:
            await self._engine.run()

    def close(self) -> None:
        """Close the files and the database."""
        self._files.close()
        self._store.close()


provider = BatchProvider
