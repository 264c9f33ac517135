"""Clients of TGI over real HTTP, at the worker's node and one hop away, whichever protocol the worker speaks."""

import asyncio
import random

import aiohttp
import orjson
import pytest

from node.config.settings import FacesSettings
from node.faces.tgi import ENDPOINTS
from registry.mesh.memory import MemoryNet
from tests.node.faces.assembly import Pair, World, node, settings_of, told, until
from tests.workers import llama_stack_worker, localai_worker, tgi_worker
from tests.workers.openai_worker import WORDS

SAID = "".join(WORDS)
STREAMED = "".join(WORDS[1:])  # without the word that OpenAI's stub replaces by its role chunk
ASKED = {"inputs": "Once upon", "parameters": {"max_new_tokens": 20, "details": True}}
CHAT = {"model": "tgi", "messages": [{"role": "user", "content": "hi"}], "logit_bias": None}
BASE = "/tgi/p/tiny"
FAILED = b'{"error":"Request failed during generation: oh","error_type":"generation"}'
HALF = b'{"error":"Incomplete generation","error_type":"incomplete_generation"}'
VALIDATION = "Input validation error"


@pytest.fixture
async def tgi():
    async with tgi_worker.running() as worker:
        yield worker


@pytest.fixture(params=["serving", "asked"])
async def http(request, mesh: Pair, worker):
    """Return a session at a node whose worker speaks OpenAI's protocol, or one hop away from it."""
    await mesh.one.register(worker)
    await mesh.knows(mesh.two, "tiny")
    return (mesh.one if request.param == "serving" else mesh.two).http


@pytest.fixture(params=["serving", "asked"])
async def over_tgi(request, mesh: Pair, tgi):
    """Return a session like `http`, with a worker that speaks TGI's protocol itself."""
    await mesh.one.register(tgi, api=tgi.url.replace("http:", "tgi+http:"))
    await mesh.knows(mesh.two, "tiny")
    return (mesh.one if request.param == "serving" else mesh.two).http


@pytest.fixture
async def at_root(worker):
    settings = settings_of().model_copy(update={"faces": FacesSettings(default_model="p/tiny")})
    async with node(World(MemoryNet()), settings) as running:
        await running.register(worker)
        yield running.http


def events(text: str):
    found = [event for event in text.split("\n\n") if event and not event.startswith(":")]
    assert all(event.startswith("data:") for event in found)
    return [orjson.loads(event.removeprefix("data:")) for event in found]


async def streamed(call):
    async with call as response:
        assert (response.status, response.content_type) == (200, "text/event-stream")
        return events(await response.text())


