"""`/v1/models`: the models that a client may ask for, in OpenAI's and in seed 002's shape."""

import time
from dataclasses import replace

import pytest

from node.faces.model_list import SLICE
from registry import wire
from registry.records import Record, Service, Standing, Version
from registry.signing import Identity
from router.workers import Workers
from tests.node.faces.assembly import until


async def listed(node):
    async with node.http.get("/v1/models") as response:
        assert response.status == 200
        return await response.json()


async def test_an_empty_list_of_models_is_valid(alone):
    payload = await listed(alone)
    assert (payload["object"], payload["code"], payload["data"]) == ("list", 0, [])


async def test_a_model_is_shown_in_both_shapes(alone, worker):
    await alone.register(worker, type=0)
    payload = await listed(alone)
    assert payload["project"] == "p"
    assert payload["data"] == [
        {
            "id": "tiny",
            "object": "model",
            "created": payload["data"][0]["created"],
            "owned_by": "p",
            "model": "tiny",
            "url": f"http://{alone.context.listening.http}/v1/chat/completions",
            "type": 0,
            "project": "p",
            "projects": ["p"],
            "replicas": 1,
            "nodes": 1,
        }
    ]


@pytest.mark.parametrize(
    ("number", "path"),
    [(0, "chat/completions"), (1, "images/generations"), (2, "images/edits"), (3, "embeddings"),
     (4, "audio/transcriptions"), (5, "audio/speech"), (6, "rerank"), (7, "sound-generation"), (8, "stores/set")],
)  # fmt: skip
async def test_a_models_url_is_this_nodes_path_for_its_kind_of_model(alone, worker, number, path):
    await alone.register(worker, type=number)
    headers = {"Host": "localhost:80", "X-Forwarded-Proto": "https"}
    for route in ("/v1/models", "/v1/models/p/tiny"):
        async with alone.http.get(route, headers=headers) as response:
            payload = await response.json()
        (entry,) = payload.get("data", [payload])
        assert entry["url"] == f"https://localhost:80/v1/{path}"
    url = (await listed(alone))["data"][0]["url"]
    async with alone.http.post(url, json={"model": "tiny", "store": "tiny"}) as response:
        assert response.status == 200


async def test_created_is_the_first_registration_of_a_model_at_every_node(mesh, worker):
    before = int(time.time())
    await mesh.one.register(worker)
    async with mesh.one.http.get("/v1/models") as response:
        created = (await response.json())["data"][0]["created"]
    assert before <= created <= time.time()
    # Older than any time that the clock of this test gives.
    agent = mesh.one.context.agent
    agent.registered = Workers.of(
        replace(w, service=replace(w.service, created=1_700_000_000)) for w in agent.registered
    )
    await mesh.one.register(worker, cid="second")
    await mesh.two.register(worker, cid="third")
    await until(lambda: len(mesh.two.context.registry.catalog.offers.get("tiny", ())) == 3)
    for node in (mesh.one, mesh.two):
        (entry,) = (await listed(node))["data"]
        assert entry["created"] == 1_700_000_000
    anthropic = {"anthropic-version": "2023-06-01"}
    async with mesh.two.http.get("/v1/models", headers=anthropic) as response:
        assert (await response.json())["data"][0]["created_at"] == "2023-11-14T22:13:20Z"


async def test_a_workers_address_is_not_shown(alone, worker):
    await alone.register(worker)
    assert worker.url not in str(await listed(alone))


async def test_replicas_and_projects_of_one_name_are_one_entry(mesh, worker):
    await mesh.one.register(worker)
    await mesh.one.register(worker, cid="second")
    await mesh.two.register(worker, project="q")
    await until(lambda: len(mesh.one.context.registry.catalog.offers.get("tiny", ())) == 3)
    (entry,) = (await listed(mesh.one))["data"]
    assert (entry["id"], entry["replicas"], entry["nodes"]) == ("tiny", 3, 2)
    assert (entry["project"], entry["projects"]) == ("p", ["p", "q"])


