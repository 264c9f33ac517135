"""Plan of a provider: its service, its place, and the name of its registration; and the interface of all providers."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from aiohttp import web

from node.config.addresses import HostPort
from node.provide.database import Database, SqliteDatabase
from node.provide.files import KEEP
from registry.records import ModelType

OPENAI, LLAMA_STACK = "openai_http", "llama_stack_http"
"""The dialects that a provider may speak."""


@dataclass(frozen=True, slots=True)
class ProviderPlan:
    """Options of a provider. `keep` is in bytes, `model` is the default for requests, `database` is that of a site."""

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
        """Open a file in the folder, or a schema of the site's PostgreSQL; raise `DatabaseError` or `ModuleNotFoundError`."""
        if not self.database:
            return SqliteDatabase(self.folder / f"{name}.db")
        from node.provide.database.postgres import PostgresDatabase  # noqa: PLC0415 (an extra)

        return PostgresDatabase(self.database, f"modelvine_{name}")


class Provider(Protocol):
    """One service built on inference. It is constructed from its plan and the URL of its node."""

    types: Mapping[ModelType, str]
    """Types that it is registered as, each with the dialect that it speaks."""

    cid: str
    """Id with which all providers of one database register, so that nodes treat them as one service; "" if not shared."""

    def routes(self) -> list[web.RouteDef]:
        """Return its HTTP routes."""

    async def run(self) -> None:
        """Work until cancelled."""

    def close(self) -> None:
        """Close its files and databases."""
