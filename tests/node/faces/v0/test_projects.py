"""Registering and unregistering, row by row of the interface's table, and queries about projects, models and nodes."""

import asyncio
import io
import logging

import orjson
import pytest

from registry.records import ModelType
from registry.store import Space
from router.ssrf_guard import ELSEWHERE
from tests.node.faces.assembly import TOKEN, told, until
from tests.workers.raw import raw

PROJECT = "/api/v0/ai/project"
MODEL = "/api/v0/ai/model"
API = "http://127.0.0.1:1042/v1/chat/completions"
ROW = {"model": "Llama3-70B", "api": API, "type": 0}
WHOLE = {"project": "DecentralGPT", "models": [ROW]}
ONE = {"project": "DecentralGPT", **ROW}


def services(node):
    """Return the services of a node, as (project, model, cid)."""
    return {(s.project, s.model, s.cid) for s in node.context.registry.own_record.services}


async def register(node, path=PROJECT, **fields):
    status, body = await told(node.http.post(f"{path}/register", json=fields))
    assert (status, body["code"], body["message"]) == (200, 0, "ok")


class TestSuccess:
    """Row 1: 200, code 0, `ok`."""

    async def test_registering_a_project_works_with_the_seeds_example(self, alone):
        await register(alone, **WHOLE)
        assert services(alone) == {("DecentralGPT", "Llama3-70B", "")}

    async def test_registering_a_project_replaces_its_whole_list_here(self, alone):
        await register(alone, **WHOLE)
        await register(alone, MODEL, **ONE | {"project": "other"})
        await register(alone, project="DecentralGPT", models=[ROW | {"model": "new"}])
        assert services(alone) == {("DecentralGPT", "new", ""), ("other", "Llama3-70B", "")}

    @pytest.mark.parametrize("models", [[], None])
    async def test_an_empty_list_removes_the_project(self, alone, models):
        await register(alone, **WHOLE)
        await register(alone, project="DecentralGPT", models=models)
        assert services(alone) == set()

    async def test_registering_a_model_adds_or_replaces_one_replica(self, alone):
        await register(alone, MODEL, **ONE)
        await register(alone, MODEL, **ONE, cid="second")
        await register(alone, MODEL, **ONE | {"api": "http://localhost:1043"})
        assert services(alone) == {
            ("DecentralGPT", "Llama3-70B", ""),
            ("DecentralGPT", "Llama3-70B", "second"),
        }
        key = "DecentralGPT", "Llama3-70B", "", ModelType.TEXT
        assert alone.context.agent.workers.by_key[key].api == "http://localhost:1043"

    async def test_a_registration_is_stored_when_it_is_answered(self, alone):
        await register(alone, MODEL, **ONE)
        assert len(await alone.store.read(Space.WORKERS)) == 1

    async def test_unregistering_a_project_removes_all_of_it(self, alone):
        await register(alone, **WHOLE)
        call = alone.http.post(f"{PROJECT}/unregister", json={"project": "DecentralGPT"})
        assert await told(call) == (200, {"code": 0, "message": "ok"})
        assert services(alone) == set()

    async def test_unregistering_the_last_model_removes_the_project(self, alone):
        await register(alone, MODEL, **ONE)
        fields = {"project": "DecentralGPT", "model": "Llama3-70B"}
        call = alone.http.post(f"{MODEL}/unregister", json=fields)
        assert await told(call) == (200, {"code": 0, "message": "ok"})
        _, listed = await told(alone.http.get("/api/v0/ai/projects/list"))
        assert listed["data"] == []

    async def test_unregistering_removes_only_the_named_replica(self, alone):
        await register(alone, MODEL, **ONE)
        await register(alone, MODEL, **ONE, cid="c")
        fields = {"project": "DecentralGPT", "model": "Llama3-70B", "cid": "c"}
        await told(alone.http.post(f"{MODEL}/unregister", json=fields))
        assert services(alone) == {("DecentralGPT", "Llama3-70B", "")}


