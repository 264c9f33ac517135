"""Recognition of the protocol at an address, by a node: with real stubs of each protocol, and with other servers."""

import asyncio

import orjson
import pytest
from aiohttp import web

from node.auth.access import is_own_address
from node.faces.errors import Unparseable, WrongParameter
from node.faces.v1.recognise import candidates
from registry.records import SERVICE_TYPES, ModelType
from router import dialects
from router.ssrf_guard import SsrfGuard
from tests.node.faces.assembly import TOKEN, told, until
from tests.workers import (
    llama_stack_services,
    llama_stack_worker,
    localai_worker,
    openai_services,
    openai_worker,
    remotellm_worker,
    tgi_worker,
)
from tests.workers.raw import raw

HERE = SsrfGuard(is_own_address, lambda: {6100})
LISTING = (
    b'{"object":"list","data":[{"id":"tiny","owned_by":"vllm","max_model_len":4096},{"id":"b"}]}'
)


async def look(node, api, **more):
    call = node.http.post("/api/v1/recognise", json={"api": api, **more})
    status, payload = await told(call)
    assert status == 200, payload
    return [
        (attempt["dialect"], attempt["asked"], attempt["came"]) for attempt in payload["tries"]
    ], payload["found"]


async def test_an_openai_server_is_recognised_by_its_list_of_models(alone):
    async with openai_worker.running() as worker:
        worker.fail(listing=LISTING)
        attempts, found = await look(alone, worker.url)
        assert attempts == [
            ("tgi_http", "GET /info", "405"),
            ("openai_http", "GET /v1/models", "200, 2 models, vLLM"),
        ]
        assert found == {
            "dialect": "openai_http",
            "api": worker.url,
            "software": "vLLM",
            "models": [{"name": "tiny", "context": 4096}, {"name": "b"}],
        }
        assert await look(alone, worker.url.removeprefix("http://")) == (attempts, found)
        assert worker.received == []


async def test_services_besides_the_models_are_found_and_can_be_registered(alone):
    async with openai_services.running() as server:
        attempts, found = await look(alone, server.url)
        assert attempts[-1][2] == "200, 0 models, and batch and fine-tuning and reward and vectors"
        assert [model["type"] for model in found["models"]] == [
            ModelType.BATCH,
            ModelType.FINE_TUNING,
            ModelType.REWARD,
            ModelType.VECTORS,
        ]
        for model in found["models"]:
            row = {
                "project": "p",
                "model": model["name"],
                "api": found["api"],
                "type": model["type"],
            }
            assert (await told(alone.http.post("/api/v0/ai/model/register", json=row)))[0] == 200
        server.keep("files", object="file", purpose="batch")
        [file] = (await told(alone.http.get("/v1/files")))[1]["data"]
        # One service of a server may use what another service of it keeps.
        store = (await told(alone.http.post("/v1/vector_stores", json={"name": "s"})))[1]
        fields = {"file_id": file["id"]}
        status, payload = await told(
            alone.http.post(f"/v1/vector_stores/{store['id']}/files", json=fields)
        )
        assert (status, payload["id"]) == (200, file["id"])


async def test_llama_stack_services_are_recognised_by_reported_missing_fields(alone):
    async with llama_stack_services.running() as server:
        attempts, found = await look(alone, server.url)
        assert attempts[-1][0] == found["dialect"] == "llama_stack_http"
        assert {model["type"] for model in found["models"]} == SERVICE_TYPES


async def test_the_interface_standards_list_of_models_is_recognised_with_its_urls(alone):
    async with openai_worker.running() as worker:
        rows = [
            {"model": "Llama3-8B", "url": f"{worker.url}/v1/chat/completions"},
            {"model": "SuperImage", "url": f"{worker.url}/draw"},
        ]
        worker.fail(listing=orjson.dumps({"project": "DecentralGPT", "data": rows}))
        attempts, found = await look(alone, worker.url)
        assert attempts[-1] == ("openai_http", "GET /v1/models", "200, 2 models")
        project = {"project": "DecentralGPT"}
        assert found["models"] == [
            {"name": "Llama3-8B", "type": 0, "api": rows[0]["url"], **project},
            {"name": "SuperImage", "api": rows[1]["url"], **project},
        ]


async def test_a_model_at_another_machines_address_cannot_be_registered(alone, worker):
    fields = {"project": "p", "model": "m", "api": "http://192.0.2.1:80/v1/chat/completions"}
    status, payload = await told(alone.http.post("/api/v0/ai/model/register", json=fields))
    assert (status, payload["error"]["param"]) == (400, "api")


async def test_another_nodes_list_is_recognised_with_types_and_projects(alone, mesh, worker):
    await alone.register(worker, project="team", model="painter", type=1)
    _, found = await look(mesh.one, f"http://{alone.context.listening.http}", dialect="openai")
    assert found["software"] == "modelvine"
    assert found["models"] == [{"name": "painter", "type": 1, "project": "team"}]


