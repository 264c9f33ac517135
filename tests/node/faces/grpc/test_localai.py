"""LocalAI at a node: it uses the node's face as an external backend, and any worker of the mesh answers."""

import asyncio
import base64
import wave
from typing import ClassVar

import orjson
import pytest
from aiohttp import web

from router.rpc.failures import RpcFailed
from router.rpc.messages import LOCALAI, message_class
from tests.node.faces.assembly import until
from tests.workers import remotellm_worker, tgi_worker
from tests.workers.openai_worker import WORDS

SAID = "".join(WORDS)
STREAMED = "".join(WORDS[1:])  # without the word that the stub replaces by its role chunk
MESSAGE = message_class("backend.Message")


def messages(*turns):
    return [MESSAGE(role=role, content=content) for role, content in turns]


@pytest.fixture(params=["serving", "asked"])
async def client(request, mesh, worker, opened, tmp_path):
    await mesh.one.register(worker)
    await mesh.knows(mesh.two, "tiny")
    node = mesh.one if request.param == "serving" else mesh.two
    made = await opened("localai", LOCALAI, node.context, localai_files=str(tmp_path))
    assert (await made.ask("LoadModel", Model="tiny")).success
    return made


async def test_the_face_is_healthy(client):
    assert (await client.ask("Health")).message == b"OK"


async def test_a_model_is_loaded_when_a_worker_serves_it(served, opened):
    client = await opened("localai", LOCALAI, served.context)
    assert (await client.ask("Status")).state == 0
    with pytest.raises(RpcFailed) as failed:
        await client.ask("Predict", Prompt="a")
    assert failed.value.code == "FAILED_PRECONDITION"
    assert "LoadModel" in failed.value.words
    loaded = await client.ask("LoadModel", Model="none")
    assert (loaded.success, "'none'" in loaded.message) == (False, True)
    assert (await client.ask("LoadModel", Model="p/tiny", ContextSize=99)).success
    assert (await client.ask("Status")).state == 2
    assert (await client.ask("Predict", Prompt="a")).message == SAID.encode()


async def test_a_prompt_is_sent_as_a_completion(client, worker):
    reply = await client.ask(
        "Predict", Prompt="Once", Tokens=7, Temperature=0.7, TopP=0.95, TopK=40, Penalty=1.1, Seed=-1,
        StopPrompts=["END"], LogitBias='{"5":1}',
    )  # fmt: skip
    assert reply.message == SAID.encode()
    received = worker.received[0]
    assert received.path == "/v1/completions"
    assert orjson.loads(received.body) == {
        "model": "tiny", "prompt": "Once", "max_tokens": 7, "temperature": 0.7, "top_p": 0.95, "top_k": 40,
        "repetition_penalty": 1.1, "stop": ["END"], "logit_bias": {"5": 1},
    }  # fmt: skip


async def test_parameters_of_llama_cpp_are_sent_only_where_they_take_effect(client, worker):
    await client.ask("Predict", Prompt="a", MirostatTAU=5, MirostatETA=0.1, Repeat=64)
    assert not {"mirostat_tau", "mirostat_eta", "repeat_last_n"} & set(
        orjson.loads(worker.received[-1].body)
    )
    await client.ask(
        "Predict", Prompt="a", Mirostat=2, MirostatTAU=5, MirostatETA=0.1, NKeep=7, IgnoreEOS=True,
        Grammar='root ::= "a"',
    )  # fmt: skip
    assert orjson.loads(worker.received[-1].body) == {
        "model": "tiny", "prompt": "a", "temperature": 0, "mirostat": 2, "mirostat_tau": 5, "mirostat_eta": 0.1,
        "n_keep": 7, "ignore_eos": True, "grammar": 'root ::= "a"',
    }  # fmt: skip


async def test_messages_to_be_templated_are_a_chat(client, worker):
    image = base64.b64encode(b"\xff\xd8\xff\xe0 a picture").decode()
    sent = messages(("system", "be kind"), ("user", "hi"))
    await client.ask("Predict", Messages=sent, UseTokenizerTemplate=True, Images=[image])
    received = worker.received[0]
    assert received.path == "/v1/chat/completions"
    first, second = orjson.loads(received.body)["messages"]
    assert first == {"role": "system", "content": "be kind"}
    assert second["content"] == [
        {"type": "text", "text": "hi"},
        {"type": "image_url", "image_url": {"url": f"data:image/jpeg;base64,{image}"}},
    ]


