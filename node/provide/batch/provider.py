"""Provider of batches, put together: what it keeps, what may be asked of it, and what it is registered as."""

import time
from collections.abc import Mapping
from types import MappingProxyType

from aiohttp import web

from node.provide.batch.engine import Engine
from node.provide.batch.face import BatchFace
from node.provide.batch.store import BatchStore
from node.provide.file_face import FileFace
from node.provide.files import Files
from node.provide.plan import OPENAI, Plan
from registry.records import ModelType


class BatchProvider:
    """Files and batches of one folder."""

    types: Mapping[ModelType, str] = MappingProxyType({ModelType.BATCH: OPENAI})

    def __init__(self, plan: Plan, node: str) -> None:
        self._store = BatchStore(plan.folder / "batches.db")
        self._files = Files(plan.folder / "files", self._store.files, keep=plan.keep)
        self._engine = Engine(
            self._files, self._store, node=node, concurrency=plan.concurrency, now=time.time
        )

    def routes(self) -> list[web.RouteDef]:
        """Return what may be asked."""
        files = FileFace(self._files, {"batch"}, time.time)
        return files.routes() + BatchFace(self._engine, time.time).routes()

    async def run(self) -> None:
        """Work until cancelled."""
        await self._engine.run()

    def close(self) -> None:
        """Close what is kept."""
        self._files.close()
        self._store.close()


provider = BatchProvider