@pytest.mark.parametrize(
    ("path", "asked"),
    [
        (PROJECT, {"project": "nothing"}),
        (MODEL, {"project": "nothing", "model": "m"}),
        (MODEL, {"project": "nothing", "model": "m", "cid": "c"}),
    ],
)
async def test_unregistering_what_is_missing_is_200_not_existed(alone, path, asked):
    call = alone.http.post(f"{path}/unregister", json=asked)
    assert await told(call) == (200, {"code": 0, "message": "not existed"})


FORWARDED = {"X-Forwarded-For": "203.0.113.9"}
EVERY = (
    f"{PROJECT}/register",
    f"{PROJECT}/unregister",
    f"{MODEL}/register",
    f"{MODEL}/unregister",
)


@pytest.mark.parametrize("path", EVERY)
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"project=x",
        b"[]",
        b'"x"',
        b"null",
        b"\xff",
        b'{"project": 5}',
        b'{"project": ["x"]}',
        b'{"project": {"name": "x"}}',
        b'{"project": "\\ud800"}',
        b'{"project": ' + b"[" * 50_000,
    ],
    ids=lambda body: repr(body[:24]),
)
async def test_a_body_that_is_not_json_or_of_wrong_types_is_a_parsing_error(
    alone, path, body, caplog
):
    headers = {"Content-Type": "application/json"}
    status, payload = await told(alone.http.post(path, data=body, headers=headers))
    assert (status, payload["code"], payload["message"]) == (400, 1002, "Parsing error")
    assert payload["error"]["message"] == "Parsing error"
    assert services(alone) == set()
    assert not [r for r in caplog.records if r.levelno >= logging.WARNING]


WRONG_ROWS = [
    {"models": "x"},
    {"models": {"model": "x"}},
    {"models": ["x"]},
    {"models": [None]},
    {"models": [ROW | {"model": 5}]},
    {"models": [ROW | {"api": 5}]},
    {"models": [ROW | {"type": "0"}]},
    {"models": [ROW | {"type": 0.5}]},
    {"models": [ROW | {"type": True}]},
    {"models": [ROW | {"cid": 5}]},
    {"models": [ROW | {"dialect": 5}]},
    {"models": [ROW | {"capacity": "4"}]},
    {"models": [ROW | {"headers": ["a: b"]}]},
    {"models": [ROW | {"load": "a=b"}]},
    {"models": [ROW | {"template": 5}]},
]


@pytest.mark.parametrize("given", WRONG_ROWS, ids=str)
async def test_wrong_types_inside_a_project_are_a_parsing_error(alone, given):
    status, payload = await told(
        alone.http.post(f"{PROJECT}/register", json={"project": "p", **given})
    )
    assert (status, payload["code"], payload["message"]) == (400, 1002, "Parsing error")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"project": ""}, "project name can not be empty"),
        ({"project": None}, "project name can not be empty"),
        ({"model": ""}, "model name can not be empty"),
        ({"model": None}, "model name can not be empty"),
        ({"api": ""}, "model api can not be empty"),
        ({"api": None}, "model api can not be empty"),
        ({"api": "http://10.255.255.1:80"}, ELSEWHERE),
        ({"api": "http://example.com:80"}, ELSEWHERE),
        ({"api": "http://0.0.0.0:80"}, ELSEWHERE),
    ],
    ids=str,
)
async def test_each_error_of_the_table_has_the_tables_message(alone, change, message):
    for path, fields in ((MODEL, ONE | change), (PROJECT, _as_project(ONE | change))):
        status, payload = await told(alone.http.post(f"{path}/register", json=fields))
        assert (status, payload["code"], payload["message"]) == (400, 1001, message)
    assert services(alone) == set()


def _as_project(row):
    rest = {name: value for name, value in row.items() if name != "project"}
    return {"project": row["project"], "models": [rest]}


