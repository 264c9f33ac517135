"""Vector stores of `modelvine provide vectors`: OpenAI's client and Llama Stack's API, at their node and one hop away."""

import string

import openai
import pytest
from aiohttp import web

from node.provide.database.postgres import PostgresDatabase
from node.provide.vectors import VectorsProvider, columns
from node.provide.vectors import engine as engines
from node.provide.vectors import face as faces
from registry.records import ModelType
from tests.node.faces.assembly import openai_at, told
from tests.node.faces.test_services import as_specified
from tests.node.faces.test_services_provided import providing
from tests.swarm.waiting import until
from tests.workers.serving import served

PLANTS = b"The vine grows grapes on a trellis.\n" * 3
SHIPS = b"A ship sails the sea with rope and sail.\n" * 3


class Embeds:
    """A worker whose embeddings count letters."""

    def __init__(self):
        self.url, self.status, self.asked = "", 200, 0
        self.meanwhile = None

    async def embeddings(self, http):
        self.asked += 1
        if self.meanwhile:
            await self.meanwhile()
        if self.status != 200:
            return web.json_response({"error": {"message": "no"}}, status=self.status)
        texts = (await http.json())["input"]
        rows = [
            {
                "index": n,
                "embedding": [text.lower().count(letter) for letter in string.ascii_lowercase],
            }
            for n, text in enumerate(texts)
        ]
        return web.json_response({"object": "list", "data": rows, "model": "letters"})


@pytest.fixture
async def letters(mesh, monkeypatch):
    monkeypatch.setattr(engines, "PAUSE", 0.05)
    server, app = Embeds(), web.Application()
    app.add_routes([web.post("/v1/embeddings", server.embeddings)])
    async with served(app) as server.url:
        await mesh.two.register(server, model="letters", type=int(ModelType.EMBEDDING))
        await mesh.knows(mesh.two, "letters")
        yield server


def emptied(postgres):
    """Return a database without the data of earlier tests."""
    opened = PostgresDatabase(postgres.url, "public")
    for name in ("files", "vectors", "columns"):
        opened.change(f"DROP SCHEMA IF EXISTS modelvine_{name} CASCADE")
    opened.close()
    return postgres.url


@pytest.fixture(params=["serving", "asked", "asked, PostgreSQL"])
async def node(request, mesh, letters, tmp_path):
    where, _, shared = request.param.partition(", ")
    database = emptied(request.getfixturevalue("postgres")) if shared else ""
    async with providing(VectorsProvider, mesh, tmp_path / "vectors", database=database):
        yield mesh.one if where == "serving" else mesh.two


@pytest.fixture
async def client(node):
    async with openai_at(node) as made:
        yield made


async def upload(client, *contents):
    return [
        (await client.files.create(file=(f"{n}.txt", c), purpose="assistants")).id
        for n, c in enumerate(contents)
    ]


async def read(client, store, **counts):
    async def done():
        files = (await client.vector_stores.retrieve(store)).file_counts
        return files.in_progress == 0

    await until(done, within=10, otherwise="the files are not read")
    files = (await client.vector_stores.retrieve(store)).file_counts
    assert {name: getattr(files, name) for name in counts} == counts


async def test_openais_client_finds_texts_by_their_meaning(client):
    plants, ships = await upload(client, PLANTS, SHIPS)
    store = await client.vector_stores.create(name="notes", file_ids=[plants])
    await client.vector_stores.files.create(store.id, file_id=ships, attributes={"of": "sea"})
    await read(client, store.id, completed=2)
    found = (await client.vector_stores.search(store.id, query="sail the sea")).data
    assert [(hit.file_id.split("@")[0], hit.filename) for hit in found] == [
        (ships.split("@")[0], "1.txt"), (plants.split("@")[0], "0.txt"),
    ]  # fmt: skip
    assert "ship sails" in found[0].content[0].text
    assert found[0].score > found[1].score
    by = {"type": "ne", "key": "of", "value": "sea"}
    found = (await client.vector_stores.search(store.id, query="sea", filters=by)).data
    assert [hit.filename for hit in found] == ["0.txt"]
    page = await client.vector_stores.files.content(ships, vector_store_id=store.id)
    assert "ship sails" in page.data[0].text


