"""OpenAI's interface at a node: bytes pass through, streams flow, failures are reported, hanging up reaches the worker."""

import asyncio
import logging
from contextlib import AsyncExitStack

import aiohttp
import openai
import orjson
import pytest

from node.config.settings import NodeSettings, Settings
from registry.members.liveness import Presence
from registry.mesh.memory import MemoryNet
from registry.records import Standing
from registry.signing import Identity
from router.dialects.openai_http.endpoints import endpoint
from router.openai import multipart
from router.requests import MODEL_KINDS, STORES
from tests.node.faces.assembly import Pair, World, node, settings_of, told, until
from tests.workers.openai_worker import WORDS, OpenAIWorker, running

CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "a secret prompt"}]}
PATH = "/v1/chat/completions"
STRANGER = Identity(bytes(range(32))).peer


class TestAnAnswer:
    async def test_is_the_workers_own_and_names_the_node_that_gave_it(self, served):
        async with served.http.post(PATH, json=CHAT) as response:
            body = await response.json()
            assert response.status == 200
            assert body["choices"][0]["message"]["content"] == "".join(WORDS)
            assert response.headers["x-modelvine-node"] == served.context.peer
            assert response.headers["x-modelvine-route"] == "local"
            assert response.headers["x-modelvine-attempts"] == "1"
            assert response.headers["Content-Length"]

    async def test_carries_the_callers_request_id_or_a_new_one(self, served, worker):
        async with served.http.post(PATH, json=CHAT, headers={"x-request-id": "my.id-1"}) as r:
            assert r.headers["x-request-id"] == "my.id-1"
        assert worker.received[-1].headers["x-request-id"] == "my.id-1"
        for bad in ("with space", "x" * 65, "sl/ash"):
            async with served.http.post(PATH, json=CHAT, headers={"x-request-id": bad}) as r:
                assert len(r.headers["x-request-id"]) == 32

    @pytest.mark.parametrize("prefix", ["/v1", "/v1/openai/v1"])
    @pytest.mark.parametrize("kind", MODEL_KINDS)
    async def test_comes_on_every_path_that_runs_a_model(self, served, worker, prefix, kind):
        async with served.http.post(f"{prefix}/{kind.value}", json=CHAT) as response:
            assert response.status == 200
        assert worker.received[-1].path == endpoint("", kind).path

    @pytest.mark.parametrize("place", ["serving", "asked"])
    async def test_in_a_stream_ends_with_done_where_the_worker_omits_it(self, mesh, worker, place):
        node = await mesh.offers(place, worker)
        ends = []
        for faults in ({"finish": "stop"}, {"finish": "stop", "no_done": True}, {"no_done": True}):
            worker.fail(**faults)
            async with node.http.post(PATH, json=CHAT | {"stream": True}) as response:
                text = await response.text()
            assert text.count("[DONE]") <= 1
            ends.append(text.endswith("\n\ndata: [DONE]\n\n"))
        # A stream without a finish reason and without an end marker may have broken off.
        assert ends == [True, True, False]
        worker.fail(finish="stop", no_done=True, die_after=7, delay_between=0.01)
        async with node.http.post(PATH, json=CHAT | {"stream": True}) as response:
            text = await response.text()
        assert "[DONE]" not in text

    async def test_in_a_stream_has_no_done_where_llama_stacks_client_asks(self, served, worker):
        fields = CHAT | {"stream": True}
        for crlf in (False, True):
            worker.fail(crlf=crlf)
            async with served.http.post(PATH, json=fields) as response:
                usual = await response.read()
            async with served.http.post("/v1/openai/v1/chat/completions", json=fields) as response:
                assert response.content_type == "text/event-stream"
                end = b"data: [DONE]\r\n\r\n" if crlf else b"data: [DONE]\n\n"
                assert await response.read() == usual.removesuffix(end) != usual

    async def test_in_a_stream_that_breaks_is_cut_off_for_llama_stacks_client(self, mesh, worker):
        await mesh.one.register(worker)
        await mesh.knows(mesh.two, "tiny")
        worker.fail(die_after=2, delay_between=0.05)
        fields = CHAT | {"stream": True}
        for served in (mesh.one, mesh.two):
            await self.cut_off(served, fields)

    async def cut_off(self, served, fields):
        async with served.http.post("/v1/openai/v1/chat/completions", json=fields) as response:
            assert response.status == 200
            with pytest.raises(aiohttp.ClientPayloadError):
                await response.read()

    @pytest.mark.parametrize("kind", sorted(STORES))
    async def test_of_a_store_comes_without_the_v1_prefix_too_as_in_localai(
        self, served, worker, kind
    ):
        fields = {"store": "tiny", "keys": [[0.5]], "values": ["a"], "key": [0.5]}
        async with served.http.post(f"/{kind.value}", json=fields) as response:
            assert response.status == 200
        assert orjson.loads(worker.received[-1].body) == fields | {"model": "tiny"}

    async def test_of_a_sound_may_be_asked_for_with_elevenlabs_model_id(self, served, worker):
        fields = {"model_id": "tiny", "text": "rain"}
        async with served.http.post("/v1/sound-generation", json=fields) as response:
            assert response.status == 200
        assert orjson.loads(worker.received[-1].body)["model"] == "tiny"
        status, body = await told(served.http.post("/v1/sound-generation", json={"text": "rain"}))
        assert status == 400
        assert body["error"]["message"] == "`model` or `model_id` must name a model"

    async def test_reaches_a_client_of_another_node(self, mesh, worker):
        await mesh.one.register(worker)
        await mesh.knows(mesh.two, "tiny")
        async with mesh.two.http.post(PATH, json=CHAT) as response:
            assert response.status == 200
            assert response.headers["x-modelvine-node"] == mesh.one.context.peer
            assert response.headers["x-modelvine-route"] == "direct"

    async def test_that_is_long_comes_in_pieces_and_whole(self, served, worker):
        worker.fail(pad_bytes=9_000_000)
        async with served.http.post(PATH, json=CHAT) as response:
            assert len((await response.json())["pad"]) == 9_000_000

    async def test_that_is_long_and_breaks_off_is_a_truncated_answer(self, served, worker):
        worker.fail(pad_bytes=9_000_000, announce_bytes=12_000_000, die_after=0)
        async with served.http.post(PATH, json=CHAT) as response:
            assert response.status == 200
            with pytest.raises(aiohttp.ClientPayloadError):
                await response.read()