@pytest.mark.parametrize("list_status", [200, 404, 500])
async def test_a_server_without_a_list_of_models_is_recognised_by_its_openapi_paths(
    alone, list_status
):
    async with openai_worker.running() as worker:
        nothing = {"listing": b"{}", "list_status": list_status}
        paths = b'{"info":{"title":"own"},"paths":{"/v1/chat/completions":{"post":{}}}}'
        worker.fail(description=paths, **nothing)
        attempts, found = await look(alone, worker.url)
        assert attempts[-1][0] == "openai_http"
        assert attempts[-1][2].endswith("; /openapi.json has /v1/chat/completions")
        assert (found["dialect"], found["models"]) == ("openai_http", [])
        assert worker.received == []


@pytest.mark.parametrize(("status", "known"), [(422, True), (400, True), (404, False)])
async def test_a_server_is_recognised_by_its_refusal_of_an_empty_chat(alone, status, known):
    async def list_(_):
        return web.Response(status=500)

    async def chat(http):
        assert await http.read() == b"{}"
        return web.json_response({"detail": "messages"}, status=status)

    app = web.Application()
    app.router.add_get("/v1/models", list_)
    app.router.add_post("/v1/chat/completions", chat)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        attempts, found = await look(alone, url, dialect="openai")
        detail = f"; empty POST /v1/chat/completions: {status}" if known else ""
        assert attempts == [("openai_http", "GET /v1/models", f"500{detail}")]
        assert (found is not None) is known
    finally:
        await runner.cleanup()


async def test_a_tgi_server_is_recognised_by_its_info_before_its_list_of_models(alone):
    async with tgi_worker.running() as worker:
        worker.fail(info=b'{"model_id":"org/m","version":"3.0","max_total_tokens":4096}')
        attempts, found = await look(alone, worker.url)
        assert attempts == [("tgi_http", "GET /info", "200, TGI 3.0 with org/m")]
        assert found["dialect"] == "tgi_http"
        assert found["models"] == [{"name": "org/m", "context": 4096}]


async def test_a_server_of_embeddings_with_an_info_path_is_no_tgi_server(alone):
    async with tgi_worker.running() as worker:
        worker.fail(
            info=b'{"model_id":"org/e","model_type":{"embedding":{}},"max_input_length":512}'
        )
        attempts, found = await look(alone, worker.url, dialect="tgi")
        assert found is None
        assert attempts == [("tgi_http", "GET /info", "200, but no model_id with TGI's limits")]


async def test_a_llama_stack_server_is_recognised_by_reported_missing_fields(alone):
    async with llama_stack_worker.running() as worker:
        attempts, found = await look(alone, worker.url)
        assert [name for name, _, _ in attempts] == ["tgi_http", "openai_http", "llama_stack_http"]
        assert attempts[-1][2].endswith("it reports missing fields of /inference")
        assert (found["software"], found["models"]) == ("Llama Stack", [])


async def test_a_localai_backend_is_recognised_by_its_health(alone):
    async with localai_worker.running() as worker:
        address = worker.url.partition("://")[2]
        for api in (address, f"grpc://{address}", f"grpc+localai://{address}"):
            attempts, found = await look(alone, api)
            assert attempts[-1] == ("localai_grpc", "Health of backend.Backend", "'OK'")
            assert found == {
                "dialect": "localai_grpc",
                "api": f"grpc+localai://{address}",
                "software": "LocalAI backend",
                "models": [],
            }


async def test_a_remotellm_server_is_recognised_by_its_llm_type_after_health_is_missing(alone):
    async with remotellm_worker.running() as worker:
        address = worker.url.partition("://")[2]
        attempts, found = await look(alone, f"grpc://{address}")
        assert [name for name, _, _ in attempts] == ["localai_grpc", "remotellm_grpc"]
        assert attempts[0][2].startswith("UNIMPLEMENTED")
        assert (found["api"], found["software"]) == (f"grpc+remotellm://{address}", "RemoteLLM")
        assert len(found["models"]) == 1


async def test_where_nothing_listens_each_dialect_reports_its_try(alone):
    attempts, found = await look(alone, "http://127.0.0.1:9")
    assert found is None
    assert {outcome for _, _, outcome in attempts} == {"nothing listens there"}
    assert len(attempts) == len([name for name in dialects.NAMES if name.endswith("_http")])