@pytest.mark.parametrize(
    "wrong",
    [
        {"Prompt": "a", "LogitBias": "{"},
        {"Prompt": "a", "Images": ["aGVsbG8="]},
        {"Messages": messages(("user", "a")), "UseTokenizerTemplate": True, "Images": ["?"]},
        {"Messages": messages(("system", "a")), "UseTokenizerTemplate": True, "Images": ["aGVsbG8="]},
    ],
)  # fmt: skip
async def test_invalid_parameters_are_refused(client, worker, wrong):
    with pytest.raises(RpcFailed) as failed:
        await client.ask("Predict", **wrong)
    assert failed.value.code == "INVALID_ARGUMENT"
    assert worker.received == []


async def test_a_stream_comes_piece_by_piece_with_its_tokens_at_the_end(client, worker):
    worker.fail(delay_between=0.02)
    replies = [reply async for reply in client.stream("PredictStream", Prompt="Once")]
    assert b"".join(reply.message for reply in replies) == STREAMED.encode()
    assert len(replies) >= 5
    assert (replies[-1].tokens, replies[-1].prompt_tokens) == (6, 5)


@pytest.mark.parametrize("fault", [{"die_after": 3}, {"no_done": True}])
async def test_a_stream_that_breaks_off_is_a_failure(client, worker, fault):
    worker.fail(**fault)
    with pytest.raises(RpcFailed) as failed:
        _ = [reply async for reply in client.stream("PredictStream", Prompt="Once")]
    assert failed.value.code == "INTERNAL"


async def test_a_caller_that_leaves_cancels_the_request_at_the_worker(client, worker):
    worker.fail(delay_between=60)

    async def listen():
        _ = [reply async for reply in client.stream("PredictStream", Prompt="Once")]

    caller = asyncio.ensure_future(listen())
    await until(lambda: len(worker.received) == 1)
    caller.cancel()
    await until(lambda: worker.hung_up == 1)


async def test_a_text_or_tokens_are_embedded(client, worker):
    reply = await client.ask("Embedding", Embeddings="a")
    assert list(reply.embeddings) == [0.25, -1.5]
    assert orjson.loads(worker.received[0].body)["encoding_format"] == "float"
    await client.ask("Embedding", EmbeddingTokens=[1, 2])
    assert orjson.loads(worker.received[1].body)["input"] == [1, 2]
    with pytest.raises(RpcFailed, match="INVALID_ARGUMENT"):
        await client.ask("Embedding", Prompt="a")


class TestKeys:
    @pytest.fixture
    async def client(self, served, opened, tmp_path):
        keys = tmp_path / "keys"
        keys.write_text("first\n")
        keys.chmod(0o600)
        faces = {"default_model": "tiny", "localai_keys": str(keys)}
        return await opened("localai", LOCALAI, served.context, **faces)

    async def test_a_known_key_opens_the_face(self, client):
        client.said = {"authorization": "Bearer first"}
        assert (await client.ask("Predict", Prompt="a")).message == SAID.encode()
        assert [reply async for reply in client.stream("PredictStream", Prompt="a")]

    @pytest.mark.parametrize(
        "said", [{}, {"authorization": "Bearer x"}, {"authorization": "first"}]
    )
    async def test_anything_but_a_known_key_is_unauthenticated(self, client, worker, said):
        client.said = said
        for rpc in ("Health", "Predict", "LoadModel", "TTS", "StoresGet", "Status"):
            with pytest.raises(RpcFailed) as failed:
                await client.ask(rpc)
            assert failed.value.code == "UNAUTHENTICATED"
        with pytest.raises(RpcFailed):
            _ = [reply async for reply in client.stream("PredictStream", Prompt="a")]
        assert worker.received == []