@pytest.mark.parametrize("name", ["project", "model"])
@pytest.mark.parametrize("path", [f"{PROJECT}/unregister", f"{MODEL}/unregister"])
async def test_unregistering_without_a_name_is_refused(alone, path, name):
    fields = {"project": "p", "model": "m"} | {name: ""}
    if path.startswith(PROJECT) and name == "model":
        fields = {"PROJECT": ""}
    status, payload = await told(alone.http.post(path, json=fields))
    assert (status, payload["code"]) == (400, 1001)
    assert payload["message"].endswith("name can not be empty")


@pytest.mark.parametrize(
    "change",
    [
        {"api": "no url"},
        {"api": "127.0.0.1:1042"},
        {"api": "http://"},
        {"api": "http://[::1"},
        {"api": "http://127.0.0.1:99999"},
        {"api": "http://127.0.0.1:port"},
        {"api": "http://127.0.0.1:0"},
        {"api": "ftp://127.0.0.1:21"},
        {"api": "unix:///tmp/worker"},
        {"api": "http://user:password@127.0.0.1:80"},
        {"api": "http://127.0.0.1:80/\n"},
        {"api": "http://127.0.0.1:80/" + "x" * 3_000},
        {"type": 16},
        {"type": -1},
        {"type": 1 << 60},
        {"project": "p" * 257},
        {"project": "tab\there"},
        {"model": "ü" * 129},
        {"model": "zero\x00"},
        {"cid": "c" * 257},
        {"cid": "c "},
        {"project": " p"},
        {"dialect": "klingon"},
        {"dialect": "peer"},
        {"dialect": "../openai_http"},
        {"worker_model": "w" * 257},
        {"capacity": -1},
        {"capacity": 10**9},
        {"context": -1},
        {"context": 2**31},
        {"headers": {"host": "evil"}},
        {"headers": {"x-key": "two\r\nlines: here"}},
        {"load": {"a": {}}},
        {"template": "jinja"},
        {"capacity": 3, "max_concurrency": 4},
    ],
    ids=lambda change: str(change)[:48],
)
async def test_an_invalid_value_is_refused_and_its_field_named(alone, change):
    status, payload = await told(alone.http.post(f"{MODEL}/register", json=ONE | change))
    assert (status, payload["code"]) == (400, 1001)
    assert payload["error"]["param"] in change
    assert payload["message"]
    assert services(alone) == set()


async def test_a_model_listed_twice_is_refused_and_nothing_of_the_list_is_taken(alone):
    await register(alone, **WHOLE)
    fields = {"project": "DecentralGPT", "models": [ROW | {"model": "new"}, ROW, ROW]}
    status, payload = await told(alone.http.post(f"{PROJECT}/register", json=fields))
    assert (status, payload["code"]) == (400, 1001)
    assert "twice" in payload["message"]
    assert services(alone) == {("DecentralGPT", "Llama3-70B", "")}


async def test_replicas_of_one_model_may_be_registered_in_one_list(alone):
    await register(alone, project="p", models=[ROW | {"cid": "a"}, ROW | {"cid": "b"}])
    assert len(services(alone)) == 2


async def test_types_of_a_model_are_unregistered_one_by_one_or_all_at_once(alone, worker):
    row = {"project": "p", "model": "SuperImage"}

    async def register():
        for path, type_ in (("draw", 1), ("edit", 2)):
            fields = row | {"api": f"{worker.url}/{path}", "type": type_}
            assert (await told(alone.http.post(f"{MODEL}/register", json=fields)))[0] == 200

    def types():
        return sorted(int(w.service.type) for w in alone.context.agent.workers)

    await register()
    await register()
    assert types() == [1, 2]
    _, payload = await told(alone.http.post(f"{MODEL}/unregister", json=row | {"type": 1}))
    assert (payload["message"], types()) == ("ok", [2])
    await register()
    _, payload = await told(alone.http.post(f"{MODEL}/unregister", json=row))
    assert (payload["message"], types()) == ("ok", [])