class TestTexts:
    async def test_the_base_path_answers_with_a_list(self, http):
        status, payload = await told(http.post(BASE, json=ASKED))
        assert (status, payload[0]["generated_text"]) == (200, SAID)

    async def test_generate_answers_with_an_object(self, http, worker):
        async with http.post(f"{BASE}/generate", json=ASKED | {"model": "other"}) as response:
            assert (await response.json())["generated_text"] == SAID
            assert response.headers["x-compute-characters"] == "9"
        assert orjson.loads(worker.received[-1].body) == {
            "model": "tiny",
            "prompt": "Once upon",
            "max_tokens": 20,
            "temperature": 0.0,
            "logprobs": 1,
        }

    @pytest.mark.parametrize("path", ["", "/", "/generate_stream"])
    async def test_a_stream_ends_with_the_whole_text_and_its_details(self, http, path):
        *pieces, last = await streamed(http.post(BASE + path, json=ASKED | {"stream": True}))
        assert [piece["token"]["text"] for piece in pieces] == list(WORDS[1:])
        assert last["generated_text"] == STREAMED
        assert last["details"] == {
            "finish_reason": "eos_token",
            "generated_tokens": 6,
            "seed": None,
        }

    async def test_generate_never_streams(self, http):
        status, payload = await told(http.post(f"{BASE}/generate", json=ASKED | {"stream": True}))
        assert (status, payload["generated_text"]) == (200, SAID)

    async def test_a_tgi_workers_finish_reason_and_tokens_are_passed_on(self, over_tgi, tgi):
        tgi.fail(finish="length")
        async with over_tgi.post(f"{BASE}/generate", json=ASKED) as response:
            payload = await response.json()
            assert response.headers["x-prompt-tokens"] == "5"
            assert response.headers["x-generated-tokens"] == str(len(WORDS))
        assert payload["generated_text"] == SAID
        assert payload["details"]["finish_reason"] == "length"
        assert [token["id"] for token in payload["details"]["tokens"]] == list(range(len(WORDS)))
        assert "top_tokens" not in payload["details"]
        # The body is unchanged; a worker of another protocol would be sent TGI's defaults too.
        assert (tgi.received[-1].path, tgi.asked) == ("/generate", ASKED)

    async def test_tokens_and_top_tokens_of_a_tgi_worker_are_passed_on(self, over_tgi, tgi):
        fields = ASKED | {"parameters": {"top_n_tokens": 2}}
        _, payload = await told(over_tgi.post(f"{BASE}/generate", json=fields))
        *pieces, last = await streamed(over_tgi.post(f"{BASE}/generate_stream", json=fields))
        tokens = [
            {"id": n, "text": word, "logprob": -0.5, "special": False}
            for n, word in enumerate(WORDS)
        ]
        assert payload["details"]["tokens"] == tokens
        assert [piece["token"] for piece in pieces] == tokens
        for top in (payload["details"]["top_tokens"], [piece["top_tokens"] for piece in pieces]):
            assert [[token["text"] for token in position] for position in top] == [
                [word, "other0"] for word in WORDS
            ]
        assert last["generated_text"] == payload["generated_text"] == SAID
        assert tgi.asked["parameters"]["top_n_tokens"] == 2

    async def test_a_stream_of_a_tgi_worker_includes_the_stop_string(self, over_tgi, tgi):
        tgi.fail(split=True)
        fields = ASKED | {"parameters": {"stop": ["you"], "temperature": 0.5, "seed": 7}}
        pieces = await streamed(over_tgi.post(f"{BASE}/generate_stream", json=fields))
        # TGI includes stop strings in the text, and its clients expect it.
        text = SAID[: SAID.index("you") + len("you")]
        assert "".join(piece["token"]["text"] for piece in pieces) == text
        assert pieces[-1]["generated_text"] == text
        assert pieces[-1]["details"]["finish_reason"] == "stop_sequence"
        assert tgi.asked == fields

    @pytest.mark.parametrize("path", ["/generate", "/generate_stream"])
    async def test_an_answer_of_a_tgi_worker_passes_byte_for_byte(self, over_tgi, tgi, path):
        async with over_tgi.post(BASE + path, json=ASKED) as through:
            body = await through.read()
        async with (
            aiohttp.ClientSession() as direct,
            direct.post(tgi.url + path, json=ASKED) as itself,
        ):
            assert body == await itself.read()
        assert [orjson.loads(request.body) for request in tgi.received[-2:]] == [ASKED, ASKED]

    @pytest.mark.parametrize("path", ["/generate", "/generate_stream"])
    async def test_fields_that_only_nodes_understand_are_removed(self, over_tgi, tgi, path):
        node_fields = {"project": "p", "models": ["tiny"]}
        async with over_tgi.post(BASE + path, json=node_fields | ASKED) as response:
            assert response.status == 200
        assert tgi.asked == ASKED

    @pytest.mark.parametrize(
        "given",
        [{"watermark": True}, {"decoder_input_details": True}, {"adapter_id": "a"}, {"best_of": 2}],
    )
    async def test_parameters_that_only_tgi_has_reach_tgi_workers_alone(
        self, given, over_tgi, tgi, mesh, worker
    ):
        fields = ASKED | {"parameters": ASKED["parameters"] | given}
        status, _ = await told(over_tgi.post(f"{BASE}/generate", json=fields))
        assert (status, tgi.asked) == (200, fields)

        await mesh.one.register(worker, model="another")
        await mesh.knows(mesh.two, "another")
        status, payload = await told(over_tgi.post("/tgi/p/another/generate", json=fields))
        assert (status, payload["error_type"]) == (422, "validation")
        assert f"no worker of 'p/another' supports `{next(iter(given))}`" in payload["error"]

        # Of two replicas, the one whose protocol has the parameter is asked.
        await mesh.one.register(worker, cid="2")
        await until(lambda: len(mesh.two.context.registry.catalog.offers["tiny"]) == 2)
        for _ in range(4):
            assert (await told(over_tgi.post(f"{BASE}/generate", json=fields)))[0] == 200
        assert not worker.received

    async def test_tokens_of_a_tgi_worker_are_counted(self, over_tgi, mesh, caplog):
        caplog.set_level("INFO", "modelvine.requests")
        for path in ("/generate", "/generate_stream"):
            async with over_tgi.post(BASE + path, json=ASKED) as response:
                await response.read()
        counted = [r.message.rpartition("tokens=")[2] for r in caplog.records]
        assert {count for count in counted if count != "-"} == {"5+7", "~3+8"}

    async def test_a_grammar_reaches_a_tgi_worker(self, over_tgi, tgi):
        schema = {"type": "object", "properties": {"a": {"type": "string"}}}
        fields = ASKED | {"parameters": {"grammar": {"type": "json", "value": schema}}}
        await told(over_tgi.post(BASE, json=fields))
        assert tgi.asked["parameters"]["grammar"] == {"type": "json", "value": schema}

        fields = ASKED | {"parameters": {"grammar": {"type": "regex", "value": "a+"}}}
        await told(over_tgi.post(BASE, json=fields))
        assert tgi.asked["parameters"]["grammar"] == {"type": "regex", "value": "a+"}

    @pytest.mark.parametrize("name", ["org/tiny", "org%2Ftiny"])
    async def test_a_models_name_may_hold_slashes(self, alone, worker, name):
        await alone.register(worker, model="org/tiny")
        for path in ("", "/generate", "/v1/completions"):
            fields = ASKED | {"prompt": "a"}
            status, _ = await told(alone.http.post(f"/tgi/p/{name}{path}", json=fields))
            assert status == 200
        assert [orjson.loads(r.body)["model"] for r in worker.received] == ["org/tiny"] * 3


