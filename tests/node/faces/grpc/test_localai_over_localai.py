"""LocalAI at a node whose worker is a LocalAI backend, at that node and one hop away: its own protocol on both sides."""

from pathlib import Path

import pytest

from router.dialects.localai_grpc.verbatim import OPERATORS
from router.rpc.failures import RpcFailed
from router.rpc.messages import LOCALAI, message_class
from tests.node.faces.assembly import until
from tests.workers import localai_worker
from tests.workers.localai_worker import PNG, WAV
from tests.workers.openai_worker import WORDS

SAID = "".join(WORDS).encode()
MESSAGE = message_class("backend.Message")
TALK = {"UseTokenizerTemplate": True, "Messages": [MESSAGE(role="user", content="hi")]}


@pytest.fixture
async def worker():
    async with localai_worker.running() as started:
        yield started


@pytest.fixture(params=["serving", "asked"])
async def client(request, mesh, worker, opened):
    node = await mesh.offers(
        request.param, worker, api=worker.url.replace("grpc:", "grpc+localai:")
    )
    made = await opened("localai", LOCALAI, node.context)
    assert (await made.ask("LoadModel", Model="tiny")).success
    return made


async def streamed(client, **fields):
    return [reply async for reply in client.stream("PredictStream", **fields)]


@pytest.mark.parametrize("asked", [{"Prompt": "a"}, TALK], ids=["prompt", "messages"])
async def test_requests_and_replies_arrive_unchanged(client, worker, asked):
    fields = {"TailFreeSamplingZ": 0.5, "NegativePrompt": "rain", "Seed": 0, "Tokens": 40, **asked}
    reply = await client.ask("Predict", **fields)
    assert (reply.message, reply.tokens, reply.prompt_tokens) == (SAID, len(WORDS), 5)
    replies = await streamed(client, **fields)
    assert [reply.message for reply in replies] == [word.encode() for word in WORDS]
    assert [reply.tokens for reply in replies] == [*range(1, len(WORDS) + 1)]
    expected = type(worker.received[0].asked)(**fields)
    assert [request.asked for request in worker.received] == [expected, expected]


@pytest.mark.parametrize("stops", [["are"], ["x", "are"], ["nowhere", "ard no"]])
async def test_a_stop_string_changes_only_where_the_text_ends(client, worker, stops):
    fields = {
        "Prompt": "a", "TailFreeSamplingZ": 0.5, "NegativePrompt": "rain", "Repeat": 7, "TopK": 0, "Penalty": 0.0, "Seed": 0,
        "Tokens": 40, "StopPrompts": stops,
    }  # fmt: skip
    text = SAID[: SAID.index(b"are")] if "are" in stops else SAID
    assert (await client.ask("Predict", **fields)).message == text
    assert b"".join(reply.message for reply in await streamed(client, **fields)) == text
    expected = type(worker.received[0].asked)(**fields)
    assert [request.asked for request in worker.received] == [expected, expected]


async def test_additional_fields_of_newer_backends_arrive(client, worker):
    fields = {
        "UseTokenizerTemplate": True, "Tools": "[]", "ToolChoice": "auto", "Logprobs": 1, "TopLogprobs": 2, "MinP": 0.25,
        "Metadata": {"enable_thinking": "false"}, "Audios": ["UklGRg=="], "Videos": ["AAAA"],
        "Messages": [MESSAGE(role="user", content="a"), MESSAGE(role="tool", content="7", name="f", tool_call_id="c1"),
                     MESSAGE(role="assistant", tool_calls="[]", reasoning_content="so")],
    }  # fmt: skip
    calls = [{"index": 1, "id": "c", "name": "f", "arguments": "{}"}]
    worker.more = {"logprobs": b"{}", "chat_deltas": [{"content": "x", "tool_calls": calls}]}
    reply = await client.ask("Predict", **fields)
    assert (reply.logprobs, reply.chat_deltas[0].tool_calls[0].index) == (b"{}", 1)
    assert (await streamed(client, **fields))[0].chat_deltas == reply.chat_deltas
    expected = type(worker.received[0].asked)(**fields)
    assert [request.asked for request in worker.received] == [expected, expected]
    assert await client.named("Predict", **fields) == ""