async def test_one_invalid_model_refuses_its_whole_list(alone):
    fields = {"project": "p", "models": [ROW, ROW | {"model": ""}]}
    status, _ = await told(alone.http.post(f"{PROJECT}/register", json=fields))
    assert status == 400
    assert services(alone) == set()


async def test_more_models_than_a_record_holds_are_refused_as_a_whole(alone):
    rows = [ROW | {"model": f"m{n}"} for n in range(2_001)]
    status, payload = await told(
        alone.http.post(f"{PROJECT}/register", json={"project": "p", "models": rows})
    )
    assert (status, payload["code"], payload["error"]["code"]) == (400, 1001, "limit_reached")
    assert services(alone) == set()
    assert await alone.store.read(Space.WORKERS) == {}


async def test_a_registration_that_cannot_be_saved_is_500_and_changes_nothing(alone):
    await alone.store.close()
    status, payload = await told(alone.http.post(f"{MODEL}/register", json=ONE))
    assert (status, payload["code"]) == (500, 5000)
    assert "store" in payload["message"]
    assert services(alone) == set()
    assert len(alone.context.agent.workers) == 0


async def test_a_body_that_is_too_long_is_413(alone):
    body = io.BytesIO(orjson.dumps(ONE | {"x": "x" * 3_000_000}))
    headers = {"Content-Type": "application/json"}
    call = alone.http.post(f"{MODEL}/register", data=body, headers=headers)
    assert (await told(call))[0] == 413


async def test_a_node_is_not_its_own_worker(alone):
    ports = (alone.context.listening.http, alone.context.listening.link)
    for port in (address.rpartition(":")[2] for address in ports):
        fields = ONE | {"api": f"http://localhost:{port}"}
        status, payload = await told(alone.http.post(f"{MODEL}/register", json=fields))
        assert (status, payload["code"]) == (400, 1001)
        assert "this node itself" in payload["message"]


class TestKeys:
    async def test_are_matched_without_regard_to_case(self, alone):
        fields = {"Project": "p", "MODELS": [{"Model": "m", "API": API, "Type": 1, "CID": "c"}]}
        await register(alone, **fields)
        assert services(alone) == {("p", "m", "c")}

    async def test_that_are_exact_win(self, alone):
        await register(alone, MODEL, **ONE | {"Model": "wrong", "model": "right", "MODEL": "bad"})
        assert services(alone) == {("DecentralGPT", "right", "")}

    async def test_that_are_unknown_are_ignored(self, alone):
        await register(alone, MODEL, **ONE, wallet="0x1", gpu={"a": 1}, peers=[1])
        assert len(services(alone)) == 1


@pytest.mark.parametrize(
    ("given", "dialect"),
    [
        ({}, "openai_http"),
        ({"dialect": "openai"}, "openai_http"),
        ({"dialect": "openai_http"}, "openai_http"),
        ({"dialect": "tgi"}, "tgi_http"),
    ],
)
async def test_a_registration_may_have_more_fields_than_the_seeds(alone, given, dialect):
    more = {"type": 3, "worker_model": "local-name", "capacity": 4}
    await register(alone, MODEL, **ONE | more | given)
    (worker,) = alone.context.agent.workers
    assert (worker.dialect, worker.model, worker.capacity) == (dialect, "local-name", 4)
    assert worker.service.type == 3


async def test_a_registration_sets_headers_concurrency_load_and_template(alone):
    more = {
        "max_concurrency": 4,
        "headers": {"X-Key": "k"},
        "load": {"MMap": True},
        "template": "chatml",
    }
    await register(alone, MODEL, **ONE | more)
    await register(alone, project="p", models=[ROW | more])
    for worker in alone.context.agent.workers:
        assert (worker.capacity, worker.template) == (4, "chatml")
        assert worker.headers == (("x-key", "k"),)
        assert worker.load_options == {"MMap": True}


