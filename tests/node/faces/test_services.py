"""Services that are not models: every path of Llama Stack, and of OpenAI's, at the service's node and one hop away."""

import asyncio

import openai
import orjson
import pytest

from node.faces import services
from registry.records import SERVICE_TYPES, Service, service_type_name
from router.services.calls import CALLS
from router.services.ids import home_of
from router.translate.verbatim import LLAMA_STACK
from tests.node.faces.assembly import openai_at, told, until
from tests.workers import llama_stack_services, openai_services
from tests.workers.llama_stack_schema import ANSWERS
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

    monkeypatch.setattr(services, "PAGE_SECONDS", 0.3)
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
    status, payload = await told(mesh.one.http.get("/v1/batches"))
    assert (status, payload["error"]["code"]) == (503, "worker_unreachable")


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
    fields = {"project": "p", "model": "batch", "cid": "site"}
    async with mesh.one.http.post("/api/v0/ai/model/unregister", json=fields) as response:
        assert response.status == 200
    assert (await shared.files.retrieve(file.id)).filename == "a"
    batch = await shared.batches.create(
        input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h"
    )
    assert (await shared.batches.retrieve(batch.id)).status


async def test_an_upload_is_bound_to_the_node_where_it_began(shared, mesh):
    home = home_of(mesh.one.context.peer, Service("p", "batch", cid="site"))
    upload = f"upload_1@{home.node}.{home.tag}"
    fields = {"project": "p", "model": "batch", "cid": "site"}
    async with mesh.one.http.post("/api/v0/ai/model/unregister", json=fields) as response:
        assert response.status == 200
    with pytest.raises(openai.InternalServerError) as away:
        await shared.uploads.cancel(upload)
    assert away.value.status_code == 503


STEP = {
    "id": "u1",
    "role": "user",
    "stepType": "user_response",
    "messages": [{"role": "user", "text": "What grows on a vine?"}],
    "timestamp": "2026-01-02T03:04:05Z",
}
PATH = {"value": "eyJtZXNzYWdlcyI6W119", "type": "raw_bytes"}
SCORING = {"scoring_function": {"name": "length"}}
BODIES = {
    "/batch_inference/jobs/submit": {"model": "tiny", "prompt_file_path": PATH},
    "/fine_tuning/jobs/submit": {"model": "tiny", "data": "https://example.org/a.jsonl"},
    "/reward_scoring": {"prompt_with_response": [{"text": "a"}], "reward": "fair", **SCORING},
    "/batch_reward_scoring/jobs/submit": {
        "reward_model": "fair", "prompt_with_response_path": PATH, **SCORING,
    },
    "/synthetic_data_gen/jobs/submit": {"model": "tiny", "prompt_file_path": "a.jsonl"},
    "/agents/execute": {
        "agent": {"name": "a", "model": "llama3_8"}, "turnHistory": [], "userStep": STEP,
    },
}  # fmt: skip
STACK = [call for call in CALLS if call.protocol == LLAMA_STACK]
SUBMITS = [call for call in STACK if call.path.endswith("/submit")]


@pytest.fixture
async def stack():
    async with llama_stack_services.running() as started:
        yield started


@pytest.fixture(params=["serving", "asked"])
async def http(request, mesh, stack):
    models = [
        {"model": "stack", "api": stack.url, "type": int(kind), "dialect": "llama_stack_http"}
        for kind in SERVICE_TYPES
    ]
    row = {"project": "p", "models": models}
    assert (await told(mesh.one.http.post("/api/v0/ai/project/register", json=row)))[0] == 200
    for kind in SERVICE_TYPES:
        await mesh.knows(mesh.two, service_type_name(kind))
    return (mesh.one if request.param == "serving" else mesh.two).http


def as_specified(path, method, answer):
    schema = ANSWERS.get(path) or ANSWERS[f"{method} {path}"]
    schema.validate_json(orjson.dumps(answer))


async def submitted(http, call):
    """Submit a job; return the field of its id, and the id."""
    status, answer = await told(http.post(call.path, json=BODIES.get(call.path, {"id": "v1"})))
    assert status == 200, answer
    as_specified(call.path, "POST", answer)
    field = "job_id" if "job_id" in answer else "id"
    return field, answer[field]


@pytest.mark.parametrize("call", [c for c in STACK if "/jobs/" not in c.path], ids=lambda c: c.path)
async def test_calls_that_are_not_jobs_are_answered_as_specified(http, stack, call):
    for method in call.methods:
        body = BODIES.get(call.path, {}) if method == "POST" else None
        query = {"bankIds": ["a", "b"]} if call.path == "/agents/execute" and not body else {}
        status, answer = await told(http.request(method, call.path, json=body, params=query))
        assert status == 200, answer
        as_specified(call.path, method, answer)
        assert stack.methods[-1] == method
        assert stack.received[-1].path == call.path + ("?bankIds=a&bankIds=b" if query else "")