class TestARequest:
    async def test_reaches_the_worker_byte_for_byte(self, served, worker):
        body = b'{ "model":"tiny",  "messages": [], "unknown": {"kept": 1.50} }'
        headers = {"Content-Type": "application/json; charset=utf-8"}
        async with served.http.post(PATH, data=body, headers=headers) as response:
            assert response.status == 200
        assert worker.received[-1].body == body

    async def test_never_carries_the_callers_keys_to_a_worker(self, served, worker):
        headers = {"Authorization": "Bearer secret", "Cookie": "a=b", "traceparent": "00-1-2-01"}
        headers["accept"] = "application/json"
        async with served.http.post(PATH, json=CHAT, headers=headers) as response:
            assert response.status == 200
        received = worker.received[-1].headers
        assert "secret" not in str(received)
        assert "Cookie" not in received
        assert received["accept"] == "application/json"

    async def test_may_come_without_a_content_type_when_it_looks_like_json(self, served):
        skip = {"skip_auto_headers": ["Content-Type"]}
        async with served.http.post(PATH, data=orjson.dumps(CHAT), **skip) as response:
            assert response.status == 200

    async def test_may_be_a_form_whose_files_pass_unchanged(self, served, worker):
        form = aiohttp.FormData()
        form.add_field("model", "tiny")
        form.add_field("prompt", "a hat")
        form.add_field("image", b"\x89PNG\r\n\x00", filename="a.png", content_type="image/png")
        async with served.http.post("/v1/images/edits", data=form) as response:
            assert response.status == 200
        assert b"\x89PNG\r\n\x00" in worker.received[-1].body

    async def test_may_name_the_project_in_the_models_name_the_body_or_a_header(self, served):
        for fields, headers in (
            ({"model": "p/tiny"}, {}),
            ({"project": "p"}, {}),
            ({}, {"x-modelvine-project": "p"}),
            ({}, {"x-modelvine-node": served.context.peer}),
            ({}, {"x-modelvine-cid": ""}),
        ):
            async with served.http.post(PATH, json=CHAT | fields, headers=headers) as response:
                assert response.status == 200, fields

    @pytest.mark.parametrize("place", ["serving", "asked"])
    @pytest.mark.parametrize(
        ("said", "left"),
        [
            (b'"project": "p",', b""),
            (b'"models": ["tiny", "other"],', b""),
            (
                b'"models": null, "project":"p","x":{"project" : 1.50 },',
                b'"x":{"project" : 1.50 },',
            ),
        ],
        ids=["project", "models", "both"],
    )
    async def test_reaches_the_worker_without_fields_that_only_nodes_understand(
        self, mesh, worker, place, said, left
    ):
        asked_node = await mesh.offers(place, worker)
        body = b'{ %b"model":"tiny" ,"temperature":1e0, "messages":[]}'
        headers = {"content-type": "application/json"}
        async with asked_node.http.post(PATH, data=body % said, headers=headers) as response:
            assert response.status == 200
        assert worker.received[-1].body == body % left

    @pytest.mark.parametrize("place", ["serving", "asked"])
    async def test_as_a_form_reaches_the_worker_without_its_project(self, mesh, worker, place):
        asked_node = await mesh.offers(place, worker)
        form = aiohttp.FormData()
        for name, value in (("project", "p"), ("model", "tiny"), ("prompt", "a project")):
            form.add_field(name, value)
        form.add_field("image", b"\x89PNG\r\n\x00", filename="a.png", content_type="image/png")
        async with asked_node.http.post("/v1/images/edits", data=form) as response:
            assert response.status == 200
        received = worker.received[-1]
        parts = multipart.parts(received.body, received.headers["content-type"])
        assert [part.name for part in parts] == ["model", "prompt", "image"]

    @pytest.mark.parametrize(
        "headers",
        [
            {"x-modelvine-project": "q"},
            {"x-modelvine-cid": "another"},
            {"x-modelvine-node": STRANGER},
        ],
    )
    async def test_that_pins_an_absent_project_cid_or_node_is_not_answered_by_another(
        self, served, worker, headers
    ):
        status, body = await told(served.http.post(PATH, json=CHAT, headers=headers))
        assert (status, body["code"]) == (404, 1017)
        assert worker.received == []

    async def test_that_another_node_forwarded_is_not_forwarded_again(self, mesh, worker):
        await mesh.one.register(worker)
        await mesh.knows(mesh.two, "tiny")
        headers = {"x-modelvine-hop": mesh.one.context.peer}
        async with mesh.two.http.post(PATH, json=CHAT, headers=headers) as response:
            assert response.status in (404, 503)
        assert worker.received == []


