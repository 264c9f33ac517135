"""A provider of batches without a node: its engine, its address, and OpenAI's client for it."""

import pytest

from node.provide.batch import BatchFace
from node.provide.batch.engine import BatchEngine
from node.provide.batch.store import BatchStore
from node.provide.database import SqliteDatabase
from node.provide.face import application
from node.provide.file_face import FileFace
from node.provide.files import Files
from tests.node.provide.databases import KINDS, Databases
from tests.openai_client import openai_client
from tests.workers.serving import served

KEY = "the-key"
KEEP = 1_000
"""Bytes that all files together may have."""


@pytest.fixture(params=KINDS)
def databases(request, tmp_path):
    server = request.getfixturevalue("postgres") if request.param == "postgres" else None
    made = Databases(request.param, tmp_path, server)
    yield made
    made.close()


@pytest.fixture
def engine(tmp_path):
    store = BatchStore(SqliteDatabase(tmp_path / "b.db"))
    files = Files(tmp_path / "files", store.files, keep=KEEP)
    yield BatchEngine(files, store, node="", concurrency=1, wall=lambda: 1e9)
    files.close()
    store.close()


@pytest.fixture
def files(engine):
    return engine.files


@pytest.fixture
async def url(engine):
    files = FileFace(engine.files, {"batch"}, lambda: 1e9)
    routes = files.routes() + BatchFace(engine, lambda: 1e9).routes()
    async with served(application(routes, KEY)) as found:
        yield found


@pytest.fixture
async def client(url):
    async with openai_client(f"{url}/v1", api_key=KEY) as made:
        yield made
