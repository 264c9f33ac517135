"""OpenAI's own client with files, batches, fine-tuning jobs and vector stores, at their node and one hop away."""

import openai
import pytest

from registry.records import ModelType, service_type_name
from tests.node.faces.assembly import openai_at
from tests.workers import openai_services
from tests.workers.raw import raw, take

TYPES = {"batch": ModelType.BATCH, "fine-tuning": ModelType.FINE_TUNING, "vectors": ModelType.VECTORS}  # fmt: skip
LINES = b'{"custom_id":"1","method":"POST","url":"/v1/chat/completions","body":{"model":"tiny"}}\n'


@pytest.fixture
async def servers():
    """Yield a server of each type, so that each file has to go to the right one."""
    async with (
        openai_services.running() as one,
        openai_services.running() as two,
        openai_services.running() as three,
    ):
        yield dict(zip(TYPES, (one, two, three), strict=True))


@pytest.fixture(params=["serving", "asked"])
async def client(request, mesh, servers):
    for name, kind in TYPES.items():
        await mesh.one.register(servers[name], model=name, type=int(kind))
        await mesh.knows(mesh.two, service_type_name(kind))
    async with openai_at(mesh.one if request.param == "serving" else mesh.two) as made:
        yield made


async def test_a_batch_is_made_of_a_file_cancelled_and_cleaned_up(client, servers, mesh):
    file = await client.files.create(file=("a.jsonl", LINES), purpose="batch")
    assert file.id.partition("@")[0] == "files-1"
    batch = await client.batches.create(
        input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h"
    )
    assert batch.input_file_id == file.id
    assert servers["batch"].kept["batches"]["batches-2"]["input_file_id"] == "files-1"
    assert (await client.batches.retrieve(batch.id)).status == "validating"
    assert (await client.batches.cancel(batch.id)).status == "cancelling"
    assert (await client.files.content(file.id)).content == LINES
    assert (await client.files.delete(file.id)).id == file.id
    with pytest.raises(openai.NotFoundError, match="no files is called files-1"):
        await client.files.retrieve(file.id)
    for other in ("fine-tuning", "vectors"):
        assert not servers[other].kept


async def test_a_page_continues_where_the_last_one_ended(client):
    for _ in range(5):
        await client.batches.create(
            input_file_id="f", endpoint="/v1/chat/completions", completion_window="24h"
        )
    found = [batch.id async for batch in await client.batches.list(limit=2)]
    assert len({*found}) == 5
    assert all("@12D3KooW" in id_ for id_ in found)


async def test_fine_tuning(client, servers):
    file = await client.files.create(file=("a.jsonl", b"{}\n"), purpose="fine-tune")
    job = await client.fine_tuning.jobs.create(model="tiny", training_file=file.id)
    assert (job.training_file, servers["fine-tuning"].received[-1].body) == (
        file.id,
        b'{"model":"tiny","training_file":"files-1"}',
    )
    events = await client.fine_tuning.jobs.list_events(job.id)
    assert [event.message for event in events.data] == ["begun"]
    assert (await client.fine_tuning.jobs.cancel(job.id)).status == "cancelled"


async def test_a_vector_store_is_filled_searched_and_deleted(client, servers):
    file = await client.files.create(file=("a.txt", b"It grows."), purpose="assistants")
    store = await client.vector_stores.create(name="notes")
    attached = await client.vector_stores.files.create(store.id, file_id=file.id)
    assert (attached.id, attached.vector_store_id) == (file.id, store.id)
    found = await client.vector_stores.search(store.id, query="What grows?")
    assert [hit.file_id for hit in found.data] == [file.id]
    assert (await client.vector_stores.delete(store.id)).deleted
    assert not servers["batch"].kept


async def test_a_file_of_another_service_is_refused(client):
    file = await client.files.create(file=("a.jsonl", LINES), purpose="batch")
    store = await client.vector_stores.create(name="notes")
    with pytest.raises(openai.BadRequestError, match="two different services"):
        await client.vector_stores.files.create(store.id, file_id=file.id)


@pytest.mark.parametrize("place", ["serving", "asked"])
@pytest.mark.parametrize("said", [b"text/html", b"application/json;a=,text/html"])
async def test_a_page_of_a_service_runs_no_script_in_the_origin_of_the_node(mesh, place, said):
    async def serve(reader, writer):
        await take(reader)
        head = b"HTTP/1.1 200 OK\r\nContent-Type: %b\r\nContent-Length: 9\r\n\r\n" % said
        writer.write(head + b"<script/>")

    async with raw(serve) as url:
        row = {"project": "p", "model": "pages", "api": url, "type": int(ModelType.BATCH)}
        async with mesh.one.http.post("/api/v0/ai/model/register", json=row) as response:
            assert response.status == 200
        await mesh.knows(mesh.two, service_type_name(ModelType.BATCH))
        asked_node = mesh.one if place == "serving" else mesh.two
        async with asked_node.http.get("/v1/files/x/content") as response:
            assert (response.status, response.headers["content-type"]) == (200, said.decode())
            assert response.headers["content-security-policy"] == "sandbox; default-src 'none'"
