"""One Redis server and one PostgreSQL for all tests of this folder, and a way to open every store that exists."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from registry.records import PeerId
from registry.store import Store, open_store
from tests.postgres_server import PostgresServer
from tests.redis_server import RedisServer

ALICE = PeerId("12D3KooWAlice")
BOB = PeerId("12D3KooWBob")

Opening = Callable[..., Store]


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with RedisServer(tmp_path_factory.mktemp("redis")) as running:
        yield running


@pytest.fixture
def redis(server: RedisServer) -> RedisServer:
    server.command("FLUSHALL")
    return server


@pytest.fixture(scope="session")
def database() -> Iterator[PostgresServer]:
    with PostgresServer() as running:
        yield running


@pytest.fixture
def postgres(database: PostgresServer) -> PostgresServer:
    database.rows("DROP SCHEMA IF EXISTS modelvine CASCADE")
    return database


@pytest_asyncio.fixture
async def opened(tmp_path: Path) -> AsyncIterator[Opening]:
    """Open stores by URL; all of them are closed at the end."""
    stores: list[Store] = []

    def open_one(url: str, *, node: PeerId = ALICE, timeout: float = 1.0) -> Store:
        stores.append(open_store(url, data_dir=tmp_path / "data", node=node, timeout=timeout))
        return stores[-1]

    yield open_one
    for store in stores:
        await store.close()


async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Read as a server that never answers."""
    while await reader.read(4096):
        pass
    writer.close()