@pytest.fixture
async def called(worker):
    """Yield nodes named `gpu-1` and `gpu-2` that serve one model; a second `gpu-2` serves nothing, a second `gpu-1` has left."""
    world = World(MemoryNet())
    async with AsyncExitStack() as nodes:
        ones = [
            await nodes.enter_async_context(node(world, _named(name)))
            for name in ("gpu-1", "gpu-2", "gpu-2", "gpu-1")
        ]
        first, second, _, gone = ones
        await first.register(worker)
        await second.register(worker)
        await until(lambda: all(len(n.context.registry.catalog.held) == 4 for n in ones))
        await until(lambda: len(second.context.registry.catalog.offers.get("tiny", ())) == 2)
        await gone.context.registry.set_standing(Standing.LEFT)
        left = (gone.context.peer, Presence.LEFT)
        await until(lambda: first.context.registry.presence(left[0]) is left[1])
        yield first, second


def _named(name: str) -> Settings:
    return settings_of().model_copy(update={"node": NodeSettings(name=name)})


class TestANodeThatIsMeant:
    async def test_is_named_by_its_id_its_beginning_or_its_name(self, called):
        first = called[0].context.peer
        for header in ("gpu-1", first, first[:24]):
            pinned = {"x-modelvine-node": header}
            for _ in range(3):
                async with called[0].http.post(PATH, json=CHAT, headers=pinned) as response:
                    assert response.status == 200, await response.text()
                    # A name is claimed by its node; the id is proven.
                    assert response.headers["x-modelvine-node"] == first

    async def test_by_a_name_that_two_nodes_have_is_refused_with_both_ids(self, called):
        pinned = {"x-modelvine-node": "gpu-2"}
        status, body = await told(called[0].http.post(PATH, json=CHAT, headers=pinned))
        assert (status, body["error"]["code"]) == (400, "invalid_parameter")
        records = called[0].context.router.find_nodes("gpu-2")
        assert len(records) == 2
        assert all(record.node in body["message"] for record in records)

    @pytest.mark.parametrize(
        ("name", "status"), [("gpu-3", 404), ("12D3KooW", 404), ("12D3", 404), ("two words", 400)]
    )
    async def test_by_a_name_that_no_node_has_is_refused(self, called, name, status):
        pinned = {"x-modelvine-node": name}
        got, body = await told(called[0].http.post(PATH, json=CHAT, headers=pinned))
        assert (got, body["code"]) == (status, 1001)

    async def test_is_found_by_its_name_on_every_path_that_takes_a_node(self, called):
        one, peer = called[1], called[0].context.peer
        route = {"model": "tiny", "node": "gpu-1"}
        _, body = await told(one.http.get("/api/v1/route", params=route))
        assert [(c["node"], c["name"]) for c in body["candidates"]] == [(peer, "gpu-1")]
        fields = {"node_id": "gpu-1"}
        assert (await told(one.http.post("/api/v0/peer", json=fields)))[1]["peer_id"] == peer
        assert "p" in (await told(one.http.post("/api/v0/ai/project/peer", json=fields)))[1]["data"]
        assert (await told(one.http.post("/api/v0/host/info", json=fields)))[0] == 200
        chat = CHAT | fields | {"project": "p"}
        async with one.http.post("/api/v0/chat/completion", json=chat) as response:
            assert response.headers["x-modelvine-node"] == peer

    async def test_has_its_name_in_every_view(self, called):
        for path in ("/api/v1/nodes", "/api/v1/catalog"):
            rows = (await told(called[0].http.get(path)))[1]["nodes"]
            assert {row["node"]: row["name"] for row in rows}[called[1].context.peer] == "gpu-2"
        assert (await told(called[1].http.get("/api/v1/status")))[1]["name"] == "gpu-2"


