"""Fixtures: a LocalAI backend, the dialect, and the folder where both see the same files."""

import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from router.dialects import Dialect, load
from tests.router.world import links
from tests.workers.localai_worker import LocalAIWorker, running


@pytest.fixture
async def worker() -> AsyncIterator[LocalAIWorker]:
    async with running() as started:
        yield started


@pytest.fixture
async def dialect() -> AsyncIterator[Dialect]:
    async with links() as own_links:
        yield load("localai_grpc")(own_links)


@pytest.fixture(autouse=True)
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folder in which temporary folders are made; none may be left."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path
