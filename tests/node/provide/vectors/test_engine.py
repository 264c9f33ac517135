"""Laws of the engine of vectors: a file whose embeddings are unavailable does not hold up the others."""

import asyncio
import time
from functools import partial

import pytest
from aiohttp import web

from node.provide.database import SqliteDatabase, migrate
from node.provide.files import PIECES, SCHEMA, Files, FileTable
from node.provide.vectors import engine as engines
from node.provide.vectors.engine import CHARACTERS, VectorEngine, chunks
from node.provide.vectors.sqlite_vec import SqliteVectors
from node.provide.vectors.store import VectorStore
from tests.swarm.waiting import until
from tests.workers.serving import served

CHUNK = (800, 400)


class Embeds:
    """Stand-in for the node that answers by the text, or by the model."""

    def __init__(self):
        self.asked = []
        self.says = {}

    async def embeddings(self, http):
        fields = await http.json()
        (text,), model = fields["input"], fields["model"]
        self.asked.append((model, text))
        status = self.says.get(model) or self.says.get(text, 200)
        return web.json_response({"data": [{"embedding": [1, 0]}]}, status=status)


@pytest.fixture
async def node():
    made, app = Embeds(), web.Application()
    app.router.add_post("/v1/embeddings", made.embeddings)
    async with served(app) as made.url:
        yield made


@pytest.fixture
async def engine(tmp_path, node, monkeypatch):
    monkeypatch.setattr(engines, "PAUSE", 0.01)
    monkeypatch.setattr(engines, "LONGEST_PAUSE", 0.02)
    database = SqliteDatabase(tmp_path / "files.db")
    migrate(database, (SCHEMA, PIECES))
    files = Files(tmp_path / "files", FileTable(database))
    store = VectorStore(SqliteVectors(tmp_path / "vectors.db"))
    made = VectorEngine(files, store, node=node.url, wall=time.time)
    for model in ("away", "there"):
        store.add(model, 1, model, model, {})
    async with asyncio.TaskGroup() as group:
        work = group.create_task(made.run())
        yield made
        work.cancel()
    files.close()
    store.close()
    database.close()


async def join(engine, store, *texts):
    for text in texts:
        engine.files.path(text).write_text(text)
    files = [(text, text) for text in texts]
    await engine.files.run_in_thread(lambda: engine.store.join(store, files, 1, {}, CHUNK))
    engine.wake()


async def all_are(engine, state, **files):
    """Wait until so many files of each store have a state."""

    async def reached():
        rows = [await engine.files.run_in_thread(partial(engine.store.find, id_)) for id_ in files]
        return [row["file_counts"][state] for row in rows] == [*files.values()]

    await until(reached, within=10, otherwise=f"{files} are not {state}")


@pytest.mark.parametrize("status", [404, 500, 502, 504])
async def test_a_file_fails_after_some_failures_and_the_others_go_on(engine, node, status):
    node.says = {"away": status, "broken": status}
    await join(engine, "away", "a")
    await join(engine, "there", "broken", "b")
    await all_are(engine, "completed", away=0, there=1)
    await all_are(engine, "failed", away=1, there=1)
    assert node.asked.count(("away", "a")) == engines.MOST_ATTEMPTS
    assert node.asked.count(("there", "broken")) == engines.MOST_ATTEMPTS
    assert node.asked.count(("there", "b")) == 1


@pytest.mark.parametrize("status", [429, 503])
async def test_a_busy_model_is_asked_until_it_answers_and_files_of_others_go_on(
    engine, node, status
):
    node.says = {"away": status}
    await join(engine, "away", "a")
    await join(engine, "there", "b")
    await all_are(engine, "completed", there=1)
    await until(
        lambda: len(node.asked) > engines.MOST_ATTEMPTS + 2, within=10, otherwise="asked too rarely"
    )
    node.says = {}
    await all_are(engine, "completed", away=1)


def test_a_short_text_is_one_chunk_and_a_blank_text_has_none():
    assert list(chunks("a vine", 100, 50)) == ["a vine"]
    assert list(chunks(" \n ", 100, 50)) == []


def test_chunks_overlap_and_lose_no_word():
    words = [f"word{n}" for n in range(2_000)]
    parts = list(chunks(" ".join(words), 100, 50))
    assert all(len(chunk) <= 100 * CHARACTERS for chunk in parts)
    assert {word for chunk in parts for word in chunk.split()} >= set(words)
    assert len(parts) > len(" ".join(words)) / (100 * CHARACTERS)


def test_a_text_without_spaces_is_cut_anywhere():
    assert "".join(chunks("x" * 1_000, 100, 0)) == "x" * 1_000
