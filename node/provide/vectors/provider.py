"""Provider of vector stores, put together."""

import time
from collections.abc import Mapping
from types import MappingProxyType

from aiohttp import web

from node.provide.database import connect
from node.provide.file_face import FileFace
from node.provide.files import SCHEMA, Files, FileTable
from node.provide.plan import LLAMA_STACK, OPENAI, Plan
from node.provide.vectors.columns import ColumnFace
from node.provide.vectors.engine import Engine
from node.provide.vectors.face import VectorFace
from node.provide.vectors.store import VectorStore
from registry.records import ModelType

PURPOSES = frozenset({"assistants", "user_data"})


class VectorsProvider:
    """Files and vector stores of one folder; each store is a memory bank too."""

    types: Mapping[ModelType, str] = MappingProxyType(
        {ModelType.VECTORS: OPENAI, ModelType.MEMORY: LLAMA_STACK, ModelType.STORE: OPENAI}
    )

    def __init__(self, plan: Plan, node: str) -> None:
        self._database = connect(plan.folder / "files.db", SCHEMA)
        self._files = Files(plan.folder / "files", FileTable(self._database), keep=plan.keep)
        self._store = VectorStore(plan.folder / "vectors.db")
        self._columns = VectorStore(plan.folder / "columns.db")
        self._engine = Engine(self._files, self._store, node=node, now=time.time)
        self._model = plan.model

    def routes(self) -> list[web.RouteDef]:
        """Return what may be asked."""
        files = FileFace(self._files, PURPOSES, time.time)
        columns = ColumnFace(self._files, self._columns, time.time)
        vectors = VectorFace(self._engine, self._model, time.time)
        return files.routes() + vectors.routes() + columns.routes()

    async def run(self) -> None:
        """Read files until cancelled."""
        await self._engine.run()

    def close(self) -> None:
        """Close what is kept."""
        self._files.close()
        self._store.close()
        self._columns.close()
        self._database.close()


provider = VectorsProvider
