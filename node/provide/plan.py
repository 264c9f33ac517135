"""Plan of a provider: what is provided, where, and by which name it is registered; and what any provider has to have."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from aiohttp import web

from node.config.addresses import HostPort
from node.provide.database import Database
from node.provide.database.sqlite import SqliteDatabase
from node.provide.files import KEEP
from registry.records import ModelType

OPENAI, LLAMA_STACK = "openai_http", "llama_stack_http"
"""The dialects that a provider may speak."""


@dataclass(frozen=True, slots=True)
class ProviderPlan:
    """What is provided. `keep` is in bytes, `model` is asked where a request names none, `database` is that of a site."""

    service: str
    folder: Path
    place: HostPort
    project: str
    name: str
    concurrency: int
    keep: int = KEEP
    model: str = ""
    database: str = ""

    def open_database(self, name: str) -> Database:
        """Open a file of the folder, or a schema of the site's PostgreSQL; raise `DatabaseError` or `ModuleNotFoundError`."""
        if not self.database:
            return SqliteDatabase(self.folder / f"{name}.db")
        from node.provide.database.postgres import PostgresDatabase  # noqa: PLC0415 (an extra)

        return PostgresDatabase(self.database, f"modelvine_{name}")


class Provider(Protocol):
    """One service, made of inference: it is made of its plan and the URL of its node."""

    types: Mapping[ModelType, str]
    """What it is registered as, and the dialect that it speaks as that."""

    cid: str
    """What all who share a database are registered with, so that nodes know them for one service; "" without others."""

    def routes(self) -> list[web.RouteDef]:
        """Return what may be asked."""

    async def run(self) -> None:
        """Work until cancelled."""

    def close(self) -> None:
        """Close what is kept."""