async def test_a_model_registered_at_one_node_is_listed_at_the_other_until_unregistered(
    mesh, worker
):
    await mesh.one.register(worker)
    await mesh.knows(mesh.two, "tiny")
    assert [entry["id"] for entry in (await listed(mesh.two))["data"]] == ["tiny"]
    async with mesh.one.http.post("/api/v0/ai/project/unregister", json={"project": "p"}) as r:
        assert r.status == 200
    await until(lambda: "tiny" not in mesh.two.context.registry.catalog.offers)
    assert (await listed(mesh.two))["data"] == []


@pytest.mark.parametrize("path", ["tiny", "p/tiny"])
async def test_one_model_is_found_by_either_name(alone, worker, path):
    await alone.register(worker)
    for prefix in ("/v1/models", "/v1/openai/v1/models"):
        async with alone.http.get(f"{prefix}/{path}") as response:
            entry = await response.json()
            assert (response.status, entry["id"], entry["owned_by"]) == (200, path, "p")


async def test_a_models_name_may_hold_slashes(alone, worker):
    await alone.register(worker, model="org/tiny")
    for path in ("org/tiny", "p/org/tiny", "org%2Ftiny"):
        async with alone.http.get(f"/v1/models/{path}") as response:
            assert response.status == 200, path


async def test_an_unknown_model_is_404(alone):
    async with alone.http.get("/v1/models/nothing") as response:
        assert response.status == 404
        assert (await response.json())["error"]["code"] == "model_not_found"


async def test_models_of_a_node_that_drains_are_not_offered(mesh, worker):
    await mesh.one.register(worker)
    await mesh.knows(mesh.two, "tiny")
    await mesh.one.context.registry.set_standing(Standing.DRAINING)
    presence = mesh.two.context.registry.presence
    await until(lambda: presence(mesh.one.context.peer).value == "draining")
    assert (await listed(mesh.two))["data"] == []


async def test_the_longest_context_is_shown_where_one_is_known(mesh, worker):
    await mesh.one.register(worker, context=4096)
    await mesh.one.register(worker, cid="second")
    await mesh.two.register(worker, context=8192)
    await until(lambda: len(mesh.one.context.registry.catalog.offers.get("tiny", ())) == 3)
    (entry,) = (await listed(mesh.one))["data"]
    assert entry["context_length"] == 8192


async def test_modalities_and_context_that_a_worker_reports_are_shown(mesh, worker):
    seeing = b'{"total_slots":2,"default_generation_settings":{"n_ctx":512},"modalities":{"vision":true}}'
    worker.fail(properties=seeing)
    await mesh.one.register(worker)
    await mesh.two.register(worker, context=64)
    await until(lambda: len(mesh.two.context.registry.catalog.offers.get("tiny", ())) == 2)
    (entry,) = (await listed(mesh.two))["data"]
    assert entry["context_length"] == 512
    assert entry["architecture"] == {
        "input_modalities": ["text", "image"],
        "output_modalities": ["text"],
    }
    async with mesh.two.http.get("/api/v1/catalog") as response:
        rows = [row for node in (await response.json())["nodes"] for row in node["services"]]
    assert sorted(row["context"] for row in rows) == [64, 512]
    assert all(row["input_modalities"] == ["text", "image"] for row in rows)


@pytest.mark.parametrize("headers", [{}, {"anthropic-version": "2023-06-01"}])
async def test_a_long_list_comes_in_pieces_and_is_the_same_list(alone, headers):
    replica = alone.context.registry.replica
    for number in (1, 2):
        owner = Identity(bytes([number]) * 32)
        services = [Service("p", f"m{n:04}-{number}") for n in range(SLICE)]
        record = Record(owner.peer, Version(1, 1), services=tuple(services))
        now = time.monotonic()
        replica.merge_record(wire.encode_record(record, owner), heard_at=now, now=now)
    async with alone.http.get("/v1/models", headers=headers) as response:
        assert response.headers["transfer-encoding"] == "chunked"
        payload = await response.json()
    ids = [entry["id"] for entry in payload["data"]]
    assert ids == sorted(ids)
    assert len(ids) == 2 * SLICE
    assert (payload["object"], payload["project"]) == ("list", "p")
    assert ("first_id" in payload) == bool(headers)
    async with alone.http.get(f"/v1/models/{ids[7]}", headers=headers) as response:
        assert (await response.json()).items() >= payload["data"][7].items()
