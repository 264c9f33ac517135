"""Every kind of request that is no text, at a node whose worker is a LocalAI backend, and one hop away."""

import tempfile
from base64 import b64decode

import aiohttp
import openai
import pytest

from tests.node.faces.assembly import openai_at, told
from tests.workers import localai_worker
from tests.workers.localai_worker import PNG, WAV


@pytest.fixture
async def localai():
    async with localai_worker.running() as worker:
        yield worker


@pytest.fixture(params=["serving", "asked"])
async def node(request, mesh, localai, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    api = localai.url.replace("grpc:", "grpc+localai:")
    yield await mesh.offers(request.param, localai, api=api)
    assert [*tmp_path.iterdir()] == []


@pytest.fixture
async def ai(node):
    async with openai_at(node) as ai:
        yield ai


def calls(localai, name):
    """Return what a backend was asked by calls of a name: nodes ask it what it is besides."""
    return [one.asked for one in localai.received if one.path.endswith(f"/{name}")]


async def test_embeddings(ai):
    # The client asks for base64 by itself, and for numbers where its caller says so.
    packed = await ai.embeddings.create(model="tiny", input=["hi", "there"])
    plain = await ai.embeddings.create(model="tiny", input=["hi", "there"], encoding_format="float")
    assert [one.embedding for one in packed.data] == [one.embedding for one in plain.data]
    assert plain.data[1].embedding == [5, 0.5, -1]
    assert (plain.model, plain.usage.total_tokens) == ("tiny", 3)


async def test_images(ai):
    made = await ai.images.generate(model="tiny", prompt="a hat", n=2, size="256x256")
    assert [b64decode(one.b64_json) for one in made.data] == [PNG, PNG]
    assert made.data[0].url is None
    named = await ai.images.generate(model="tiny", prompt="a hat", response_format="url")
    assert named.data[0].url.startswith("data:image/png;base64,")
    assert named.data[0].b64_json is None


async def test_an_image_made_of_another(ai, localai):
    one = await ai.images.edit(model="tiny", image=("a.png", PNG), prompt="a hat")
    assert b64decode(one.data[0].b64_json) == PNG
    [asked] = calls(localai, "GenerateImage")
    assert asked.src.endswith(".png")
    listed = await ai.images.edit(model="tiny", image=[("a.png", PNG)], prompt="a hat")
    assert len(listed.data) == 1
    with pytest.raises(openai.BadRequestError) as refused:
        await ai.images.edit(
            model="tiny", image=("a.png", PNG), mask=("b.png", PNG), prompt="a hat"
        )
    assert (refused.value.code, refused.value.param) == ("unsupported_parameter", "mask")


async def test_transcripts(ai, localai):
    heard = f"{len(WAV)} bytes {len(WAV)} bytes"
    plain = await ai.audio.transcriptions.create(model="tiny", file=("a.wav", WAV))
    assert plain.text == heard
    verbose = await ai.audio.transcriptions.create(
        model="tiny", file=("a.wav", WAV), response_format="verbose_json", language="de"
    )
    assert [(one.start, one.end) for one in verbose.segments] == [(0, 1), (1, 2)]
    subtitles = await ai.audio.transcriptions.create(
        model="tiny", file=("a.wav", WAV), response_format="vtt"
    )
    assert subtitles.startswith("WEBVTT\n\n00:00:00.000 --> 00:00:01.000\n")
    assert [asked.translate for asked in calls(localai, "AudioTranscription")] == [False] * 3


async def test_a_translation(node, localai):
    form = aiohttp.FormData({"model": "tiny"})
    form.add_field("file", WAV, filename="a.wav")
    status, said = await told(node.http.post("/v1/audio/translations", data=form))
    assert (status, said) == (200, {"text": f"{len(WAV)} bytes {len(WAV)} bytes"})
    assert [asked.translate for asked in calls(localai, "AudioTranscription")] == [True]


async def test_speech(ai):
    spoken = await ai.audio.speech.create(model="tiny", voice="ann", input="hi")
    assert (spoken.content, spoken.response.headers["content-type"]) == (WAV, "audio/wav")
    with pytest.raises(openai.BadRequestError) as refused:
        await ai.audio.speech.create(model="tiny", voice="ann", input="hi", response_format="mp3")
    assert refused.value.param == "response_format"


async def test_a_sound(node):
    said = {"model_id": "tiny", "text": "rain", "duration_seconds": 1}
    async with node.http.post("/v1/sound-generation", json=said) as response:
        assert (response.status, await response.read()) == (200, WAV)
        assert response.headers["content-type"] == "audio/wav"


async def test_a_ranking_and_tokens(node):
    said = {"model": "tiny", "query": "q", "documents": ["a", "bbb"], "top_n": 1}
    status, ranked = await told(node.http.post("/v1/rerank", json=said))
    assert (status, ranked["model"]) == (200, "tiny")
    [best] = ranked["results"]
    assert (best["index"], best["document"]) == (1, {"text": "bbb"})
    asked = {"model": "tiny", "content": "eight by"}
    assert await told(node.http.post("/v1/tokenize", json=asked)) == (200, {"tokens": [0, 4]})


@pytest.mark.parametrize("prefix", ["", "/v1"])
async def test_a_store(node, prefix):
    keys, values = [[0.5, 1], [3, 4]], ["a", "b"]

    async def store(operation, **fields):
        path = f"{prefix}/stores/{operation}"
        return await told(node.http.post(path, json={"store": "tiny", **fields}))

    assert await store("set", keys=keys, values=values) == (200, {})
    assert await store("get", keys=keys) == (200, {"keys": keys, "values": values})
    found = {"keys": keys[1:], "values": values[1:], "similarities": [1]}
    assert await store("find", key=[3, 3], topk=1) == (200, found)
    assert await store("delete", keys=keys[:1]) == (200, {})
    assert await store("get", keys=keys) == (200, {"keys": keys[1:], "values": values[1:]})
    status, body = await store("set", keys=keys, values=["a"])
    assert (status, body["error"]["param"]) == (400, "values")


async def test_what_a_backend_does_not_serve(ai, localai):
    localai.fail(lacks=frozenset({"Embedding"}))
    with pytest.raises(openai.BadRequestError) as refused:
        await ai.embeddings.create(model="tiny", input="hi")
    assert refused.value.code == "unsupported_parameter"