class TestAListOfModels:
    """`models` in the body: names that are asked for in turn."""

    HELLO = CHAT["messages"]

    async def ask(self, asked_node, *models, **more):
        body = {"models": [*models], "messages": self.HELLO, **more}
        async with asked_node.http.post(PATH, json=body) as response:
            return response, await response.json()

    @pytest.fixture
    async def two_models(self, mesh, worker):
        async with running() as other:
            await mesh.one.register(worker, model="first")
            await mesh.one.register(other, model="second")
            await mesh.knows(mesh.two, "first")
            await mesh.knows(mesh.two, "second")
            yield mesh, worker, other

    @pytest.mark.parametrize("hops", [0, 1])
    async def test_is_answered_by_the_first_model_that_is_served(self, two_models, hops, caplog):
        mesh, worker, other = two_models
        asked_node = mesh.two if hops else mesh.one
        caplog.set_level(logging.INFO, "modelvine.requests")
        response, body = await self.ask(asked_node, "unheard-of", "second", "first")
        assert (response.status, body["model"]) == (200, "second")
        assert orjson.loads(other.received[-1].body) == {"model": "second", "messages": self.HELLO}
        assert worker.received == []
        # The log names the model that answered.
        await until(lambda: " model=second " in caplog.text)
        assert "unheard-of" not in caplog.text

    @pytest.mark.parametrize("hops", [0, 1])
    @pytest.mark.parametrize("status", [429, 500, 503])
    async def test_goes_on_to_the_next_when_all_attempts_failed(self, two_models, hops, status):
        mesh, worker, other = two_models
        worker.fail(status=status)
        asked_node = mesh.two if hops else mesh.one
        response, body = await self.ask(asked_node, "second", model="first")
        assert (response.status, body["model"]) == (200, "second")
        assert response.headers["x-modelvine-attempts"] == "2"
        assert (len(worker.received), len(other.received)) == (1, 1)

    async def test_stays_with_the_first_whose_worker_finds_fault_with_the_request(self, two_models):
        mesh, worker, other = two_models
        worker.fail(status=400)
        response, _ = await self.ask(mesh.one, "first", "second")
        assert response.status == 400
        assert other.received == []

    async def test_does_not_queue_while_another_has_a_slot(self, two_models):
        mesh, worker, _ = two_models
        await mesh.one.register(worker, model="first", capacity=1)
        worker.fail(delay_headers=2)
        async with asyncio.TaskGroup() as group:
            holder = group.create_task(self.ask(mesh.one, "first"))
            await until(lambda: worker.received)
            _, body = await self.ask(mesh.one, "first", "second")
            assert body["model"] == "second"
            assert not holder.done()

    async def test_waits_for_all_of_them_when_none_is_ready(self, worker):
        async with (
            node(World(MemoryNet()), settings_of(ready_timeout=8.0)) as one,
            running() as other,
        ):
            await one.register(worker, model="first")
            await one.register(other, model="second")
            for each in (worker, other):
                each.fail(status=503, refusal=TestAModelThatLoads.LLAMA_CPP)
            async with asyncio.TaskGroup() as group:
                asking = group.create_task(self.ask(one, "first", "second"))
                await until(lambda: one.context.router.held_count == 1)
                other.fail()
            assert asking.result()[1]["model"] == "second"

    async def test_of_unknown_models_is_404_and_an_empty_one_400(self, alone):
        response, body = await self.ask(alone, "x", "y")
        assert (response.status, body["error"]["code"]) == (404, "model_not_found")
        response, body = await self.ask(alone)
        assert (response.status, body["error"]["param"]) == (400, "models")