async def test_characters_may_be_split_across_replies(client, worker):
    worker.words = ("Grüße", " 😀")
    worker.fail(split=True)
    replies = await streamed(client, Prompt="a")
    assert b"".join(reply.message for reply in replies) == "Grüße 😀".encode()
    assert {len(reply.message) for reply in replies} == {1}


async def test_empty_replies_arrive_too_and_a_text_may_be_empty(client, worker):
    worker.fail(blanks=2)
    replies = await streamed(client, Prompt="a")
    assert b"".join(reply.message for reply in replies) == SAID
    assert [reply.message for reply in replies[:2]] == [b"", b""]
    worker.fail(empty=True)
    assert b"".join(reply.message for reply in await streamed(client, Prompt="a")) == b""
    assert (await client.ask("Predict", Prompt="a")).message == b""


async def test_endless_empty_replies_are_a_failure(client, worker):
    worker.fail(blanks=20_000)
    with pytest.raises(RpcFailed) as failed:
        await streamed(client, Prompt="a")
    assert failed.value.code == "INTERNAL"


async def test_fields_reserved_for_the_operator_are_removed(client, worker):
    kind = message_class("backend.PredictOptions").DESCRIPTOR
    values = {str: "/etc/x", bool: True, float: 0.5, int: 7}
    fields = {name: values[type(kind.fields_by_name[name].default_value)] for name in OPERATORS}
    await client.ask("Predict", Prompt="a", **fields)
    assert worker.received[0].asked == type(worker.received[0].asked)(Prompt="a")


async def test_a_text_is_cut_at_a_stop_string_that_its_worker_sends(client, worker):
    reply = await client.ask("Predict", Prompt="a", StopPrompts=["are"])
    assert reply.message == SAID[: SAID.index(b"are")]


async def test_a_backend_whose_template_fails_is_given_a_prompt(client, worker):
    worker.fail(no_template=True)
    assert (await client.ask("Predict", **TALK)).message == SAID
    assert b"".join(reply.message for reply in await streamed(client, **TALK)) == SAID
    assert worker.received[-1].asked.Prompt


async def test_a_model_is_loaded_before_the_request_and_again_when_lost(mesh, worker, opened):
    worker.loaded = False
    api = worker.url.replace("grpc:", "grpc+localai:")
    node = await mesh.offers("asked", worker, api=api, load={"Model": "x"})
    client = await opened("localai", LOCALAI, node.context, default_model="tiny")
    assert (await client.ask("Predict", Prompt="a")).message == SAID
    # The backend has lost its model.
    worker.loaded = False
    assert b"".join(reply.message for reply in await streamed(client, Prompt="a")) == SAID
    assert len(worker.loads) == 2


@pytest.mark.parametrize(
    ("fault", "counted"),
    [({}, "5+7"), ({"usage": "each"}, "5+7"), ({"usage": "zeros"}, "~1+7")],
    ids=["sums", "each", "nothing"],
)
async def test_tokens_of_a_text_are_counted_or_estimated(client, worker, caplog, fault, counted):
    caplog.set_level("INFO", "modelvine.requests")
    worker.fail(**fault)
    await streamed(client, Prompt="abcd")
    counts = [r.message.rpartition("tokens=")[2] for r in caplog.records]
    assert [count for count in counts if count != "-"] == [counted]
    await client.ask("Predict", Prompt="abcd", Tokens=len(WORDS))
    reply = await client.ask("GetMetrics")
    assert (reply.tokens_generated > 0) == (counted == "5+7")


@pytest.mark.parametrize("fault", [{"die_after": 3}, {"fail_after": 3}, {"garbage": True}])
async def test_a_stream_that_breaks_off_is_a_failure(client, worker, fault):
    worker.fail(**fault)
    with pytest.raises(RpcFailed) as failed:
        await streamed(client, Prompt="a")
    # If not even the first words were sent, the worker counts as unreachable.
    assert failed.value.code in ("INTERNAL", "UNAVAILABLE")