async def test_stores_and_their_files_are_listed_changed_and_deleted(client):
    (plants,) = await upload(client, PLANTS)
    store_ids = [
        (await client.vector_stores.create(name=f"{n}", file_ids=[plants])).id for n in range(3)
    ]
    listed = [one.id async for one in await client.vector_stores.list(limit=2)]
    assert listed == list(reversed(store_ids))
    changed = await client.vector_stores.update(store_ids[0], name="new", metadata={"a": "b"})
    assert (changed.name, changed.metadata) == ("new", {"a": "b"})
    assert [one.id for one in (await client.vector_stores.files.list(store_ids[0])).data] == [
        plants
    ]
    assert (await client.vector_stores.files.delete(plants, vector_store_id=store_ids[0])).deleted
    with pytest.raises(openai.NotFoundError):
        await client.vector_stores.files.retrieve(plants, vector_store_id=store_ids[0])
    assert (await client.vector_stores.delete(store_ids[0])).deleted
    with pytest.raises(openai.NotFoundError):
        await client.vector_stores.retrieve(store_ids[0])


async def test_a_batch_of_files_completes_though_one_of_them_is_no_text(client):
    files = await upload(client, PLANTS, b"\xff\xfe\x00")
    store = (await client.vector_stores.create()).id
    batch = await client.vector_stores.file_batches.create_and_poll(
        store, file_ids=files, poll_interval_ms=50
    )
    assert (batch.status, batch.file_counts.completed, batch.file_counts.failed) == (
        "completed",
        1,
        1,
    )
    failed = (
        await client.vector_stores.file_batches.list_files(
            batch.id, vector_store_id=store, filter="failed"
        )
    ).data
    assert [file.last_error.code for file in failed] == ["unsupported_file"]


async def test_a_busy_embedding_model_is_asked_again(client, letters):
    letters.status = 503
    (plants,) = await upload(client, PLANTS)
    store = (await client.vector_stores.create(file_ids=[plants])).id
    await until(lambda: letters.asked > 0, within=10, otherwise="nobody asked")
    with pytest.raises(openai.APIStatusError):
        await client.vector_stores.search(store, query="vine")
    letters.status = 200
    await read(client, store, completed=1)


async def test_a_store_that_is_deleted_while_it_is_searched_is_not_found(client, letters):
    store = (await client.vector_stores.create()).id
    letters.meanwhile = lambda: client.vector_stores.delete(store)
    with pytest.raises(openai.NotFoundError):
        await client.vector_stores.search(store, query="vine")


async def test_a_file_fails_with_the_reason_of_its_refused_embedding(client, letters):
    letters.status = 400
    (plants,) = await upload(client, PLANTS)
    store = (await client.vector_stores.create(file_ids=[plants])).id
    await read(client, store, failed=1)
    (failed,) = (await client.vector_stores.files.list(store)).data
    assert failed.last_error.message == "no embedding: no"


async def test_a_store_is_a_memory_bank_of_llama_stack(node, client):
    files = await upload(client, PLANTS, SHIPS)
    banks = [(await client.vector_stores.create(file_ids=[file])).id for file in files]
    for bank in banks:
        await read(client, bank, completed=1)
    query = [("bankIds", bank) for bank in banks]
    status, payload = await told(
        node.http.get("/agents/execute", params=[*query, ("input", "sail the sea")])
    )
    assert status == 200
    as_specified("/agents/execute", "GET", payload)
    assert ["ship" in row["content"] for row in payload] == [True, False]
    status, payload = await told(node.http.get("/agents/execute", params=query))
    assert (status, len(payload)) == (200, 2)
    status, _ = await told(node.http.get("/agents/execute"))
    assert status == 400


async def test_llama_stacks_store_is_the_same_store(node, client):
    status, store = await told(
        node.http.post("/vector_store/create", json={"name": "n", "description": "d"})
    )
    assert status == 200, store
    as_specified("/vector_store/create", "POST", store)
    assert (await client.vector_stores.retrieve(store["id"])).name == "n"