class TestAModelThatLoads:
    """Requests wait at the node whose worker loads the model, whichever node they came to."""

    LLAMA_CPP = b'{"error":{"message":"Loading model","type":"unavailable_error","code":503}}'

    @pytest.fixture
    async def patient(self, worker):
        world = World(MemoryNet())
        settings = settings_of(ready_timeout=8.0)
        async with node(world, settings) as one, node(world, settings) as two:
            await one.register(worker)
            await until(lambda: "tiny" in two.context.registry.catalog.offers)
            worker.fail(status=503, refusal=self.LLAMA_CPP)
            yield Pair(one, two)

    async def test_is_answered_at_every_node_once_it_is_loaded(self, patient, worker):
        async with asyncio.TaskGroup() as group:
            asking = [
                group.create_task(told(asked_node.http.post(PATH, json=CHAT)))
                for asked_node in (patient.one, patient.two, patient.two)
            ]
            await until(lambda: patient.one.context.router.held_count == 3)
            # Control paths answer meanwhile.
            status, _ = await told(patient.one.http.get("/v1/models"))
            assert status == 200
            assert not any(task.done() for task in asking)
            worker.fail()
        assert [task.result()[0] for task in asking] == [200] * 3
        assert patient.two.context.router.events["held"] == 0

    async def test_is_reported_as_loading_when_the_time_to_wait_is_over(self, mesh, worker):
        await mesh.one.register(worker)
        await mesh.knows(mesh.two, "tiny")
        with_eta = (
            b'{"error":{"code":"model_loading"},"loading":{"state":"loading","eta_seconds":12.5}}'
        )
        for refusal, eta, seconds in ((self.LLAMA_CPP, None, "5"), (with_eta, 12.5, "13")):
            worker.fail(status=503, refusal=refusal)
            for asked_node in (mesh.one, mesh.two):
                async with asked_node.http.post(PATH, json=CHAT) as response:
                    body = await response.json()
                    assert (response.status, body["error"]["code"]) == (503, "model_loading")
                    assert body["loading"] == {"state": "loading", "eta_seconds": eta}
                    assert response.headers["Retry-After"] == seconds

    async def test_is_no_longer_waited_for_when_the_caller_leaves_another_node(
        self, patient, worker
    ):
        async with asyncio.TaskGroup() as group:
            leaving = group.create_task(told(patient.two.http.post(PATH, json=CHAT)))
            await until(lambda: patient.one.context.router.held_count == 1)
            leaving.cancel()
        await until(lambda: not patient.one.context.router.held_count)
        assert patient.one.context.router.events["held_in_vain"] == 0