class TestFiles:
    async def test_an_image_is_written_to_the_requested_path(self, client, worker, tmp_path):
        to = tmp_path / "out.png"
        fields = {"width": 64, "height": 32, "step": 7, "seed": 3, "positive_prompt": "a cat"}
        done = await client.ask("GenerateImage", negative_prompt="a dog", dst=str(to), **fields)
        assert (done.success, to.read_bytes()) == (True, b"hello")
        assert orjson.loads(worker.received[0].body) == {
            "model": "tiny", "prompt": "a cat|a dog", "n": 1, "response_format": "b64_json", "size": "64x32",
            "step": 7, "seed": 3,
        }  # fmt: skip

    async def test_an_image_may_be_made_from_another_one(self, client, worker, tmp_path):
        source, to = tmp_path / "in.PNG", tmp_path / "out.png"
        source.write_bytes(b"\x89PNG and so on")
        await client.ask("GenerateImage", positive_prompt="a cat", src=str(source), dst=str(to))
        received = worker.received[0]
        assert received.path == "/v1/images/edits"
        assert b'name="image"; filename="image.png"' in received.body
        assert b"\x89PNG and so on" in received.body
        assert to.read_bytes() == b"hello"

    async def test_speech_and_sounds_are_written_to_the_requested_path(
        self, client, worker, tmp_path
    ):
        to = tmp_path / "out.wav"
        assert (await client.ask("TTS", text="hi", voice="ann", dst=str(to))).success
        assert to.read_bytes().startswith(b"RIFF")
        assert orjson.loads(worker.received[0].body) == {
            "model": "tiny", "input": "hi", "response_format": "wav", "voice": "ann",
        }  # fmt: skip
        await client.ask("SoundGeneration", text="rain", duration=2.5, sample=True, dst=str(to))
        fields = orjson.loads(worker.received[1].body)
        assert (fields["text"], fields["duration_seconds"], fields["do_sample"]) == (
            "rain",
            2.5,
            True,
        )

    @pytest.mark.parametrize(
        "path",
        ["", "/etc/passwd", "../x", "relative", "{root}/../x", "{root}", "a\0b", "{root}/link/x"],
    )
    async def test_paths_outside_the_directory_are_refused(self, client, worker, tmp_path, path):
        (tmp_path / "link").symlink_to("/tmp")
        with pytest.raises(RpcFailed) as failed:
            await client.ask("TTS", text="hi", dst=path.format(root=tmp_path))
        assert failed.value.code in ("PERMISSION_DENIED", "INVALID_ARGUMENT")
        assert worker.received == []

    async def test_without_a_directory_files_are_refused_naming_the_setting(self, served, opened):
        client = await opened("localai", LOCALAI, served.context, default_model="tiny")
        for rpc in ("TTS", "SoundGeneration", "GenerateImage", "AudioTranscription"):
            with pytest.raises(RpcFailed) as failed:
                await client.ask(rpc, dst="/tmp/x")
            assert failed.value.code == "FAILED_PRECONDITION"
            assert "faces.localai_files" in failed.value.words

    async def test_a_missing_directory_keeps_the_face_closed(self, served, opened):
        with pytest.raises(OSError, match="no such directory"):
            await opened("localai", LOCALAI, served.context, localai_files="/no/such/place")


@pytest.fixture
async def speaking(alone, opened, tmp_path):
    """Yield a client of a node whose worker gives the test's answers, by path, and the bodies that it got."""
    answers, requests = {}, {}

    async def answer(request):
        name = request.path.removeprefix("/v1/").strip("/")
        requests[name] = await request.read()
        return web.json_response(answers[name])

    app = web.Application()
    app.router.add_post("/{path:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()

    class Place:
        url = f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}"

    await alone.register(Place)
    faces = {"default_model": "tiny", "localai_files": str(tmp_path)}
    yield await opened("localai", LOCALAI, alone.context, **faces), answers, requests
    await runner.cleanup()


async def test_documents_are_ranked(speaking):
    client, answers, requests = speaking
    results = [{"index": 1, "relevance_score": 0.5}, {"index": 0, "relevance_score": 0}]
    answers["rerank"] = {"results": results, "usage": {"total_tokens": 9, "prompt_tokens": 4}}
    reply = await client.ask("Rerank", query="q", documents=["a", "b"], top_n=2)
    assert [(r.index, r.text, r.relevance_score) for r in reply.results] == [
        (1, "b", 0.5),
        (0, "a", 0),
    ]
    assert (reply.usage.total_tokens, reply.usage.prompt_tokens) == (9, 4)
    assert orjson.loads(requests["rerank"])["documents"] == ["a", "b"]


