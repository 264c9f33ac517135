"""RemoteLLM's clients at a node: three RPCs, keys, and any worker that serves the model."""

import asyncio
import logging

import orjson
import pytest

from router.rpc.failures import RpcFailed
from router.rpc.messages import REMOTELLM
from tests.node.faces.assembly import until
from tests.workers import openai_worker, remotellm_worker, tgi_worker
from tests.workers.openai_worker import WORDS

SAID = "".join(WORDS)


@pytest.fixture(params=["serving", "asked"])
async def client(request, mesh, worker, opened):
    await mesh.one.register(worker)
    await mesh.knows(mesh.two, "tiny")
    node = mesh.one if request.param == "serving" else mesh.two
    return await opened("remotellm", REMOTELLM, node.context, default_model="tiny")


async def test_each_prompt_gets_its_text(client, worker):
    reply = await client.ask("Generate", prompts=["a", "b"], stop=["END"])
    assert [[g.text for g in texts.generations] for texts in reply.generations] == [[SAID], [SAID]]
    bodies = sorted((orjson.loads(r.body) for r in worker.received), key=lambda b: b["prompt"])
    assert [(b["prompt"], b["stop"], b["max_tokens"]) for b in bodies] == [
        ("a", ["END"], 512),
        ("b", ["END"], 512),
    ]
    info = orjson.loads(reply.generations[0].generations[0].generation_info)
    assert (info["finish_reason"], info["model"]) == ("stop", "tiny")


async def test_no_prompts_give_no_texts(client):
    assert not (await client.ask("Generate")).generations


async def test_the_llm_type_is_the_models_name(client):
    assert (await client.ask("GetLlmType")).llm_type == "tiny"


@pytest.mark.parametrize("named", ["key@none", "@none"])
async def test_the_model_may_be_named_after_the_key(client, named):
    with pytest.raises(RpcFailed) as failed:
        await client.ask("GetLlmType", api_key=named)
    assert failed.value.code == "NOT_FOUND"
    assert (await client.ask("GetLlmType", api_key="key@p/tiny")).llm_type == "p/tiny"


async def test_the_model_may_be_named_in_the_metadata(client):
    client.said = {"x-model": "none"}
    with pytest.raises(RpcFailed) as failed:
        await client.ask("Generate", prompts=["a"])
    assert (failed.value.code, "none" in failed.value.words) == ("NOT_FOUND", True)


async def test_a_request_without_a_model_is_refused_with_a_sentence(served, opened):
    client = await opened("remotellm", REMOTELLM, served.context)
    with pytest.raises(RpcFailed) as failed:
        await client.ask("GetLlmType")
    assert failed.value.code == "INVALID_ARGUMENT"
    assert "KEY@MODEL" in failed.value.words


class TestKeys:
    @pytest.fixture
    async def client(self, served, opened, tmp_path):
        keys = tmp_path / "keys"
        keys.write_text("first\n\nsecond\n")
        keys.chmod(0o600)
        faces = {"default_model": "tiny", "remotellm_keys": str(keys)}
        return await opened("remotellm", REMOTELLM, served.context, **faces)

    @pytest.mark.parametrize("key", ["first", "second", "second@tiny"])
    async def test_a_known_key_is_accepted(self, client, key):
        assert (await client.ask("GetLlmType", api_key=key)).llm_type == "tiny"

    @pytest.mark.parametrize("key", ["", "third", "first ", "@tiny", "first\nsecond", "ключ"])
    @pytest.mark.parametrize("rpc", ["GetLlmType", "Generate", "GenerationalGuts"])
    async def test_an_unknown_key_is_refused(self, client, rpc, key):
        with pytest.raises(RpcFailed) as failed:
            await client.ask(rpc, api_key=key)
        assert failed.value.code == "UNAUTHENTICATED"

    @pytest.mark.parametrize(("text", "mode"), [("", 0o600), ("a@b\n", 0o600), ("a\n", 0o644)])
    async def test_an_invalid_file_of_keys_keeps_the_face_closed(
        self, served, opened, tmp_path, text, mode
    ):
        keys = tmp_path / "keys"
        keys.write_text(text)
        keys.chmod(mode)
        with pytest.raises(Exception, match="keys"):
            await opened("remotellm", REMOTELLM, served.context, remotellm_keys=str(keys))


