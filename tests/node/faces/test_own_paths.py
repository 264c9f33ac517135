"""Workers registered with a path of their own: they get requests of their type alone, here and a hop away."""

import aiohttp
import orjson
import pytest

from router.requests import MODEL_KINDS, STORES, Kind
from tests.node.faces.assembly import told, until

SAYS = {"messages": [{"role": "user", "content": "hi"}], "prompt": "a hat", "input": "hi"}
PROJECT = "/api/v0/ai/project"

pytestmark = pytest.mark.parametrize("place", ["serving", "asked"])


@pytest.fixture
def asked(mesh, place):
    return mesh.one if place == "serving" else mesh.two


async def registered(mesh, models, names):
    """Register a project's models at the first node, and wait until the second knows them."""
    row = {"project": "p", "models": models}
    assert (await told(mesh.one.http.post(f"{PROJECT}/register", json=row)))[0] == 200
    await until(
        lambda: all(
            len(mesh.two.context.registry.catalog.offers.get(name, ())) == count
            for name, count in names.items()
        )
    )


async def ask(running, kind, model, **fields):
    body = SAYS | {"model": model, "store": model, "model_id": model} | fields
    return await told(running.http.post(f"/v1/{kind.value}", json=body))


async def test_a_type_0_endpoint_gets_chats_and_nothing_else(mesh, worker, asked):
    await registered(mesh, [{"model": "own", "api": f"{worker.url}/custom/chat"}], {"own": 1})
    for kind in MODEL_KINDS:
        if kind not in (Kind.CHAT, Kind.COMPLETION):
            status, payload = await ask(asked, kind, "own")
            assert (status, payload["error"]["param"]) == (400, "model"), kind
            assert payload["message"].endswith("use /v1/chat/completions or /v1/completions")
    assert not worker.received
    assert (await ask(asked, Kind.CHAT, "own"))[0] == 200
    # The prompt is sent as a message.
    status, payload = await ask(asked, Kind.COMPLETION, "own")
    assert (status, payload["object"]) == (200, "text_completion")
    assert [request.path for request in worker.received] == ["/custom/chat"] * 2
    assert all("messages" in orjson.loads(request.body) for request in worker.received)


async def test_chats_in_other_protocols_reach_a_type_0_endpoint_as_chats(mesh, worker, asked):
    await registered(mesh, [{"model": "own", "api": f"{worker.url}/custom/chat"}], {"own": 1})
    for path, body in (
        ("/v1/messages", {"model": "own", "max_tokens": 3, "messages": SAYS["messages"]}),
        ("/v1/responses", {"model": "own", "input": "hi"}),
        ("/tgi/p/own/v1/chat/completions", {"messages": SAYS["messages"]}),
        ("/inference", {"model": "own", "messages": SAYS["messages"]}),
    ):
        assert (await told(asked.http.post(path, json=body)))[0] == 200, path
    assert (await told(asked.http.post("/tgi/p/own/generate", json={"inputs": "a"})))[0] == 200
    assert {request.path for request in worker.received} == {"/custom/chat"}


async def test_a_name_of_two_types_is_served_by_the_replica_of_the_requests_kind(
    mesh, worker, asked
):
    models = [
        {"model": "SuperImage", "api": f"{worker.url}/draw", "type": 1},
        {"model": "SuperImage", "api": f"{worker.url}/edit", "type": 2},
    ]
    await registered(mesh, models, {"SuperImage": 2})
    for kind, path in ((Kind.IMAGE, "/draw"), (Kind.IMAGE_EDIT, "/edit")):
        for _ in range(4):
            assert (await ask(asked, kind, "SuperImage"))[0] == 200
            assert worker.received[-1].path == path
        form = aiohttp.FormData({"model": "p/SuperImage", "prompt": "a hat"})
        form.add_field("image", b"\x89PNG", filename="a.png")
        async with asked.http.post(f"/v1/{kind.value}", data=form) as response:
            assert response.status == 200
        assert worker.received[-1].path == path
    for api, path in (("gen", "/draw"), ("edit", "/edit")):
        body = {"project": "p", "model": "SuperImage", "prompt": "a hat"}
        assert (await told(asked.http.post(f"/api/v0/image/{api}/proxy", json=body)))[0] == 200
        assert worker.received[-1].path == path
    assert (await ask(asked, Kind.CHAT, "SuperImage"))[0] == 400


async def test_a_name_of_two_types_at_openais_paths_is_served_by_the_kind_too(mesh, worker, asked):
    """Each type has a server of its own, as in the seed."""
    models = [
        {"model": "SuperImage", "api": f"{worker.url}/v1/images/generations", "type": 1},
        {"model": "SuperImage", "api": f"{worker.url}/other/v1/images/edits", "type": 2},
    ]
    await registered(mesh, models, {"SuperImage": 2})
    for _ in range(4):
        assert (await ask(asked, Kind.IMAGE, "SuperImage"))[0] == 200
        assert (await ask(asked, Kind.IMAGE_EDIT, "SuperImage"))[0] == 200
    assert {request.path for request in worker.received} == {
        "/v1/images/generations",
        "/other/v1/images/edits",
    }


@pytest.mark.parametrize("path", ["", "/v1", "/v1/chat/completions", "/some/v2", "/x/completions"])
async def test_a_base_url_or_one_of_openais_paths_serves_the_other_kinds_too(
    mesh, worker, asked, path
):
    await registered(mesh, [{"model": "base", "api": worker.url + path}], {"base": 1})
    for kind in (Kind.CHAT, Kind.COMPLETION, Kind.EMBEDDING, Kind.RERANK, *STORES):
        assert (await ask(asked, kind, "base"))[0] == 200
        assert worker.received[-1].path.endswith(kind.value)


async def test_route_shows_which_replica_serves_which_kind(mesh, worker, asked):
    models = [
        {"model": "SuperImage", "api": f"{worker.url}/draw", "type": 1},
        {"model": "SuperImage", "api": f"{worker.url}/edit", "type": 2},
    ]
    await registered(mesh, models, {"SuperImage": 2})
    for kind, type_ in ((Kind.IMAGE, 1), (Kind.IMAGE_EDIT, 2)):
        query = {"model": "SuperImage", "kind": kind.value}
        _, payload = await told(asked.http.get("/api/v1/route", params=query))
        assert [row["type"] for row in payload["candidates"]] == [type_]
        (excluded,) = payload["excluded"]
        name = {1: "image_edit", 2: "image"}[type_]
        assert excluded["reason"] == f"it serves another type of request: {name}"
