"""Provider of batches, with its parts wired: its files and database, its routes, and its types."""

from collections.abc import Mapping
from types import MappingProxyType

from aiohttp import web

from node.provide.asker import Asker
from node.provide.batch.engine import BatchEngine
from node.provide.batch.face import BatchFace
from node.provide.batch.stack_face import StackFace
from node.provide.batch.store import BatchStore
from node.provide.database import cid_of
from node.provide.file_face import FileFace
from node.provide.files import Files
from node.provide.plan import LLAMA_STACK, OPENAI, ProviderPlan
from registry.records import ModelType


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