@pytest.mark.parametrize(
    ("faults", "code"),
    [
        ({"status": 400}, "INVALID_ARGUMENT"),
        ({"status": 429, "retry_after": "7"}, "RESOURCE_EXHAUSTED"),
        ({"status": 500}, "INTERNAL"),
        ({"garbage": True}, "INTERNAL"),
        ({"die_before_headers": True}, "INTERNAL"),
    ],
)
async def test_failures_are_statuses_with_our_messages(client, worker, faults, code):
    worker.fail(**faults)
    with pytest.raises(RpcFailed) as failed:
        await client.ask("Generate", prompts=["a", "b"])
    assert failed.value.code == code
    assert "Traceback" not in failed.value.words
    if code == "RESOURCE_EXHAUSTED":
        assert failed.value.pushback == 7


async def test_a_caller_that_leaves_cancels_the_request_at_the_worker(client, worker):
    worker.fail(hang=True)
    caller = asyncio.ensure_future(client.ask("Generate", prompts=["a"]))
    await until(lambda: len(worker.received) == 1)
    caller.cancel()
    await until(lambda: worker.hung_up == 1)


async def test_too_many_prompts_are_refused(client, worker):
    with pytest.raises(RpcFailed) as failed:
        await client.ask("Generate", prompts=["a"] * 129)
    assert failed.value.code == "INVALID_ARGUMENT"
    assert worker.received == []


async def test_a_chat_only_model_gets_the_prompt_as_a_message(alone, opened):
    async with tgi_worker.running() as worker:
        await alone.register(worker, api=worker.url.replace("http:", "tgi+http:"))
        client = await opened("remotellm", REMOTELLM, alone.context, default_model="tiny")
        reply = await client.ask("Generate", prompts=["a"])
    assert reply.generations[0].generations[0].text == SAID


async def test_a_worker_of_the_same_protocol_gives_its_inner_state(mesh, opened):
    async with remotellm_worker.running() as worker:
        await mesh.one.register(worker, api=worker.url.replace("grpc:", "grpc+remotellm:"))
        await mesh.knows(mesh.two, "tiny")
        client = await opened("remotellm", REMOTELLM, mesh.two.context, default_model="tiny")
        state = await client.ask(
            "GenerationalGuts", prompt="once upon", embedding_trunkation=3, top_k_logits=1
        )
    assert [token.token for token in state.tokens] == ["'once'", "'upon'"]
    assert list(state.tokens[1].hidden_state) == [0.5, 0.5, 0.5]
    assert state.generations[0].logit == 0.25


async def test_an_unknown_model_is_named_in_one_sentence(client):
    with pytest.raises(RpcFailed) as failed:
        await client.ask("GetLlmType", api_key="key@nothing")
    assert failed.value.words == "no node serves the model 'nothing'"


async def test_parameters_added_by_the_face_are_not_named_as_dropped(alone, opened):
    async with tgi_worker.running() as worker:
        await alone.register(worker, api=worker.url.replace("http:", "tgi+http:"))
        client = await opened("remotellm", REMOTELLM, alone.context, default_model="tiny")
        assert await client.named("Generate", prompts=["a"], stop=["x"]) == ""


@pytest.mark.parametrize("node", ["serving", "asked"])
@pytest.mark.parametrize("protocol", ["openai", "tgi"])
async def test_the_inner_state_of_another_protocols_model_is_unimplemented(
    mesh, opened, node, protocol
):
    workers = {"openai": (openai_worker, "http:"), "tgi": (tgi_worker, "tgi+http:")}
    stub, scheme = workers[protocol]
    async with stub.running() as worker:
        asked_node = await mesh.offers(node, worker, api=worker.url.replace("http:", scheme))
        client = await opened("remotellm", REMOTELLM, asked_node.context, default_model="tiny")
        with pytest.raises(RpcFailed) as failed:
            await client.ask("GenerationalGuts", prompt="a", top_k_logits=1)
    assert failed.value.code == "UNIMPLEMENTED"


