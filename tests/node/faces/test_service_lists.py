"""Lists over several services: every entry once, page after page, without those of unavailable services."""

import asyncio

import openai
import pytest

from node.faces import service_lists
from registry.records import Service
from router.services.ids import home_of
from tests.node.faces.assembly import openai_at, told
from tests.workers import openai_services
from tests.workers.raw import raw, take

BATCH, FINE_TUNING = 9, 10


@pytest.fixture
async def servers():
    async with openai_services.running() as one, openai_services.running() as two:
        yield one, two


@pytest.fixture
async def client(mesh, servers):
    """Yield a client at the second node; each node has a server, the second one of two types."""
    one, two = servers
    await mesh.one.register(one, model="one", type=BATCH)
    await mesh.two.register(two, model="two", type=BATCH)
    await mesh.two.register(two, model="two", type=FINE_TUNING)
    await mesh.knows(mesh.two, "one")
    async with openai_at(mesh.two) as made:
        yield made


def keep(servers, *counts):
    for server, count in zip(servers, counts, strict=True):
        for _ in range(count):
            server.keep("batches", object="batch", status="completed", endpoint="e", input_file_id="f",
                        completion_window="24h")  # fmt: skip
            server.keep(
                "files", object="file", bytes=1, filename="a", purpose="batch", status="processed"
            )


@pytest.mark.parametrize("counts", [(5, 4), (0, 5), (5, 0), (4, 4), (2, 2), (0, 0)])
@pytest.mark.parametrize("limit", [1, 2, 3, 4, 100])
async def test_pages_go_through_the_entries_of_all_services_once(client, servers, counts, limit):
    keep(servers, *counts)
    batches = [batch.id async for batch in await client.batches.list(limit=limit)]
    assert len(batches) == len({*batches}) == sum(counts)
    files = [file.id async for file in await client.files.list(limit=limit, purpose="batch")]
    assert len(files) == len({*files}) == sum(counts)
    for id_ in batches:
        assert (await client.batches.retrieve(id_)).id == id_


async def test_a_list_may_be_limited_to_one_node(client, servers, mesh):
    keep(servers, 3, 2)
    headers = {"x-modelvine-node": mesh.one.context.peer}
    found = await client.batches.list(extra_headers=headers)
    assert len(found.data) == 3


async def test_an_unavailable_service_is_left_out_of_the_list(client, servers, mesh):
    keep(servers, 3, 2)
    row = {"project": "p", "model": "gone", "api": "http://127.0.0.1:9", "type": BATCH}
    async with mesh.one.http.post("/api/v0/ai/model/register", json=row) as response:
        assert response.status == 200
    await mesh.knows(mesh.two, "gone")
    found = [batch.id async for batch in await client.batches.list(limit=2)]
    assert len(found) == 5


@pytest.mark.parametrize("said", [b"no JSON", b"[" * 5_000, b'{"data":[1]}', b"", None])
async def test_a_service_with_an_invalid_list_or_none_is_left_out(
    client, servers, mesh, said, monkeypatch
):
    async def serve(reader, writer):
        await take(reader)
        if said is None:
            await asyncio.Event().wait()
        head = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: "
        writer.write(f"{head}{len(said)}\r\n\r\n".encode() + said)

    monkeypatch.setattr(service_lists, "PAGE_SECONDS", 0.3)
    keep(servers, 3, 2)
    async with raw(serve) as url:
        for model in ("bad", "worse"):
            row = {"project": "p", "model": model, "api": url, "type": BATCH}
            async with mesh.two.http.post("/api/v0/ai/model/register", json=row) as response:
                assert response.status == 200
        found = [batch.id async for batch in await client.batches.list(limit=10)]
        assert len(found) == 5


async def test_a_list_fails_when_no_service_answers(mesh):
    for name in ("a", "b"):
        row = {"project": "p", "model": name, "api": "http://127.0.0.1:9", "type": BATCH}
        async with mesh.one.http.post("/api/v0/ai/model/register", json=row) as response:
            assert response.status == 200
    status, said = await told(mesh.one.http.get("/v1/batches"))
    assert (status, said["error"]["code"]) == (503, "worker_unreachable")


@pytest.mark.parametrize("limit", ["0", "x", "-1", "99999"])
async def test_an_invalid_limit_is_refused(client, limit):
    with pytest.raises(openai.BadRequestError, match="limit"):
        await client.batches.list(extra_query={"limit": limit})


async def test_a_cursor_of_an_unknown_home_is_unavailable(client, servers, stranger):
    keep(servers, 2, 1)
    with pytest.raises(openai.InternalServerError, match="unavailable"):
        await client.batches.list(after=f"batches-1@{stranger}.0123abcd")


@pytest.fixture
async def shared(mesh, servers):
    """Yield a client at the second node; one server is registered at both nodes with the same cid."""
    (one, _), offered = servers, {"model": "batch", "type": BATCH, "cid": "site"}
    await mesh.one.register(one, **offered)
    await mesh.knows(mesh.two, "batch")
    await mesh.two.register(one, **offered)
    async with openai_at(mesh.two) as made:
        yield made


async def test_services_of_one_cid_are_one_service_and_any_node_answers_for_it(
    shared, servers, mesh
):
    keep(servers, 3, 0)
    assert len([batch.id async for batch in await shared.batches.list(limit=2)]) == 3
    here = {"x-modelvine-node": mesh.one.context.peer}
    file = await shared.files.create(file=("a", b"{}"), purpose="batch", extra_headers=here)
    assert mesh.one.context.peer in file.id
    gone = {"project": "p", "model": "batch", "cid": "site"}
    async with mesh.one.http.post("/api/v0/ai/model/unregister", json=gone) as response:
        assert response.status == 200
    assert (await shared.files.retrieve(file.id)).filename == "a"
    batch = await shared.batches.create(
        input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h"
    )
    assert (await shared.batches.retrieve(batch.id)).status


async def test_an_upload_is_bound_to_the_node_where_it_began(shared, mesh):
    home = home_of(mesh.one.context.peer, Service("p", "batch", cid="site"))
    upload = f"upload_1@{home.node}.{home.tag}"
    gone = {"project": "p", "model": "batch", "cid": "site"}
    async with mesh.one.http.post("/api/v0/ai/model/unregister", json=gone) as response:
        assert response.status == 200
    with pytest.raises(openai.InternalServerError) as away:
        await shared.uploads.cancel(upload)
    assert away.value.status_code == 503