@pytest.mark.parametrize("prefix", ["", "/v1"])
async def test_columns_of_localai_are_set_found_and_deleted(node, prefix):
    keys, values = [[0.5, 1], [3, 4]], ["a", "b"]

    async def store(operation, **fields):
        path = f"{prefix}/stores/{operation}"
        return await told(node.http.post(path, json={"store": "own", **fields}))

    assert await store("set", keys=keys, values=["x", "b"]) == (200, {})
    assert await store("set", keys=keys[:1], values=values[:1]) == (200, {})
    assert await store("get", keys=[*keys, [9, 9]]) == (200, {"keys": keys, "values": values})
    status, found = await store("find", key=[3, 3], topk=1)
    assert (status, found["keys"], found["values"]) == (200, keys[1:], values[1:])
    assert found["similarities"] == [pytest.approx(0.98995, abs=1e-4)]
    assert await store("delete", keys=keys[:1]) == (200, {})
    assert await store("get", keys=keys) == (200, {"keys": keys[1:], "values": values[1:]})
    for operation, wrong, param in (
        ("set", {"keys": keys, "values": ["a"]}, "values"),
        ("set", {"keys": [[1]], "values": ["a"]}, "keys"),
        ("set", {"keys": [["x", 1]], "values": ["a"]}, "keys"),
        ("set", {"keys": [[1e300, 1]], "values": ["a"]}, "keys"),
        ("find", {"key": [1, 2, 3]}, "key"),
        ("find", {"key": [1, 2], "topk": 0}, "topk"),
        ("find", {"key": [1, 2], "topk": columns.MAX_FOUND + 1}, "topk"),
        ("get", {"keys": [[1, 2]] * (columns.MAX_KEYS + 1)}, "keys"),
    ):
        status, payload = await store(operation, **wrong)
        assert (status, payload["error"]["param"]) == (400, param)


async def test_texts_are_inserted_and_deleted_by_jobs(node, client):
    _, store = await told(node.http.post("/vector_store/create", json={"name": "n"}))
    submit, target = "/vector_store/insert/jobs/submit", {"vector_store_id": store["id"]}
    status, job = await told(node.http.post(submit, json={**target, "content": PLANTS.decode()}))
    assert status == 200, job
    as_specified(submit, "POST", job)

    async def inserted():
        params = {"id": job["id"]}
        _, payload = await told(node.http.get("/vector_store/insert/jobs/status", params=params))
        return payload["content"] == "completed"

    await until(inserted, within=10, otherwise="the text is not inserted")
    (found,) = (await client.vector_stores.search(store["id"], query="vine")).data
    assert "grapes" in found.content[0].text
    _, payload = await told(
        node.http.post("/vector_store/insert/jobs/cancel", json={"id": job["id"]})
    )
    assert payload == {"id": job["id"], "content": "completed"}
    fields = {**target, "file_id": found.file_id}
    _, job = await told(node.http.post("/vector_store/delete/jobs/submit", json=fields))
    for ask in (
        node.http.get("/vector_store/delete/jobs/status", params={"id": job["id"]}),
        node.http.post("/vector_store/delete/jobs/cancel", json={"id": job["id"]}),
    ):
        assert (await told(ask))[1] == {"id": job["id"], "content": "completed"}
    assert (await client.vector_stores.search(store["id"], query="vine")).data == []
    status, _ = await told(node.http.get("/vector_store/insert/jobs/status", params={"id": "x"}))
    assert status == 400


@pytest.mark.parametrize(
    ("asked", "param"),
    [
        ({"name": 1}, "name"),
        ({"metadata": 1}, "metadata"),
        ({"file_ids": ["none"]}, "file_id"),
        ({"embedding_model": 1}, "embedding_model"),
        (
            {"chunking_strategy": {"type": "static", "static": {"max_chunk_size_tokens": 1}}},
            "chunking_strategy",
        ),
    ],
)
async def test_an_invalid_parameter_of_a_store_is_named(node, asked, param):
    status, payload = await told(node.http.post("/v1/vector_stores", json=asked))
    assert (status, payload["error"]["param"]) == (400, param)


@pytest.mark.parametrize(
    ("asked", "param"),
    [
        ({}, "query"),
        ({"query": "a", "max_num_results": faces.MAX_RESULTS + 1}, "max_num_results"),
        ({"query": "a", "filters": {}}, "filters"),
        ({"query": "a", "ranking_options": {"score_threshold": "x"}}, "ranking_options"),
    ],
)
async def test_an_invalid_parameter_of_a_search_is_named(node, client, asked, param):
    store = (await client.vector_stores.create()).id
    status, payload = await told(node.http.post(f"/v1/vector_stores/{store}/search", json=asked))
    assert (status, payload["error"]["param"]) == (400, param)