async def test_a_server_of_another_protocol_is_not_taken_for_a_worker(alone):
    async def chatter(reader, writer):
        await reader.read(100)
        writer.write(b"220 mail ready\r\n")

    async def silence(_, __):
        await asyncio.Event().wait()

    for serve, reason in (
        (chatter, "it is not an HTTP server; if it speaks TLS, use https://"),
        (silence, "no answer within 1 s"),
    ):
        async with raw(serve) as url:
            attempts, found = await look(alone, url)
            assert (found, {outcome for _, _, outcome in attempts}) == (None, {reason})


async def test_a_server_that_requires_a_key_is_recognised_with_it(alone):
    async with openai_worker.running() as worker:
        worker.fail(status=401)
        attempts, found = await look(alone, worker.url, dialect="openai")
        assert found is None
        ((_, _, outcome),) = attempts
        assert "--header" in outcome
        worker.fail()
        _, found = await look(alone, worker.url, headers={"Authorization": "Bearer k"})
        assert found is not None
        assert worker.probed[-1].headers["authorization"] == "Bearer k"


async def test_a_server_that_still_loads_its_model_is_reported_as_waiting(alone):
    async with openai_worker.running() as worker:
        worker.fail(status=503)
        call = alone.http.post("/api/v1/recognise", json={"api": worker.url})
        _, payload = await told(call)
        assert payload["found"] is None
        assert payload["tries"][-1]["waits"] is True


async def test_a_server_that_accepts_but_is_silent_is_reported_as_waiting_by_all_that_asked(alone):
    async def serve(reader, writer):
        await reader.read()

    async with raw(serve) as url:
        _, payload = await told(alone.http.post("/api/v1/recognise", json={"api": url}))
    assert payload["found"] is None
    assert [(attempt["dialect"], attempt["waits"]) for attempt in payload["tries"]] == [
        (name, True) for name in ("tgi_http", "openai_http", "llama_stack_http")
    ]


async def test_a_worker_that_is_unresponsive_while_it_works_for_this_node_is_busy(alone):
    async with openai_worker.running() as worker:
        await alone.register(worker)
        worker.fail(hang=True, status=401)
        fields = {"api": worker.url, "dialect": "openai"}
        body = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}
        async with asyncio.TaskGroup() as group:
            task = group.create_task(told(alone.http.post("/v1/chat/completions", json=body)))
            await until(lambda: worker.received)
            _, payload = await told(alone.http.post("/api/v1/recognise", json=fields))
            assert (payload["found"], payload["busy"]) == (None, True)
            task.cancel()
        await until(lambda: not alone.context.router.in_flight)
        _, payload = await told(alone.http.post("/api/v1/recognise", json=fields))
        assert "busy" not in payload


async def test_recognition_needs_the_right_to_register_and_an_address_of_this_machine(alone):
    far = {"X-Forwarded-For": "203.0.113.9"}
    fields = {"api": "http://127.0.0.1:9"}
    assert (await told(alone.http.post("/api/v1/recognise", json=fields, headers=far)))[0] == 403
    for api in ("http://192.0.2.1:80", "192.0.2.1:80", f"http://{alone.context.listening.http}"):
        status, payload = await told(alone.http.post("/api/v1/recognise", json={"api": api}))
        assert (status, payload["error"]["param"]) == (400, "api")


async def test_a_key_in_a_file_is_read_only_with_the_control_token(alone, tmp_path):
    (tmp_path / "key").write_text("k")
    fields = {"api": "http://127.0.0.1:9", "headers": {"x-key": f"@{tmp_path}/key"}}
    assert (await told(alone.http.post("/api/v1/recognise", json=fields)))[0] == 403
    token = {"Authorization": f"Bearer {TOKEN}"}
    assert (await told(alone.http.post("/api/v1/recognise", json=fields, headers=token)))[0] == 200


def test_a_scheme_or_a_dialect_leaves_one_candidate():
    for fields in (
        {"api": "tgi+http://127.0.0.1:1"},
        {"api": "http://127.0.0.1:1", "dialect": "tgi"},
        {"api": "127.0.0.1:1", "dialect": "tgi_http"},
    ):
        ((name, worker),) = candidates(fields, HERE)
        assert (name, worker.dialect, worker.api) == ("tgi_http", "tgi_http", "http://127.0.0.1:1")


@pytest.mark.parametrize(
    "given",
    [
        {"api": ""},
        {"api": "ftp://127.0.0.1:1"},
        {"api": "http://"},
        {"api": "127.0.0.1:1", "dialect": "klingon"},
        {"api": "127.0.0.1:1", "dialect": "peer"},
        {"api": "grpc://127.0.0.1:1", "dialect": "tgi"},
        {"api": "127.0.0.1:1", "headers": {"host": "x"}},
        {"api": 5},
        {"api": "127.0.0.1:1", "headers": 5},
    ],
    ids=str,
)
def test_an_address_that_cannot_be_checked_is_refused(given):
    with pytest.raises((WrongParameter, Unparseable)):
        candidates(given, HERE)
