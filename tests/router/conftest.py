"""Fixtures: a worker that speaks OpenAI's protocol, and the dialect for it. Tests of other dialects define their own."""

from collections.abc import AsyncIterator

import pytest

from router.dialects import Dialect
from router.dialects.openai_http import create
from tests.router.world import links
from tests.workers.openai_worker import OpenAIWorker, running


@pytest.fixture
async def worker() -> AsyncIterator[OpenAIWorker]:
    async with running() as started:
        yield started


@pytest.fixture
async def dialect() -> AsyncIterator[Dialect]:
    async with links() as own_links:
        yield create(own_links)