async def test_recordings_are_transcribed_and_translated(speaking, tmp_path):
    client, answers, requests = speaking
    recording = tmp_path / "in.wav"
    with wave.open(str(recording), "wb") as file:
        file.setparams((1, 2, 16_000, 0, "NONE", ""))
        file.writeframes(bytes(3200))
    segments = [{"start": 0.5, "end": 1.25, "text": "hello", "tokens": [7, 8]}]
    for name in ("audio/transcriptions", "audio/translations"):
        answers[name] = {"text": "hello", "segments": segments}
    for translate in (False, True):
        reply = await client.ask(
            "AudioTranscription", dst=str(recording), language="en", translate=translate
        )
        assert (reply.text, reply.segments[0].text) == ("hello", "hello")
        assert list(reply.segments[0].tokens) == [7, 8]
        assert (reply.segments[0].start, reply.segments[0].end) == (500_000_000, 1_250_000_000)
    assert set(requests) == {"audio/transcriptions", "audio/translations"}
    assert b'filename="file.wav"' in requests["audio/transcriptions"]


async def test_stores_set_get_find_and_delete_columns(speaking):
    client, answers, requests = speaking
    key, value = message_class("backend.StoresKey"), message_class("backend.StoresValue")
    columns = {"keys": [[1.0, 0.5]], "values": ["a"]}
    answers["stores/set"] = answers["stores/delete"] = {}
    answers["stores/get"] = columns
    answers["stores/find"] = columns | {"similarities": [0.75]}
    keys = [key(Floats=[1.0, 0.5])]
    assert (await client.ask("StoresSet", Keys=keys, Values=[value(Bytes=b"a")])).success
    assert orjson.loads(requests["stores/set"])["values"] == ["a"]
    assert (await client.ask("StoresDelete", Keys=keys)).success
    got = await client.ask("StoresGet", Keys=keys)
    assert (list(got.Keys[0].Floats), got.Values[0].Bytes) == ([1.0, 0.5], b"a")
    found = await client.ask("StoresFind", Key=keys[0], TopK=1)
    assert list(found.Similarities) == [0.75]
    # Bytes that are no text are sent encoded as text.
    await client.ask("StoresSet", Keys=keys, Values=[value(Bytes=b"\xff")])
    answers["stores/get"] = orjson.loads(requests["stores/set"])
    assert (await client.ask("StoresGet", Keys=keys)).Values[0].Bytes == b"\xff"


@pytest.mark.parametrize(
    ("rpc", "path", "fields"),
    [
        ("Embedding", "embeddings", {"Embeddings": "a"}),
        ("Rerank", "rerank", {"query": "q", "documents": ["a"]}),
        ("StoresGet", "stores/get", {}),
        ("StoresFind", "stores/find", {}),
    ],
)
@pytest.mark.parametrize(
    "answer",
    [[], {}, {"data": [{"embedding": ["x"]}]}, {"results": [{"index": 7, "relevance_score": 1}]},
     {"results": [5]}, {"keys": [1], "values": []}, {"keys": [["x"]], "values": ["a"]},
     {"keys": [], "values": [], "similarities": ["x"]}],
)  # fmt: skip
async def test_an_invalid_answer_is_a_failure(speaking, rpc, path, fields, answer):
    client, answers, _ = speaking
    answers[path] = answer
    if rpc.startswith("Stores"):
        key = message_class("backend.StoresKey")(Floats=[1.0])
        fields = {"Keys": [key]} if rpc == "StoresGet" else {"Key": key}
        if answer == {"keys": [], "values": []} and rpc == "StoresGet":
            return
    if rpc == "StoresGet" and isinstance(answer, dict) and answer.get("similarities"):
        return
    with pytest.raises(RpcFailed) as failed:
        await client.ask(rpc, **fields)
    assert failed.value.code == "INTERNAL"


async def test_metrics_are_those_of_the_last_text_of_this_face(client, worker):
    before = await client.ask("GetMetrics")
    assert (before.tokens_generated, before.prompt_tokens_processed) == (0, 0)
    worker.fail(finish="stop", usage={"prompt_tokens": 5, "completion_tokens": 7})
    await client.ask("Predict", Prompt="a secret")
    reported = await client.ask("GetMetrics")
    assert (reported.tokens_generated, reported.prompt_tokens_processed) == (7, 5)
    assert reported.tokens_per_second > 0
    assert reported.prompt_json_for_slot == ""
    worker.fail(usage={"prompt_tokens": 5, "completion_tokens": 9})
    assert [reply async for reply in client.stream("PredictStream", Prompt="a")]
    assert (await client.ask("GetMetrics")).tokens_generated == 9


