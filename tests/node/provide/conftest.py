"""A provider of batches without a node: its engine, its address, and OpenAI's client there."""

import openai
import pytest

from node.provide.engine import Engine
from node.provide.face import application
from node.provide.store import BatchStore
from tests.workers.serving import served

KEY = "the-key"
KEEP = 1_000
"""Bytes of all files."""


@pytest.fixture
def engine(tmp_path):
    (tmp_path / "files").mkdir()
    store = BatchStore(tmp_path / "b.db")
    made = Engine(tmp_path / "files", store, node="", concurrency=1, now=lambda: 1e9, keep=KEEP)
    yield made
    made.close()


@pytest.fixture
async def url(engine):
    async with served(application(engine, KEY, lambda: 1e9)) as found:
        yield found


@pytest.fixture
async def client(url):
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0) as made:
        yield made