class TestWhatAWorkerSays:
    """A worker's description is fetched when it is registered, returned in the answer, and announced."""

    PROPERTIES = b'{"total_slots":4,"default_generation_settings":{"n_ctx":512},"modalities":{"vision":false}}'

    async def test_is_returned_and_announced_with_the_registration(self, alone, worker):
        worker.fail(properties=self.PROPERTIES, listing=b'{"data":[{"id":"file.gguf"}]}')
        fields = ONE | {"api": worker.url}
        status, payload = await told(alone.http.post(f"{MODEL}/register", json=fields))
        (learned,) = payload.pop("learned")
        assert (status, payload) == (200, {"code": 0, "message": "ok"})
        assert learned == {
            "project": "DecentralGPT",
            "model": "Llama3-70B",
            "cid": "",
            "software": "llama.cpp",
            "slots": 4,
            "context": 512,
            "input_modalities": ["text"],
            "output_modalities": ["text"],
            "models": ["file.gguf"],
        }
        (service,) = alone.context.registry.own_record.services
        assert (service.context, service.abilities) == (512, 17)

    async def test_yields_to_the_context_that_the_operator_set(self, alone, worker):
        worker.fail(properties=self.PROPERTIES)
        rows = [ROW | {"api": worker.url, "context": 100}, ROW | {"api": worker.url, "cid": "b"}]
        status, payload = await told(
            alone.http.post(f"{PROJECT}/register", json={"project": "p", "models": rows})
        )
        assert (status, len(payload["learned"])) == (200, 2)
        assert sorted(s.context for s in alone.context.registry.own_record.services) == [100, 512]
        assert len(worker.probed) == 2

    async def test_yields_to_the_modalities_that_the_operator_set(self, alone, worker):
        worker.fail(properties=self.PROPERTIES)
        await told(
            alone.http.post(
                f"{MODEL}/register",
                json=ONE | {"api": worker.url, "input_modalities": ["text", "image"]},
            )
        )
        (service,) = alone.context.registry.own_record.services
        assert (service.context, service.abilities) == (512, 3)

    async def test_refuses_images_for_a_model_without_vision(self, alone, worker):
        worker.fail(properties=self.PROPERTIES)
        await told(alone.http.post(f"{MODEL}/register", json=ONE | {"api": worker.url}))
        image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
        fields = {"model": "Llama3-70B", "messages": [{"role": "user", "content": [image]}]}
        status, payload = await told(alone.http.post("/v1/chat/completions", json=fields))
        assert (status, payload["error"]["code"]) == (400, "unsupported_parameter")
        assert payload["error"]["message"] == "'Llama3-70B' does not accept image input"
        assert worker.received == []


class TestAHeaderFromAFile:
    TOKEN = {"Authorization": f"Bearer {TOKEN}"}  # noqa: RUF012

    async def asked(self, alone, path, **headers):
        fields = ONE | {"headers": {"authorization": f"Bearer @{path}"}}
        call = alone.http.post(f"{MODEL}/register", json=fields, headers=headers)
        return await told(call)

    async def test_may_be_named_only_with_the_control_token(self, alone, tmp_path):
        (tmp_path / "key").write_text("k-1\n")
        for headers in ({}, {"Authorization": "Bearer guessed"}):
            status, payload = await self.asked(alone, tmp_path / "key", **headers)
            assert (status, payload["error"]["code"]) == (403, "not_allowed")
        fields = {
            "project": "p",
            "models": [ROW, ROW | {"cid": "b", "headers": {"k": "@/etc/passwd"}}],
        }
        status, _ = await told(alone.http.post(f"{PROJECT}/register", json=fields))
        assert status == 403
        assert services(alone) == set()

    async def test_must_exist_and_is_stored_as_a_path(self, alone, tmp_path):
        status, payload = await self.asked(alone, tmp_path / "key", **self.TOKEN)
        assert (status, payload["error"]["param"]) == (400, "headers")
        (tmp_path / "key").write_text("k-1\n")
        status, payload = await self.asked(alone, tmp_path / "key", **self.TOKEN)
        assert (status, payload["code"]) == (200, 0)
        (row,) = (await alone.store.read(Space.WORKERS)).values()
        assert b"k-1" not in row