class TestFailures:
    async def test_a_stream_that_breaks_off_ends_in_an_error_event(self, http, worker):
        worker.fail(die_after=3)
        *pieces, last = await streamed(http.post(f"{BASE}/generate_stream", json=ASKED))
        assert len(pieces) == 2
        assert last["error_type"] == "incomplete_generation"

    async def test_an_error_in_a_workers_stream_is_the_last_event(self, over_tgi, tgi):
        tgi.fail(error_after=3)
        *_, last = await streamed(over_tgi.post(f"{BASE}/generate_stream", json=ASKED))
        assert set(last) == {"error", "error_type"}

    @pytest.mark.parametrize("fault", [{"die_after": 3}, {"end_after": 3}])
    async def test_a_stream_of_a_tgi_worker_that_breaks_off_ends_in_an_error_event(
        self, over_tgi, tgi, fault
    ):
        tgi.fail(**fault)
        *pieces, last = await streamed(over_tgi.post(f"{BASE}/generate_stream", json=ASKED))
        assert len(pieces) == 3
        assert last["error_type"] == "incomplete_generation"

    @pytest.mark.parametrize(
        ("fault", "status", "kind"),
        [
            ({"error_after": 0, "error_type": "overloaded"}, 429, "overloaded"),
            ({"error_after": 0}, 424, "generation"),
            ({"empty": True}, 424, "generation"),
            ({"garbage": True}, 424, "generation"),
            ({"die_before_headers": True}, 424, "generation"),
            ({"status": 422}, 422, "validation"),
            ({"status": 429}, 429, "overloaded"),
            ({"status": 424, "refusal": FAILED}, 424, "generation"),
            ({"status": 500, "refusal": HALF}, 500, "incomplete_generation"),
            (
                {"error_after": 0, "error_type": "incomplete_generation"},
                500,
                "incomplete_generation",
            ),
            ({"status": 500}, 424, "generation"),
        ],
    )
    @pytest.mark.parametrize("path", ["/generate", "/generate_stream", "/v1/chat/completions"])
    async def test_failures_of_a_tgi_worker_keep_their_error_type(
        self, over_tgi, tgi, fault, status, kind, path
    ):
        tgi.fail(**fault)
        chat = CHAT | {"stream": "error_after" in fault}
        fields = chat if path.startswith("/v1") else ASKED
        got, payload = await told(over_tgi.post(BASE + path, json=fields))
        assert (got, payload["error_type"]) == (status, kind)

    async def test_a_caller_that_leaves_cancels_the_request_at_the_worker(self, over_tgi, tgi):
        tgi.fail(delay_between=60)
        async with over_tgi.post(f"{BASE}/generate_stream", json=ASKED) as response:
            assert await response.content.readexactly(5) == b"data:"
            response.close()
        await until(lambda: tgi.hung_up == 1, seconds=3)

    @pytest.mark.parametrize(
        ("faults", "status", "kind"),
        [
            ({"status": 429}, 429, "overloaded"),
            ({"status": 500}, 424, "generation"),
            ({"status": 422}, 422, "validation"),
            ({"garbage": True}, 424, "generation"),
            ({"die_before_headers": True}, 424, "generation"),
        ],
    )
    @pytest.mark.parametrize("path", ["", "/generate", "/generate_stream", "/v1/completions"])
    async def test_failures_before_the_first_byte_have_tgis_error_types(
        self, served, worker, faults, status, kind, path
    ):
        worker.fail(**faults)
        fields = ASKED | {"prompt": "a"}
        got, payload = await told(served.http.post(BASE + path, json=fields))
        assert (got, payload["error_type"]) == (status, kind)
        assert set(payload) == {"error", "error_type"}

    async def test_a_model_that_no_worker_serves_is_a_validation_error(self, http):
        for path in ("", "/generate", "/generate_stream", "/tokenize", "/v1/chat/completions"):
            status, payload = await told(http.post(f"/tgi/p/none{path}", json=ASKED))
            assert (status, payload["error_type"]) == (422, "validation")
            assert payload["error"].startswith(VALIDATION)

    async def test_a_model_of_another_project_is_not_found(self, http):
        status, _ = await told(http.post("/tgi/q/tiny", json=ASKED))
        assert status == 422

    async def test_a_wrong_value_is_refused_by_name_before_any_worker_is_asked(self, http, worker):
        fields = {"inputs": "a", "parameters": {"temperature": 0}}
        status, payload = await told(http.post(BASE, json=fields))
        assert (status, payload["error_type"]) == (422, "validation")
        assert "`temperature`" in payload["error"]
        assert worker.received == []

    async def test_paths_accept_their_methods_only(self, http):
        for method, path in (("GET", ""), ("GET", "/generate"), ("POST", "/info")):
            async with http.request(method, BASE + path) as response:
                assert response.status == 405
        async with http.post("/tgi/p", json=ASKED) as response:
            assert response.status == 404

    async def test_no_body_is_a_server_error(self, served):
        draw = random.Random(7)
        bodies = [orjson.dumps(_nonsense(draw)) for _ in range(200)]
        bodies += [draw.randbytes(draw.randrange(40)) for _ in range(50)] + [b"", b"[" * 500]
        paths = ("", "/generate", "/generate_stream", "/tokenize", "/v1/chat/completions")
        headers = {"content-type": "application/json"}
        for index, body in enumerate(bodies):
            path = BASE + paths[index % len(paths)]
            async with served.http.post(path, data=body, headers=headers) as response:
                answer = await response.read()
            assert response.status in (200, 422), (path, body, response.status, answer)
            if response.status == 422:
                assert orjson.loads(answer)["error_type"] == "validation"