@pytest.mark.parametrize("call", SUBMITS, ids=lambda c: c.path)
async def test_a_job_is_queried_and_cancelled_at_any_node_by_its_id(http, mesh, stack, call):
    field, id_ = await submitted(http, call)
    job_id, _, home = id_.rpartition("@")
    assert (job_id, home.partition(".")[0]) == ("job 1", mesh.one.context.peer)
    beside = call.path.removesuffix("submit")
    for client in (mesh.one.http, mesh.two.http):
        status, answer = await told(client.get(f"{beside}status", params={field: id_}))
        assert (status, answer[field]) == (200, id_)
        as_specified(f"{beside}status", "GET", answer)
        assert stack.received[-1].path == f"{beside}status?{field}=job+1"
    status, answer = await told(http.post(f"{beside}cancel", json={field: id_}))
    assert (status, answer[field], stack.asked) == (200, id_, {field: "job 1"})
    as_specified(f"{beside}cancel", "POST", answer)


async def test_the_tail_of_a_log_comes_line_by_line(http, stack):
    call = next(c for c in SUBMITS if c.path == "/fine_tuning/jobs/submit")
    _, id_ = await submitted(http, call)
    async with http.get("/fine_tuning/jobs/tail", params={"job_id": id_}) as response:
        assert (response.status, response.content_type) == (200, "application/x-ndjson")
        async with asyncio.timeout(5):
            lines = [orjson.loads(await response.content.readline())]
        stack.going_on.set()
        lines += [orjson.loads(line) async for line in response.content]
    assert [line["logs"][0]["message"] for line in lines] == ["begun", "ended"]
    for line in lines:
        as_specified("/fine_tuning/jobs/tail", "GET", line)


async def test_a_file_that_a_service_names_is_served_by_any_node(http, mesh):
    call = next(c for c in SUBMITS if c.path == "/fine_tuning/jobs/submit")
    _, job = await told(http.post(call.path, json=BODIES[call.path]))
    [url] = job["checkpoints"]
    for client in (mesh.one.http, mesh.two.http):
        async with client.get(url) as response:
            assert (response.status, await response.read()) == (200, llama_stack_services.ADAPTER)
    async with http.get(url.replace("adapter", "nothing")) as response:
        assert response.status == 404


async def test_a_404_of_a_service_is_passed_on(http):
    _, id_ = await submitted(http, SUBMITS[0])
    unknown_id = id_.replace("job 1", "job 9")
    status, answer = await told(
        http.get("/batch_inference/jobs/status", params={"job_id": unknown_id})
    )
    assert (status, answer) == (404, {"message": "no such job"})


async def test_a_422_of_a_service_is_passed_on(http):
    status, answer = await told(http.post("/batch_inference/jobs/submit", json={"model": 1}))
    assert status == 422
    assert "prompt_file_path" in answer["message"]


async def test_an_id_of_an_unknown_home_is_unavailable(http, stranger):
    params = {"job_id": f"job 1@{stranger}.0123abcd"}
    async with http.get("/batch_inference/jobs/status", params=params) as response:
        assert (response.status, response.headers["retry-after"]) == (503, "5")
        assert (await response.json())["error"]["code"] == "nobody_serves"


async def test_ids_of_two_homes_are_refused(http, mesh, stranger):
    _, id_ = await submitted(http, SUBMITS[0])
    body = {"job_id": id_, "file_id": f"f@{stranger}.0123abcd"}
    status, answer = await told(http.post("/batch_inference/jobs/cancel", json=body))
    assert (status, answer["error"]["code"]) == (400, "invalid_request")


async def test_an_id_of_an_unregistered_home_is_unavailable_and_not_unknown(http, mesh):
    _, id_ = await submitted(http, SUBMITS[0])
    row = {"project": "p"}
    status, _ = await told(mesh.one.http.post("/api/v0/ai/project/unregister", json=row))
    assert status == 200
    name = service_type_name(next(iter(SERVICE_TYPES)))
    await until(lambda: name not in mesh.two.context.registry.catalog.offers)
    async with http.get("/batch_inference/jobs/status", params={"job_id": id_}) as response:
        assert response.status == 503
        assert "retry-after" in response.headers


async def test_a_job_is_submitted_once_though_its_service_dies_of_it(http, stack):
    stack.dies = True
    body = BODIES["/batch_inference/jobs/submit"]
    status, _ = await told(http.post("/batch_inference/jobs/submit", json=body))
    assert status == 502
    assert len(stack.received) == 1


@pytest.mark.parametrize(("said", "status"), [(500, 502), (507, 507), (429, 429), (405, 400)])
async def test_failures_of_a_service_are_reported_as_those_of_a_worker(http, stack, said, status):
    stack.status = said
    body = BODIES["/batch_inference/jobs/submit"]
    answer = await told(http.post("/batch_inference/jobs/submit", json=body))
    assert answer[0] == status, answer


async def test_a_path_that_no_service_has_is_404(http):
    for path in ("/v1/files/a/b", "/v1/files/../content", "/v1/files/%2e%2e/content"):
        async with http.get(path) as response:
            assert response.status == 404
            assert (await response.json())["error"]["code"] == "unknown_path"
