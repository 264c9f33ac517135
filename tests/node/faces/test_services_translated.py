"""Callers of Llama Stack at services of OpenAI's form, and the other way round, at their node and one hop away."""

import base64

import openai
import orjson
import pytest

from registry.records import ModelType, service_type_name
from tests.node.faces.assembly import openai_at, told
from tests.node.faces.test_services import as_specified
from tests.workers import llama_stack_services, openai_services

KINDS = (ModelType.BATCH, ModelType.FINE_TUNING, ModelType.VECTORS, ModelType.REWARD)
LINES = b'[{"role":"user","text":"hi"}]\n{"custom_id":"two","messages":[{"text":"ho"}]}\n{broken\n'
SUBMIT = "/batch_inference/jobs/submit"


@pytest.fixture
async def server():
    async with openai_services.running() as started:
        yield started


async def placed(request, mesh, url, **fields):
    for kind in KINDS:
        await mesh.one.register(type("At", (), {"url": url}), model="it", type=int(kind), **fields)
        await mesh.knows(mesh.two, service_type_name(kind))
    return mesh.one if request.param == "serving" else mesh.two


@pytest.fixture(params=["serving", "asked"])
async def http(request, mesh, server):
    return (await placed(request, mesh, server.url)).http


def batch(lines=LINES, **fields):
    source = {"value": base64.b64encode(lines).decode(), "type": "raw_bytes"}
    return {"model": "tiny", "prompt_file_path": source, **fields}


async def test_a_batch_of_messages_becomes_openais_batch(http, server):
    fields = batch(options={"max_tokens": 7}, num_generations=2)
    status, job = await told(http.post(SUBMIT, json=fields))
    assert status == 200, job
    as_specified(SUBMIT, "POST", job)
    rows = server.contents["files-1"].splitlines()
    assert orjson.loads(rows[0]) == {
        "custom_id": "1",
        "method": "POST",
        "url": "/v1/chat/completions",
        "body": {
            "model": "tiny",
            "max_tokens": 7,
            "n": 2,
            "messages": [{"role": "user", "content": "hi"}],
        },
    }
    assert orjson.loads(rows[1])["custom_id"] == "two"
    # The broken row becomes an error of its own there, and affects no other row.
    assert rows[2] == b"{broken"
    for state, expected in (
        ("in_progress", "running"),
        ("finalizing", "running"),
        ("completed", "completed"),
        ("expired", "failed"),
    ):
        server.kept["batches"]["batches-2"].update(status=state, output_file_id="files-1")
        _, payload = await told(
            http.get("/batch_inference/jobs/status", params={"job_id": job["job_id"]})
        )
        as_specified("/batch_inference/jobs/status", "GET", payload)
        assert payload["status"] == expected
        assert payload.get("metadata", {}) == ({"status": "expired"} if state == "expired" else {})
    # A file that it names by a URI is served by any node.
    async with http.get(payload["success_file_path"]["value"]) as response:
        assert await response.read() == server.contents["files-1"]
    server.kept["batches"]["batches-2"]["status"] = "in_progress"
    _, payload = await told(
        http.post("/batch_inference/jobs/cancel", json={"job_id": job["job_id"]})
    )
    assert (payload["status"], payload["metadata"]) == ("failed", {"status": "cancelling"})


async def test_a_file_of_the_service_may_be_named_by_its_uri(http, server):
    _, job = await told(http.post(SUBMIT, json=batch()))
    file = {"value": job["input_file_path"]["value"], "type": "uri"}
    server.contents["files-1"] = LINES
    status, _ = await told(http.post(SUBMIT, json={"model": "tiny", "prompt_file_path": file}))
    assert status == 200
    assert b'"custom_id":"two"' in server.contents["files-3"]


@pytest.mark.parametrize(
    ("asked", "param"),
    [
        ({"model": "m"}, "prompt_file_path"),
        (
            batch() | {"prompt_file_path": {"value": "/etc/passwd", "type": "filepath"}},
            "prompt_file_path",
        ),
        (
            batch() | {"prompt_file_path": {"value": "http://10.0.0.1/", "type": "uri"}},
            "prompt_file_path",
        ),
        (batch() | {"prompt_file_path": {"value": "?", "type": "raw_bytes"}}, "prompt_file_path"),
        (batch(options={"top_k": 1}), "options.top_k"),
    ],
)
async def test_an_untranslatable_parameter_is_refused_by_its_name(http, server, asked, param):
    status, payload = await told(http.post(SUBMIT, json=asked))
    assert (status, payload["error"]["param"]) == (400, param)
    assert not server.kept


async def test_bytes_of_a_batch_that_cannot_be_read_are_refused(http, server):
    fields = batch() | {"prompt_file_path": {"value": "é", "type": "raw_bytes"}}
    status, payload = await told(http.post(SUBMIT, json=fields))
    assert (status, payload["error"]["param"]) == (400, "prompt_file_path")
    assert not server.kept


async def test_a_line_nested_too_deeply_becomes_an_error_of_the_batch(http, server):
    deep = b'{"messages":[{"content":' + b"[" * 300 + b"]" * 300 + b"}]}"
    status, job = await told(http.post(SUBMIT, json=batch(deep + b"\n" + LINES)))
    assert status == 200, job
    first, second, *_ = server.contents["files-1"].splitlines()
    assert first == deep
    assert orjson.loads(second)["custom_id"] == "2"