class TestAChange:
    """A change is for callers on this machine or with the token, and never for a page of another origin."""

    @pytest.mark.parametrize("path", EVERY)
    async def test_is_refused_to_callers_elsewhere(self, alone, path):
        call = alone.http.post(path, json=ONE, headers=FORWARDED)
        status, payload = await told(call)
        assert (status, payload["code"], payload["error"]["type"]) == (
            403,
            1010,
            "permission_error",
        )

    async def test_is_allowed_with_the_token(self, alone):
        headers = FORWARDED | {"Authorization": f"Bearer {TOKEN}"}
        call = alone.http.post(f"{MODEL}/register", json=ONE, headers=headers)
        assert (await told(call))[0] == 200

    async def test_is_refused_to_pages_of_other_origins_and_for_foreign_host_names(self, alone):
        for headers in ({"Origin": "https://evil.example"}, {"Host": "evil.example"}):
            call = alone.http.post(f"{MODEL}/register", json=ONE, headers=headers)
            assert (await told(call))[0] == 403

    async def test_must_come_as_json(self, alone):
        call = alone.http.post(
            f"{MODEL}/register", data=orjson.dumps(ONE), headers={"Content-Type": "text/plain"}
        )
        status, payload = await told(call)
        assert (status, payload["code"]) == (415, 1011)


