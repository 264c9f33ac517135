"""Provider of vector stores, with its parts wired."""

from collections.abc import Mapping
from types import MappingProxyType

from aiohttp import web

from node.provide.database import cid_of, migrate
from node.provide.file_face import FileFace
from node.provide.files import PIECES, SCHEMA, Files, FileTable
from node.provide.plan import LLAMA_STACK, OPENAI, ProviderPlan
from node.provide.vectors.columns import ColumnFace
from node.provide.vectors.engine import VectorEngine
from node.provide.vectors.face import VectorFace
from node.provide.vectors.store import VectorDatabase, VectorStore
from registry.records import ModelType

PURPOSES = frozenset({"assistants", "user_data"})


class VectorsProvider:
    """Files and vector stores of one folder, or of a database that providers share. Each store is also a memory bank."""

    types: Mapping[ModelType, str] = MappingProxyType(
        {ModelType.VECTORS: OPENAI, ModelType.MEMORY: LLAMA_STACK, ModelType.STORE: OPENAI}
    )

    def __init__(self, plan: ProviderPlan, node: str) -> None:
        self._database = plan.open_database("files")
        self.cid = cid_of(self._database)
        migrate(self._database, (SCHEMA, PIECES))
        self._files = Files(plan.folder / "files", FileTable(self._database), keep=plan.keep)
        self._store = VectorStore(_opened(plan, "vectors"))
        self._columns = VectorStore(_opened(plan, "columns"))
        self._engine = VectorEngine(self._files, self._store, node=node, wall=self._database.now)
        self._model = plan.model

    def routes(self) -> list[web.RouteDef]:
        """Return the HTTP routes."""
        now = self._database.now
        files = FileFace(self._files, PURPOSES, now)
        columns = ColumnFace(self._files, self._columns, now)
        vectors = VectorFace(self._engine, self._model, now)
        return files.routes() + vectors.routes() + columns.routes()

    async def run(self) -> None:
        """Index files until cancelled."""
        await self._engine.run()

    def close(self) -> None:
        """Close the files and databases."""
        self._files.close()
        self._store.close()
        self._columns.close()
        self._database.close()


def _opened(plan: ProviderPlan, name: str) -> VectorDatabase:
    """Open a database of vectors in the folder, or in the site's PostgreSQL. Each kind needs its own extra."""
    if plan.database:
        from node.provide.database.postgres import PgVectors  # noqa: PLC0415

        return PgVectors(plan.database, f"modelvine_{name}")
    from node.provide.vectors.sqlite_vec import SqliteVectors  # noqa: PLC0415

    return SqliteVectors(plan.folder / f"{name}.db")


provider = VectorsProvider