class TestAFailure:
    async def test_of_an_unknown_model_is_404_and_names_similar_models(self, served):
        status, body = await told(served.http.post(PATH, json=CHAT | {"model": "tinny"}))
        assert (status, body["code"], body["error"]["code"]) == (404, 1017, "model_not_found")
        assert "tiny" in body["message"]

    async def test_of_an_unreachable_worker_is_503_with_retry_after(self, served):
        await served.register(OpenAIWorker(url="http://127.0.0.1:9"))
        async with served.http.post(PATH, json=CHAT) as response:
            assert response.status == 503
            assert int(response.headers["Retry-After"]) >= 1
            assert response.headers["x-modelvine-attempts"] == "1"
            assert response.headers["x-request-id"]

    async def test_of_a_worker_with_retry_after_has_that_time_at_every_node(self, mesh, worker):
        await mesh.one.register(worker)
        await mesh.knows(mesh.two, "tiny")
        worker.fail(status=429, retry_after="30")
        for asked_node in (mesh.two, mesh.two, mesh.one):
            async with asked_node.http.post(PATH, json=CHAT) as response:
                body = await response.json()
                assert (response.status, body["error"]["code"]) == (429, "worker_busy")
                assert 25 < int(response.headers["Retry-After"]) <= 30
        assert len(worker.received) == 1
        status, body = await told(mesh.two.http.get("/api/v1/route?model=tiny"))
        (excluded,) = body["excluded"]
        assert (status, body["candidates"]) == (200, [])
        assert "requested a pause: " in excluded["reason"]
        assert 25 < excluded["retry_in"] <= 30

    async def test_of_the_worker_itself_is_502_without_the_workers_text(self, served, worker):
        worker.fail(status=500, refusal=b"Traceback: secret")
        status, body = await told(served.http.post(PATH, json=CHAT))
        assert (status, body["code"]) == (502, 1007)
        assert "secret" not in str(body)

    async def test_that_the_worker_blames_on_the_request_has_the_workers_text(self, served, worker):
        refusal = b'{"error": {"message": "context too long", "code": "ctx"}}'
        worker.fail(status=400, refusal=refusal)
        status, body = await told(served.http.post(PATH, json=CHAT))
        assert (status, body["message"], body["error"]["code"]) == (400, "context too long", "ctx")

    async def test_of_a_node_that_drains_sends_callers_elsewhere(self, served):
        await served.context.registry.set_standing(Standing.DRAINING)
        status, body = await told(served.http.post(PATH, json=CHAT))
        assert (status, body["code"]) == (503, 1017)
        assert "`modelvine undrain`" in body["message"]


BAD_BODIES = {
    "empty": b"",
    "cut short": b'{"model": "tiny"',
    "not JSON": b"model=tiny",
    "an array": b"[]",
    "a string": b'"tiny"',
    "null": b"null",
    "no model": b'{"messages": []}',
    "empty model": b'{"model": ""}',
    "model that is a number": b'{"model": 5}',
    "model that is a list": b'{"model": ["tiny"]}',
    "model that is endless": b'{"model": "' + b"x" * 10_000 + b'"}',
    "stream that is text": b'{"model": "tiny", "stream": "yes"}',
    "project that is a number": b'{"model": "tiny", "project": 7}',
    "half a surrogate": b'{"model": "\\ud800"}',
    "bytes that are no text": b'{"model": "\xff\xfe"}',
    "deep nesting": b'{"model": ' + b"[" * 100_000,
    "byte order marks of UTF-16": '{"model": "tiny"}'.encode("utf-16"),
}


