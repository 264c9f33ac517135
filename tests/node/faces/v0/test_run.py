"""`/api/v0/chat` and `/api/v0/image`: at one named node, or at any node that serves the project's model."""

import aiohttp
import orjson
import pytest

from router.openai import multipart
from tests.node.faces.assembly import told, until

CHAT = {"project": "p", "model": "tiny", "messages": [{"role": "user", "content": "hi"}]}


@pytest.fixture
async def served(alone, worker):
    await alone.register(worker)
    return alone


def sent(worker):
    return orjson.loads(worker.received[-1].body)


@pytest.mark.parametrize(
    ("path", "goes_to"),
    [
        ("chat/completion", "/v1/chat/completions"),
        ("image/gen", "/v1/images/generations"),
        ("image/edit", "/v1/images/edits"),
    ],
)
@pytest.mark.parametrize("suffix", ["", "/proxy"])
async def test_a_body_reaches_the_worker_without_routing_and_payment_fields(
    served, worker, path, goes_to, suffix
):
    paid = {"wallet": "0x1", "signature": "s", "hash": "h", "Wallet": "0x2"}
    routing = {"node_id": served.context.peer, "cid": ""}
    call = served.http.post(f"/api/v0/{path}{suffix}", json=CHAT | paid | routing | {"n": 2})
    status, _ = await told(call)
    assert status == 200
    assert worker.received[-1].path == goes_to
    assert sent(worker) == {"model": "tiny", "messages": CHAT["messages"], "n": 2}


@pytest.mark.parametrize(
    "kind", ["application/x-www-form-urlencoded", "application/octet-stream", ""]
)
async def test_a_json_body_is_read_under_the_content_types_that_curl_sends(served, worker, kind):
    call = served.http.post(
        "/api/v0/chat/completion/proxy", data=orjson.dumps(CHAT), headers={"Content-Type": kind}
    )
    assert (await told(call))[0] == 200
    assert worker.received[-1].headers["content-type"] == "application/json"
    assert sent(worker) == {"model": "tiny", "messages": CHAT["messages"]}


async def test_remaining_fields_of_a_body_keep_their_bytes(served, worker):
    body = b'{"Project":"p", "x":1.50 ,"MODEL":"tiny","wallet":"0x1","y":[ 1e2 ]}'
    headers = {"Content-Type": "application/json"}
    call = served.http.post("/api/v0/chat/completion/proxy", data=body, headers=headers)
    assert (await told(call))[0] == 200
    assert worker.received[-1].body == b'{"model":"tiny","x":1.50 ,"y":[ 1e2 ]}'


async def test_a_text_plain_body_is_refused(served):
    headers = {"Content-Type": "text/plain"}
    body = orjson.dumps(CHAT)
    call = served.http.post("/api/v0/chat/completion/proxy", data=body, headers=headers)
    assert (await told(call))[0] == 415


async def test_a_named_node_answers_and_no_other(mesh, worker):
    await mesh.one.register(worker)
    await mesh.two.register(worker)
    await until(lambda: len(mesh.two.context.registry.catalog.offers.get("tiny", ())) == 2)
    for node in (mesh.one.context.peer, mesh.two.context.peer):
        fields = CHAT | {"node_id": node}
        async with mesh.two.http.post("/api/v0/chat/completion", json=fields) as response:
            assert response.headers["x-modelvine-node"] == node


async def test_a_stream_is_passed_on_as_events(served):
    fields = CHAT | {"stream": True}
    async with served.http.post("/api/v0/chat/completion/proxy", json=fields) as response:
        assert response.content_type == "text/event-stream"
        assert (await response.read()).endswith(b"data: [DONE]\n\n")


@pytest.mark.parametrize("named", ["query", "form"])
async def test_a_form_names_its_model_in_the_query_or_in_a_field(served, worker, named):
    form = aiohttp.FormData()
    form.add_field("prompt", "a hat")
    form.add_field("image", b"\x89PNG\r\n", filename="a.png")
    routing = {"project": "p", "node_id": served.context.peer}
    if named == "query":
        routing["model"] = "tiny"
    else:
        form.add_field("model", "tiny")
    status, _ = await told(served.http.post("/api/v0/image/edit", data=form, params=routing))
    assert status == 200
    assert b'name="model"\r\n\r\ntiny\r\n' in worker.received[-1].body
    assert b"\x89PNG\r\n" in worker.received[-1].body


async def test_a_form_reaches_the_worker_without_routing_and_payment_fields(served, worker):
    form = aiohttp.FormData()
    for name in ("wallet", "prompt", "signature", "hash", "Wallet", "project", "node_id", "cid"):
        form.add_field(
            name, f"<{name}>" if name not in ("project", "cid") else "p"[: name != "cid"]
        )
    form.add_field("image", b"\x89PNG\r\n", filename="a.png")
    form.add_field("hash", b"a file", filename="hash.bin")
    routing = {"model": "tiny", "node_id": served.context.peer}
    status, _ = await told(served.http.post("/api/v0/image/edit", data=form, params=routing))
    assert status == 200
    received = worker.received[-1]
    names = [part.name for part in multipart.parts(received.body, received.headers["content-type"])]
    assert names == ["model", "prompt", "image"]
    assert b"<prompt>" in received.body
    assert b"\x89PNG\r\n" in received.body


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"node_id": ""}, "node_id can not be empty"),
        ({"project": ""}, "project name can not be empty"),
        ({"model": ""}, "model name can not be empty"),
    ],
)
async def test_a_missing_field_is_named(served, change, message):
    fields = CHAT | {"node_id": served.context.peer} | change
    status, body = await told(served.http.post("/api/v0/chat/completion", json=fields))
    assert (status, body["code"], body["message"]) == (400, 1001, message)


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b'{"model": 5}', b'{"model": "m", "project": 5}']
)
async def test_a_body_that_is_not_json_is_a_parsing_error(served, body):
    headers = {"Content-Type": "application/json"}
    call = served.http.post("/api/v0/chat/completion/proxy", data=body, headers=headers)
    status, payload = await told(call)
    assert (status, payload["code"]) == (400, 1002)


async def test_a_project_that_no_node_serves_is_404(served):
    fields = CHAT | {"project": "q"}
    status, body = await told(served.http.post("/api/v0/chat/completion/proxy", json=fields))
    assert (status, body["code"]) == (404, 1017)