async def test_fine_tuning_jobs_and_their_log_are_translated(http, server):
    fields = {"model": "tiny", "data": "files-9", "fine_tuning_options": {"n_epochs": 2, "seed": 3}}
    status, job = await told(http.post("/fine_tuning/jobs/submit", json=fields))
    assert status == 200, job
    as_specified("/fine_tuning/jobs/submit", "POST", job)
    stored = server.kept["jobs"]["jobs-1"]
    assert (stored["training_file"], stored["hyperparameters"], stored["seed"]) == (
        "files-9",
        {"n_epochs": 2},
        3,
    )
    stored |= {"status": "succeeded", "finished_at": 1_767_323_999, "result_files": ["files-8"]}
    params = {"job_id": job["job_id"]}
    _, state = await told(http.get("/fine_tuning/jobs/status", params=params))
    as_specified("/fine_tuning/jobs/status", "GET", state)
    assert state["status"] == "success"
    assert state["checkpoints"][0].startswith("/v1/files/files-8@12D3KooW")
    async with http.get("/fine_tuning/jobs/tail", params=params) as response:
        assert response.content_type == "application/x-ndjson"
        line = orjson.loads(await response.read())
    as_specified("/fine_tuning/jobs/tail", "GET", line)
    assert line["logs"][0]["message"] == "begun"
    _, state = await told(http.post("/fine_tuning/jobs/cancel", json=params))
    assert state["status"] == "cancelled"
    file = f"files-9@{job['job_id'].partition('@')[2]}"
    for data in (file, f"/v1/files/{file}/content"):
        _, again = await told(http.post("/fine_tuning/jobs/submit", json={**fields, "data": data}))
        job_id = again["job_id"].partition("@")[0]
        assert server.kept["jobs"][job_id]["training_file"] == "files-9"
    for wrong, param in (
        ({"fine_tuning_options": {"lr": 0.1}}, "fine_tuning_options.lr"),
        ({"data": "https://example.org/a.jsonl"}, "data"),
        ({"overrides": "--x"}, "overrides"),
    ):
        _, payload = await told(http.post("/fine_tuning/jobs/submit", json={**fields, **wrong}))
        assert payload["error"]["param"] == param


async def test_a_vector_store_is_created_read_and_dropped(http, server):
    fields = {"name": "notes", "description": "mine"}
    status, store = await told(http.post("/vector_store/create", json=fields))
    assert (status, store["name"], store["description"]) == (200, "notes", "mine")
    _, payload = await told(http.get("/vector_store", params={"id": store["id"]}))
    assert payload == store
    _, payload = await told(http.post("/vector_store/drop", json={"id": store["id"]}))
    assert payload == {"id": store["id"]}
    status, _ = await told(http.get("/vector_store", params={"id": store["id"]}))
    assert status == 404


@pytest.mark.parametrize("by", ["score", "classify"])
async def test_a_pair_of_prompt_and_response_is_scored(http, server, by):
    server.scores = by
    pair = [{"role": "user", "text": "What grows?"}, {"role": "assistant", "text": "A vine."}]
    fields = {"reward": "it", "prompt_with_response": pair, "scoring_function": {"name": "score"}}
    status, payload = await told(http.post("/reward_scoring", json=fields))
    assert (status, payload["score"]) == (200, 0.25 if by == "score" else 0.75)
    as_specified("/reward_scoring", "POST", payload)
    fields["scoring_function"]["name"] = "llm_judge"
    status, payload = await told(http.post("/reward_scoring", json=fields))
    assert (status, payload["error"]["param"]) == (400, "scoring_function")


async def test_a_reward_model_is_asked_by_its_workers_name(http, mesh, server):
    reward = {"model": "fair", "worker_model": "own", "type": int(ModelType.REWARD)}
    await mesh.one.register(server, **reward)
    await mesh.knows(mesh.two, "fair")
    pair = [{"role": "user", "text": "What grows?"}, {"role": "assistant", "text": "A vine."}]
    fields = {"reward": "fair", "prompt_with_response": pair, "scoring_function": {"name": "score"}}
    status, _ = await told(http.post("/reward_scoring", json=fields))
    assert (status, server.rewards) == (200, ["own"])


async def test_calls_without_a_translation_are_refused_by_name(http):
    for path in (
        "/batch_reward_scoring/jobs/submit",
        "/quantize",
    ):
        status, payload = await told(http.post(path, json={}))
        assert (status, payload["error"]["code"]) == (400, "unsupported_parameter")
        assert f"POST {path}" in payload["message"]


@pytest.fixture(params=["serving", "asked"])
async def client(request, mesh):
    async with llama_stack_services.running() as stack:
        node = await placed(request, mesh, stack.url, dialect="llama_stack_http")
        async with openai_at(node) as made:
            yield made


async def test_openais_client_fine_tunes_at_a_llama_stack_service(client):
    fields = {"model": "tiny", "training_file": "https://example.org/a.jsonl"}
    job = await client.fine_tuning.jobs.create(**fields)
    assert (job.status, job.training_file) == ("running", fields["training_file"])
    assert (await client.fine_tuning.jobs.retrieve(job.id)).id == job.id
    [file] = job.result_files
    assert (await client.files.content(file)).content == llama_stack_services.ADAPTER
    assert (await client.fine_tuning.jobs.cancel(job.id)).status == "cancelled"
    with pytest.raises(openai.BadRequestError, match="Llama Stack has no files"):
        await client.fine_tuning.jobs.create(model="tiny", training_file="file-1")


async def test_files_are_refused_at_a_llama_stack_service(client):
    with pytest.raises(openai.BadRequestError, match="Llama Stack does not support POST /v1/files"):
        await client.files.create(file=("a", b"x"), purpose="batch")