def _nonsense(draw: random.Random, depth: int = 0):
    names = [
        *("inputs", "parameters", "stream", "messages", "prompt", "tools", "response_format"),
        *("stop", "temperature", "grammar", "type", "value", "function", "model", "logit_bias"),
    ]
    kinds = [None, True, -1, 0.5, "x", "json", 2**70, []]
    match draw.randrange(4 if depth < 3 else 1):
        case 1:
            return [_nonsense(draw, depth + 1) for _ in range(draw.randrange(3))]
        case 2 | 3:
            return {draw.choice(names): _nonsense(draw, depth + 1) for _ in range(4)}
    value = draw.choice(kinds)
    return float(value) if value == 2**70 else value


class TestV1:
    async def test_a_chat_has_all_fields_that_tgis_clients_require(self, http):
        status, payload = await told(http.post(f"{BASE}/v1/chat/completions", json=CHAT))
        assert (status, payload["system_fingerprint"]) == (200, "")
        assert payload["choices"][0]["message"]["content"] == SAID
        assert payload["choices"][0]["logprobs"] is None
        assert payload["usage"]["completion_tokens"] > 0

    async def test_a_streamed_chat_ends_with_done(self, http):
        fields = CHAT | {"stream": True}
        async with http.post(f"{BASE}/v1/chat/completions", json=fields) as response:
            text = await response.text()
        *chunks, done = [e for e in text.split("\n\n") if e and not e.startswith(":")]
        assert done == "data: [DONE]"
        objects = [orjson.loads(chunk.removeprefix("data: ")) for chunk in chunks]
        assert all(chunk["system_fingerprint"] == "" for chunk in objects)
        assert "".join(c["choices"][0]["delta"].get("content", "") for c in objects) == STREAMED

    async def test_a_streamed_chat_that_breaks_off_ends_in_tgis_error(self, http, worker):
        worker.fail(die_after=3)
        fields = CHAT | {"stream": True}
        async with http.post(f"{BASE}/v1/chat/completions", json=fields) as response:
            text = await response.text()
        assert '"error_type":"incomplete_generation"' in text.split("\n\n")[-2]
        assert "[DONE]" not in text

    async def test_fields_without_a_counterpart_are_named(self, http):
        fields = CHAT | {"tool_prompt": "Use:"}
        async with http.post(f"{BASE}/v1/chat/completions", json=fields) as response:
            assert response.headers["x-modelvine-dropped-params"] == "tool_prompt"

    @pytest.mark.parametrize("streams", [False, True])
    async def test_a_tgi_worker_gets_the_fields_that_openai_lacks(self, over_tgi, tgi, streams):
        options = {"tool_prompt": "Use:", "presence_penalty": 0.5, "logit_bias": [0.5]}
        fields = CHAT | options | {"stream": streams}
        async with over_tgi.post(f"{BASE}/v1/chat/completions", json=fields) as response:
            assert (response.status, SAID in await response.text()) == (200, not streams)
            assert "x-modelvine-dropped-params" not in response.headers
            assert "x-modelvine-heard-params" not in response.headers
        assert {name: tgi.asked[name] for name in options} == options

    async def test_openais_presence_penalty_is_dropped_for_a_tgi_worker(self, over_tgi, tgi):
        fields = CHAT | {"model": "tiny", "presence_penalty": 0.5}
        async with over_tgi.post("/v1/chat/completions", json=fields) as response:
            assert response.headers["x-modelvine-dropped-params"] == "presence_penalty"
        assert "presence_penalty" not in tgi.asked

    @pytest.mark.parametrize("base", [f"{BASE}/v1", "/v1"])
    async def test_a_completion_with_a_suffix_is_answered_by_a_tgi_worker(
        self, over_tgi, tgi, base
    ):
        fields = {"model": "tiny", "prompt": "Once", "suffix": "end.", "max_tokens": 5}
        status, payload = await told(over_tgi.post(f"{base}/completions", json=fields))
        choice = payload["choices"][0]
        assert (status, choice["text"], choice["finish_reason"]) == (200, SAID, "stop")
        assert tgi.received[-1].path == "/v1/completions"
        assert tgi.asked == fields | {"model": "tgi", "prompt": ["Once"], "stream": False}
        call = over_tgi.post(f"{base}/completions", json=fields | {"stream": True})
        async with call as response:
            text = await response.text()
        assert text.endswith("data: [DONE]\n\n")
        pieces = events(text.removesuffix("data: [DONE]\n\n"))
        assert "".join(c["text"] for piece in pieces for c in piece["choices"]) == SAID

    @pytest.mark.parametrize(
        ("path", "wrong"),
        [
            ("chat/completions", {"temperature": "hot"}),
            ("chat/completions", {"tool_prompt": 5}),
            ("chat/completions", {"presence_penalty": 3}),
            ("chat/completions", {"logprobs": 1}),
            ("chat/completions", {"stream": "yes"}),
            ("completions", {"suffix": ["a"]}),
            ("completions", {"seed": -1}),
            ("completions", {"repetition_penalty": True}),
        ],
    )
    async def test_a_value_of_another_type_is_refused(self, http, worker, path, wrong):
        fields = CHAT | {"prompt": "a"} | wrong
        status, payload = await told(http.post(f"{BASE}/v1/{path}", json=fields))
        assert (status, payload["error_type"]) == (422, "validation")
        assert f"`{next(iter(wrong))}`" in payload["error"]
        assert worker.received == []

    async def test_a_completion_is_answered_by_a_tgi_worker(self, over_tgi):
        fields = {"prompt": "Once", "model": "tgi"}
        status, payload = await told(over_tgi.post(f"{BASE}/v1/completions", json=fields))
        assert (status, payload["choices"][0]["text"]) == (200, SAID)