async def test_a_wrong_key_is_reported_when_its_worker_is_registered(alone):
    async with remotellm_worker.running() as worker:
        worker.key = "right"
        row = {
            "project": "p",
            "model": "tiny",
            "api": worker.url.replace("grpc:", "grpc+remotellm:"),
            "headers": {"x-api-key": "wr0ng-key"},
        }
        async with alone.http.post("/api/v0/ai/model/register", json=row) as response:
            payload = await response.json()
    assert "x-api-key" in payload["learned"][0]["fault"]
    assert "wr0ng" not in str(payload)


class TestSameProtocol:
    """Workers that speak the same protocol, at the node that is asked and one hop away."""

    @pytest.fixture
    async def worker(self):
        async with remotellm_worker.running() as worker:
            yield worker

    @pytest.fixture(params=["serving", "asked"])
    async def client(self, request, mesh, worker, opened):
        headers = {"x-api-key": "the-workers"}
        api = worker.url.replace("grpc:", "grpc+remotellm:")
        node = await mesh.offers(request.param, worker, api=api, headers=headers)
        return await opened("remotellm", REMOTELLM, node.context, default_model="tiny")

    async def test_a_stop_string_ends_each_alternative_and_loses_none(self, client, worker):
        reply = await client.ask("Generate", prompts=["a"], stop=[" else", "are"])
        texts = reply.generations[0].generations
        assert [text.text for text in texts] == [SAID[: SAID.index("are")], "or"]
        assert texts[0].generation_info == worker.faults.info.decode()
        assert list(worker.received[0].asked.stop) == [" else", "are"]

    async def test_all_that_a_worker_answers_to_a_prompt_arrives(self, client, worker, caplog):
        caplog.set_level("INFO", "modelvine.requests")
        reply = await client.ask("Generate", prompts=["a", "b"], api_key="mine")
        for texts in reply.generations:
            assert [text.text for text in texts.generations] == [SAID, "or else"]
            assert texts.generations[0].generation_info == worker.faults.info.decode()
        assert sorted(tuple(one.asked.prompts) for one in worker.received) == [("a",), ("b",)]
        assert {one.asked.api_key for one in worker.received} == {"the-workers"}
        counted = [r.message.rpartition("tokens=")[2] for r in caplog.records]
        assert [one for one in counted if one != "-"] == ["5+6", "5+6"]

    async def test_tokens_are_estimated_where_the_worker_reports_none(self, client, worker, caplog):
        caplog.set_level("INFO", "modelvine.requests")
        worker.fail(info=b"")
        await client.ask("Generate", prompts=["abcde"])
        counted = [r.message.rpartition("tokens=")[2] for r in caplog.records]
        assert [count for count in counted if count != "-"] == ["~2+8"]

    @pytest.mark.parametrize(
        ("fault", "code"),
        [
            ({"empty": True}, "INTERNAL"),
            ({"missing": 1}, "INTERNAL"),
            ({"garbage": True}, "INTERNAL"),
            ({"status": 429}, "RESOURCE_EXHAUSTED"),
            ({"die_before_headers": True}, "INTERNAL"),
        ],
    )
    async def test_an_invalid_answer_is_a_failure(self, client, worker, fault, code):
        worker.fail(**fault)
        with pytest.raises(RpcFailed) as failed:
            await client.ask("Generate", prompts=["a"])
        assert failed.value.code == code


async def test_no_text_of_a_prompt_or_key_is_logged(client, worker, caplog):
    caplog.set_level(logging.DEBUG)
    await client.ask("Generate", prompts=["a canary sings"], api_key="canary-key")
    worker.fail(garbage=True)
    with pytest.raises(RpcFailed):
        await client.ask("Generate", prompts=["a canary sings"], api_key="canary-key")
    messages = [
        record.getMessage() for record in caplog.records if record.name.startswith("modelvine")
    ]
    assert messages
    assert not [line for line in messages if "canary" in line]
