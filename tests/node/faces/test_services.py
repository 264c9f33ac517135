"""Services that are not models: every path of Llama Stack, and of OpenAI's, at the service's node and one hop away."""

import asyncio

import orjson
import pytest

from registry.records import SERVICE_TYPES, service_type_name
from router.services.calls import CALLS
from router.translate.verbatim import LLAMA_STACK
from tests.node.faces.assembly import told, until
from tests.workers import llama_stack_services
from tests.workers.llama_stack_schema import ANSWERS

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
    own, _, home = id_.rpartition("@")
    assert (own, home.partition(".")[0]) == ("job 1", mesh.one.context.peer)
    beside = call.path.removesuffix("submit")
    for asked in (mesh.one.http, mesh.two.http):
        status, answer = await told(asked.get(f"{beside}status", params={field: id_}))
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
    [place] = job["checkpoints"]
    for asked in (mesh.one.http, mesh.two.http):
        async with asked.get(place) as response:
            assert (response.status, await response.read()) == (200, llama_stack_services.ADAPTER)
    async with http.get(place.replace("adapter", "nothing")) as response:
        assert response.status == 404


async def test_a_404_of_a_service_is_passed_on(http):
    _, id_ = await submitted(http, SUBMITS[0])
    gone = id_.replace("job 1", "job 9")
    status, answer = await told(http.get("/batch_inference/jobs/status", params={"job_id": gone}))
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