class TestTold:
    async def test_tokens_have_their_ids_texts_and_places(self, http, worker):
        status, payload = await told(http.post(f"{BASE}/tokenize", json={"inputs": "Once upon"}))
        first = {"id": 7, "text": "Once", "start": 0, "stop": 4}
        assert (status, payload) == (
            200,
            [first, {"id": 8, "text": " upon", "start": 4, "stop": 9}],
        )
        assert orjson.loads(worker.received[-1].body)["with_pieces"] is True

    async def test_tokens_of_a_tgi_worker_have_their_places(self, over_tgi):
        status, payload = await told(over_tgi.post(f"{BASE}/tokenize", json={"inputs": "ab"}))
        first = {"id": 97, "text": "a", "start": 0, "stop": 1}
        assert (status, payload) == (200, [first, {"id": 98, "text": "b", "start": 1, "stop": 2}])

    async def test_a_worker_that_reports_no_texts_of_tokens_is_no_tokenizer(self, mesh):
        async with localai_worker.running() as backend:
            api = backend.url.replace("grpc:", "grpc+localai:")
            await mesh.one.register(backend, api=api)
            await mesh.knows(mesh.two, "tiny")
            for asked_node in (mesh.one, mesh.two):
                call = asked_node.http.post(f"{BASE}/tokenize", json={"inputs": "eight by"})
                status, payload = await told(call)
                assert (status, payload["error_type"]) == (404, "no_tokenizer")

    async def test_a_worker_that_cannot_tokenize_is_no_tokenizer(self, mesh):
        async with llama_stack_worker.running() as stack:
            await mesh.one.register(stack, api=stack.url.replace("http:", "llamastack+http:"))
            await mesh.knows(mesh.two, "tiny")
            for asked_node in (mesh.one, mesh.two):
                call = asked_node.http.post(f"{BASE}/tokenize", json={"inputs": "Once"})
                status, payload = await told(call)
                assert (status, payload["error_type"]) == (404, "no_tokenizer")
                assert payload["error"].startswith("No fast tokenizer available")

    @pytest.mark.parametrize("path", ["health", "ping"])
    async def test_health_is_whether_a_worker_serves_the_model(self, http, path):
        async with http.get(f"{BASE}/{path}") as response:
            assert (response.status, await response.read()) == (200, b"")
        status, payload = await told(http.get(f"/tgi/p/none/{path}"))
        assert (status, payload["error_type"]) == (503, "healthcheck")

    async def test_a_model_whose_workers_are_all_full_is_healthy(self, alone, worker):
        await alone.register(worker, capacity=1)
        worker.fail(hang=True)
        waiting = asyncio.ensure_future(alone.http.post(BASE, json=ASKED).__aenter__())
        await until(lambda: worker.received)
        async with alone.http.get(f"{BASE}/health") as response:
            assert response.status == 200
        waiting.cancel()

    async def test_info_is_what_the_registry_knows(self, alone, worker):
        await alone.register(worker, context=4096, capacity=3)
        status, payload = await told(alone.http.get(f"{BASE}/info"))
        assert status == 200
        assert payload["model_id"] == "tiny"
        assert (payload["max_total_tokens"], payload["max_input_tokens"]) == (4096, 4095)
        assert (payload["max_concurrent_requests"], payload["max_best_of"]) == (3, 1)
        status, payload = await told(alone.http.get("/tgi/p/none/info"))
        assert (status, payload["error_type"]) == (422, "validation")

    async def test_info_shows_the_limits_of_a_tgi_worker(self, mesh, tgi):
        limits = {
            "max_input_tokens": 3000,
            "max_total_tokens": 4096,
            "max_concurrent_requests": 7,
            "max_best_of": 2,
            "max_stop_sequences": 3,
            "max_client_batch_size": 5,
            "validation_workers": 9,
        }
        tgi.fail(info=orjson.dumps(limits | {"model_id": "own/name"}))
        await mesh.one.register(tgi, api=tgi.url.replace("http:", "tgi+http:"))
        await mesh.knows(mesh.two, "tiny")
        _, payload = await told(mesh.one.http.get(f"{BASE}/info"))
        assert {name: payload[name] for name in limits} == limits
        assert payload["model_id"] == "tiny"
        # One hop away the limits are those of the record.
        _, payload = await told(mesh.two.http.get(f"{BASE}/info"))
        assert (payload["max_total_tokens"], payload["max_input_tokens"]) == (4096, 4095)

    async def test_metrics_are_those_of_the_model(self, http, worker):
        worker.fail(hang=True)
        waiting = asyncio.ensure_future(http.post(BASE, json=ASKED).__aenter__())
        await until(lambda: worker.received)
        async with http.get(f"{BASE}/metrics") as response:
            text = await response.text()
        assert "tgi_queue_size 0\n" in text
        assert "tgi_batch_current_size 1\n" in text
        waiting.cancel()