class TestAsking:
    async def test_lists_projects_models_and_their_nodes(self, mesh, worker):
        await mesh.one.register(worker, type=1)
        await mesh.one.register(worker, project="q", model="other")
        await mesh.knows(mesh.two, "q/other")
        get = mesh.two.http.get
        assert (await told(get("/api/v0/ai/projects/list")))[1]["data"] == ["p", "q"]
        assert (await told(get("/api/v0/ai/projects/list?number=1")))[1]["data"] == ["p"]
        models = await told(get("/api/v0/ai/projects/models?project=q"))
        assert models == (200, {"code": 0, "message": "ok", "data": ["other"]})
        _, peers = await told(get("/api/v0/ai/projects/peers?project=p&model=tiny&number=5"))
        assert peers["data"] == [
            {
                "node_id": mesh.one.context.peer,
                "connectivity": 1,
                "latency": 0,
                "Idle": 0,
                "idle": 0,
                "cid": "",
            }
        ]

    async def test_a_peers_projects_come_from_the_registry_without_addresses(self, mesh, worker):
        await mesh.one.register(worker, capacity=3)
        await mesh.knows(mesh.two, "tiny")
        fields = {"node_id": mesh.one.context.peer}
        _, own = await told(mesh.one.http.post(f"{PROJECT}/peer", json=fields))
        _, other = await told(mesh.two.http.post(f"{PROJECT}/peer", json=fields))
        entry = {"Model": "tiny", "API": "", "Type": 0, "CID": "", "Idle": 0}
        spelt = {name.lower(): value for name, value in entry.items()}
        assert other["data"] == {"p": [entry | spelt]}
        assert own["data"] == {"p": [entry | spelt | {"API": worker.url, "api": worker.url}]}

    @pytest.mark.parametrize("capacity", [0, 1, 3])
    async def test_idle_counts_requests_in_flight_so_0_is_free(self, mesh, worker, capacity):
        await mesh.one.register(worker, capacity=capacity)
        await mesh.knows(mesh.two, "tiny")
        worker.fail(hang=True)

        async def idles():
            found = []
            for running in (mesh.one, mesh.two):
                fields = {"node_id": mesh.one.context.peer}
                _, payload = await told(running.http.post(f"{PROJECT}/peer", json=fields))
                (entry,) = payload["data"]["p"]
                path = "/api/v0/ai/projects/peers?project=p&model=tiny"
                (row,) = (await told(running.http.get(path)))[1]["data"]
                found += [entry["Idle"], entry["idle"], row["Idle"], row["idle"]]
            return found

        async def become(number):
            async with asyncio.timeout(10):
                while await idles() != [number] * 8:  # noqa: ASYNC110 (what other nodes say of it)
                    await asyncio.sleep(0.01)

        await become(0)
        async with asyncio.TaskGroup() as group:
            fields = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}
            calls = [
                group.create_task(told(running.http.post("/v1/chat/completions", json=fields)))
                for running in (mesh.one, mesh.two)
            ]
            await become(2)
            for call in calls:
                call.cancel()
        await become(0)

    async def test_a_workers_address_is_hidden_from_callers_elsewhere(self, alone, worker):
        await alone.register(worker)
        call = alone.http.post(
            f"{PROJECT}/peer",
            json={"node_id": alone.context.peer},
            headers={"X-Forwarded-For": "203.0.113.9"},
        )
        assert (await told(call))[1]["data"]["p"][0]["api"] == ""

    async def test_a_node_that_is_lost_serves_nothing(self, mesh, worker):
        await mesh.one.register(worker)
        await mesh.knows(mesh.two, "tiny")
        mesh.one.context.registry.mesh.fail()
        presence = mesh.two.context.registry.presence
        await until(lambda: presence(mesh.one.context.peer).value == "lost")
        assert (await told(mesh.two.http.get("/api/v0/ai/projects/list")))[1]["data"] == []
        mesh.one.context.registry.mesh.recover()

    @pytest.mark.parametrize(
        ("path", "status"),
        [
            ("/api/v0/ai/projects/list?number=0", 200),
            ("/api/v0/ai/projects/list?number=-1", 400),
            ("/api/v0/ai/projects/list?number=x", 400),
            ("/api/v0/ai/projects/list?number=99999999999999999999", 400),
            ("/api/v0/ai/projects/models", 400),
            ("/api/v0/ai/projects/peers?project=p", 400),
            ("/api/v0/ai/projects/models?project=unknown", 200),
        ],
    )
    async def test_with_a_wrong_or_missing_parameter_is_400(self, alone, path, status):
        assert (await told(alone.http.get(path)))[0] == status

    @pytest.mark.parametrize("number", ["number=0", "number=", "number=00", "x=1"])
    async def test_number_0_means_the_default_of_100(self, alone, worker, number):
        for i in range(105):
            await alone.register(worker, model=f"m{i}")
        _, payload = await told(alone.http.get(f"/api/v0/ai/projects/models?project=p&{number}"))
        assert len(payload["data"]) == 100

    async def test_about_an_unknown_node_is_404_and_about_an_invalid_one_400(self, alone, stranger):
        for node, status in ((stranger, 404), ("nonsense", 404), ("no name", 400), ("", 400)):
            call = alone.http.post(f"{PROJECT}/peer", json={"node_id": node})
            assert (await told(call))[0] == status


async def test_a_worker_that_does_not_answer_is_registered_with_a_warning_that_says_why(alone):
    async def serve(reader, writer):
        await reader.read(1)

    async with raw(serve) as url:
        _, payload = await told(alone.http.post(f"{MODEL}/register", json=ONE | {"api": url}))
    assert payload["warnings"] == [
        f"no answer from {url} for DecentralGPT/Llama3-70B: it closes the connection without an answer, as a relay that "
        "does not reach it; if it speaks TLS, use https://; it is registered anyway, and callers get 503 until it answers"
    ]