class TestWhatHasNoEffect:
    """Parameters without effect are named in the trailing metadata, as the caller calls them."""

    FIELDS: ClassVar = {
        "Prompt": "a", "NegativePrompt": "rain", "TailFreeSamplingZ": 0.5, "Repeat": 7, "TopK": 3, "PenalizeNL": True,
        "Logprobs": 1, "TypicalP": 0.5, "Tokens": 9, "Temperature": 0.5, "TopP": 0.5,
    }  # fmt: skip

    @pytest.fixture(params=["serving", "asked"])
    async def client_of(self, request, mesh, opened):
        async def client_of(worker, scheme):
            api = worker.url.replace("http:", f"{scheme}:").replace("grpc:", f"{scheme}:")
            node = await mesh.offers(request.param, worker, api=api)
            return await opened("localai", LOCALAI, node.context, default_model="tiny")

        return client_of

    @pytest.mark.parametrize("rpc", ["Predict", "PredictStream"])
    async def test_is_named_with_a_worker_of_another_protocol(self, client_of, rpc):
        async with remotellm_worker.running() as worker:
            client = await client_of(worker, "grpc+remotellm")
            dropped = set((await client.named(rpc, **self.FIELDS)).split(", "))
            assert dropped == set(self.FIELDS) - {"Prompt"}
            talk = {"UseTokenizerTemplate": True, "Messages": [{"role": "user", "content": "a"}]}
            assert await client.named(rpc, **talk, Temperature=0.5) == "Temperature"

    async def test_is_named_with_a_tgi_worker(self, client_of):
        async with tgi_worker.running() as worker:
            client = await client_of(worker, "tgi+http")
            talk = {"UseTokenizerTemplate": True, "Messages": [{"role": "user", "content": "a"}]}
            dropped = await client.named("Predict", **talk, TopK=3, Repeat=7, Temperature=0.5)
            assert set(dropped.split(", ")) == {"TopK", "Repeat"}


@pytest.mark.parametrize("seed", [-5, -(2**31), 7])
async def test_a_negative_seed_is_sent_as_an_unsigned_one(client, worker, seed):
    await client.ask("Predict", Prompt="a", Seed=seed)
    assert orjson.loads(worker.received[-1].body)["seed"] == seed & 0xFFFFFFFF


async def test_audios_and_videos_are_parts_of_the_users_last_message(client, worker):
    talk = {"UseTokenizerTemplate": True, "Messages": [{"role": "user", "content": "a"}]}
    sound = base64.b64encode(b"ID3" + bytes(40)).decode()
    await client.ask("Predict", **talk, Audios=[sound], Videos=["AAAA"])
    [message] = orjson.loads(worker.received[-1].body)["messages"]
    assert message["content"][1:] == [
        {"type": "input_audio", "input_audio": {"data": sound, "format": "mp3"}},
        {"type": "video_url", "video_url": {"url": "data:video/mp4;base64,AAAA"}},
    ]
    for name in ("Audios", "Videos"):
        with pytest.raises(RpcFailed) as failed:
            await client.ask("Predict", Prompt="a", **{name: [sound]})
        assert failed.value.code == "INVALID_ARGUMENT"


async def test_tools_and_the_results_of_their_calls_are_sent(client, worker):
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    messages = [
        {
            "role": "assistant",
            "tool_calls": '[{"id":"c","type":"function","function":{"name":"f","arguments":"{}"}}]',
        },
        {"role": "tool", "content": "7", "tool_call_id": "c", "name": "f"},
    ]
    fields = {"UseTokenizerTemplate": True, "Messages": messages, "MinP": 0.25}
    await client.ask("Predict", **fields, Tools=orjson.dumps([tool]).decode(), ToolChoice="auto")
    body = orjson.loads(worker.received[-1].body)
    assert (body["tools"], body["tool_choice"], body["min_p"]) == ([tool], "auto", 0.25)
    assert body["messages"][0]["tool_calls"][0]["id"] == "c"
    assert body["messages"][1]["tool_call_id"] == "c"


async def test_tool_calls_come_in_the_fields_of_newer_backends(speaking):
    client, answers, _ = speaking
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}
    message = {"role": "assistant", "content": None, "tool_calls": [call]}
    answers["chat/completions"] = {
        "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}]
    }
    fields = {"UseTokenizerTemplate": True, "Messages": messages(("user", "a"))}
    [delta] = (await client.ask("Predict", **fields)).chat_deltas
    [tool_call] = delta.tool_calls
    assert (tool_call.id, tool_call.name, tool_call.arguments) == ("c", "f", '{"a":1}')