class TestAtTheRoot:
    async def test_the_default_model_answers_at_the_root(self, at_root):
        _, payload = await told(at_root.post("/", json=ASKED))
        assert payload[0]["generated_text"] == SAID
        _, payload = await told(at_root.post("/generate", json=ASKED))
        assert payload["generated_text"] == SAID
        *_, last = await streamed(at_root.post("/generate_stream", json=ASKED))
        assert last["generated_text"] == STREAMED
        _, payload = await told(at_root.post("/tokenize", json={"inputs": "Once upon"}))
        assert len(payload) == 2
        _, payload = await told(at_root.get("/info"))
        assert payload["model_id"] == "tiny"
        for path in ("/health", "/ping"):
            async with at_root.get(path) as response:
                assert response.status == 200

    async def test_without_a_default_model_requests_at_the_root_are_refused(self, served):
        for path in ("/", "/generate", "/generate_stream", "/tokenize"):
            status, payload = await told(served.http.post(path, json=ASKED))
            assert (status, payload["error_type"]) == (422, "validation")
        # Load balancers check the node's health with these paths.
        for path in ("/health", "/ping"):
            async with served.http.get(path) as response:
                assert (response.status, await response.read()) == (200, b"")
        status, payload = await told(served.http.get("/info"))
        assert status == 422


def test_all_nine_endpoints_are_listed():
    assert len(ENDPOINTS) == 9