class TestWhatIsBad:
    @pytest.mark.parametrize("body", BAD_BODIES.values(), ids=BAD_BODIES.keys())
    async def test_as_a_body_is_400_in_our_shape_and_leaves_no_traceback(
        self, served, worker, body, caplog
    ):
        headers = {"Content-Type": "application/json"}
        with caplog.at_level(logging.DEBUG):
            status, payload = await told(served.http.post(PATH, data=body, headers=headers))
        assert status == 400
        assert payload["code"] in (1001, 1002)
        assert payload["error"]["message"] == payload["message"]
        assert worker.received == []
        assert not [r for r in caplog.records if r.exc_info or "Traceback" in r.getMessage()]

    @pytest.mark.parametrize(
        "kind",
        ["text/plain", "application/x-www-form-urlencoded", "application/octet-stream", "nonsense"],
    )
    async def test_as_a_content_type_is_415(self, served, kind):
        call = served.http.post(PATH, data=b"{}", headers={"Content-Type": kind})
        status, payload = await told(call)
        assert (status, payload["error"]["code"]) == (415, "unsupported_media_type")

    @pytest.mark.parametrize("prefix", [b"", b"--b\r\n", b"--b\r\nContent-Disposition: x\r\n\r\n"])
    async def test_as_a_form_is_400(self, served, prefix):
        headers = {"Content-Type": "multipart/form-data; boundary=b"}
        call = served.http.post("/v1/images/edits", data=prefix, headers=headers)
        assert (await told(call))[0] == 400

    @pytest.mark.parametrize("name", ["x-modelvine-node", "x-modelvine-project"])
    async def test_as_a_pin_is_400(self, served, name):
        call = served.http.post(
            PATH, json=CHAT, headers={name: "\x85" if "project" in name else "no name"}
        )
        assert (await told(call))[0] == 400

    @pytest.mark.parametrize("path", ["/v1", "/v1/nothing", "/v2/chat/completions", "/%ff%00"])
    async def test_as_a_path_is_404(self, alone, path):
        status, body = await told(alone.http.get(path))
        assert (status, body["error"]["code"]) == (404, "unknown_path")
        assert "use" not in body["message"]

    @pytest.mark.parametrize("path", [PATH[3:], f"/v1{PATH}", f"/v1/{PATH[3:]}", f"{PATH}/"])
    async def test_as_a_base_url_is_404_that_names_the_right_path(self, alone, path):
        status, body = await told(alone.http.post(path, json=CHAT))
        assert (status, body["error"]["code"]) == (404, "unknown_path")
        assert body["message"].endswith(f"; use {PATH}")

    @pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "PATCH"])
    async def test_as_a_method_is_405_and_names_the_right_one(self, alone, method):
        async with alone.http.request(method, PATH) as response:
            assert response.status == 405
            assert response.headers["Allow"] == "POST"
            assert (await response.json())["code"] == 1011


class TestTheUnmodifiedClient:
    @pytest.fixture
    async def client(self, served):
        url = f"http://{served.context.listening.http}/v1"
        async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
            yield client

    async def test_chats(self, client):
        answer = await client.chat.completions.create(**CHAT)
        assert answer.choices[0].message.content == "".join(WORDS)

    async def test_streams(self, client):
        stream = await client.chat.completions.create(**CHAT, stream=True)
        texts = [chunk.choices[0].delta.content async for chunk in stream]
        assert texts == ["", *WORDS[1:]]

    async def test_sees_an_unknown_model_as_not_found(self, client):
        with pytest.raises(openai.NotFoundError) as caught:
            await client.chat.completions.create(**CHAT | {"model": "nothing"})
        assert caught.value.code == "model_not_found"

    async def test_sees_a_bad_request_as_one(self, client):
        with pytest.raises(openai.BadRequestError):
            await client.chat.completions.create(model="", messages=[])

    async def test_sees_a_stream_that_breaks_as_an_error(self, client, worker):
        worker.fail(die_after=2)
        stream = await client.chat.completions.create(**CHAT, stream=True)
        with pytest.raises(openai.APIError, match="broke"):
            async for _ in stream:
                pass

    async def test_lists_the_models(self, client):
        models = await client.models.list()
        assert [model.id for model in models.data] == ["tiny"]
        assert (await client.models.retrieve("p/tiny")).owned_by == "p"