@pytest.mark.parametrize(
    ("fault", "code"),
    [({"status": 429}, "RESOURCE_EXHAUSTED"), ({"status": 500}, "INTERNAL"), ({"garbage": True}, "INTERNAL")],
    ids=["busy", "failed", "garbage"],
)  # fmt: skip
async def test_a_failure_before_the_first_reply_is_a_status(client, worker, fault, code):
    worker.fail(**fault)
    with pytest.raises(RpcFailed) as failed:
        await client.ask("Predict", Prompt="a")
    assert failed.value.code == code


async def test_a_caller_that_leaves_cancels_the_request_at_the_worker(client, worker):
    worker.fail(delay_between=60)
    async for reply in client.stream("PredictStream", Prompt="a"):
        assert reply.message == WORDS[0].encode()
        break
    await until(lambda: worker.hung_up == 1, seconds=5)


class TestFiles:
    @pytest.fixture(params=["serving", "asked"])
    async def client(self, request, mesh, worker, opened, tmp_path):
        api = worker.url.replace("grpc:", "grpc+localai:")
        node = await mesh.offers(request.param, worker, api=api)
        faces = {"default_model": "tiny", "localai_files": str(tmp_path)}
        return await opened("localai", LOCALAI, node.context, **faces)

    @pytest.mark.parametrize("edits", [False, True])
    async def test_all_parameters_of_images_arrive(self, client, worker, tmp_path, edits):
        source = tmp_path / "in.png"
        source.write_bytes(PNG)
        options = {
            "mode": 3, "CLIPSkip": 2, "EnableParameters": "negative_prompt,num_inference_steps", "step": 7, "seed": 9,
            "width": 64, "height": 32, "positive_prompt": "a hat", "negative_prompt": "rain",
        }  # fmt: skip
        more = {"src": str(source)} if edits else {}
        fields = {**options, **more, "dst": str(tmp_path / "made.png")}
        assert await client.named("GenerateImage", **fields) == ""
        assert {name: getattr(worker.asked, name) for name in options} == options
        assert bool(worker.asked.src) is edits

    async def test_a_sound_is_made_from_another_one(self, client, worker, tmp_path):
        source = tmp_path / "in.wav"
        source.write_bytes(WAV)
        received = []
        worker.listen = lambda asked: received.append(Path(asked.src).read_bytes())
        asked = {"text": "rain", "src": str(source), "src_divisor": 2}
        assert await client.named("SoundGeneration", **asked, dst=str(tmp_path / "out.wav")) == ""
        assert (received, worker.asked.src_divisor) == ([WAV], 2)
        assert (tmp_path / "out.wav").read_bytes() == WAV

    async def test_the_tokens_of_a_recording_arrive(self, client, tmp_path):
        (tmp_path / "in.wav").write_bytes(WAV)
        reply = await client.ask("AudioTranscription", dst=str(tmp_path / "in.wav"))
        assert [list(segment.tokens) for segment in reply.segments] == [[7, 0], [7, 1]]


async def test_the_prompt_tokens_of_a_ranking_arrive_beside_the_total(client, worker):
    worker.question_tokens = 4
    reply = await client.ask("Rerank", query="q", documents=["a", "b"])
    assert (reply.usage.prompt_tokens, reply.usage.total_tokens) == (4, 9)


@pytest.mark.parametrize(
    "value", [b"", b"a", b"\xff\x00", b"data:application/octet-stream;base64,/wA="]
)
async def test_a_store_keeps_any_bytes(client, worker, value):
    keys = [{"Floats": [1.0, 0.5]}]
    await client.ask("StoresSet", Keys=keys, Values=[{"Bytes": value}])
    got = await client.ask("StoresGet", Keys=keys)
    assert [item.Bytes for item in got.Values] == [value]
    found = await client.ask("StoresFind", Key=keys[0], TopK=1)
    assert [item.Bytes for item in found.Values] == [value]


async def test_the_memory_of_a_backend_is_reported(client, worker):
    reply = await client.ask("Status")
    assert (reply.state, reply.memory.total, dict(reply.memory.breakdown)) == (2, 5, {"weights": 4})
    # No model was loaded for that, nor a text generated.
    assert (worker.loads, worker.received) == ([], [])
    worker.fail(lacks=frozenset({"Status"}))
    assert (await client.ask("Status")).state == 2
