"""Every kind of request besides text, at a node whose worker is a LocalAI backend, and one hop away."""

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
    """Return what calls of one name asked of a backend: nodes also make other calls to find out what it is."""
    return [request.asked for request in localai.received if request.path.endswith(f"/{name}")]


async def test_embeddings_are_the_same_in_base64_and_as_numbers(ai):
    # The client asks for base64 by default, and for numbers where it is told to.
    packed = await ai.embeddings.create(model="tiny", input=["hi", "there"])
    plain = await ai.embeddings.create(model="tiny", input=["hi", "there"], encoding_format="float")
    assert [vector.embedding for vector in packed.data] == [
        vector.embedding for vector in plain.data
    ]
    assert plain.data[1].embedding == [5, 0.5, -1]
    assert (plain.model, plain.usage.total_tokens) == ("tiny", 3)


async def test_images(ai):
    made = await ai.images.generate(model="tiny", prompt="a hat", n=2, size="256x256")
    assert [b64decode(image.b64_json) for image in made.data] == [PNG, PNG]
    assert made.data[0].url is None
    by_url = await ai.images.generate(model="tiny", prompt="a hat", response_format="url")
    assert by_url.data[0].url.startswith("data:image/png;base64,")
    assert by_url.data[0].b64_json is None


async def test_an_image_is_edited_and_a_mask_is_refused(ai, localai):
    edited = await ai.images.edit(model="tiny", image=("a.png", PNG), prompt="a hat")
    assert b64decode(edited.data[0].b64_json) == PNG
    [request] = calls(localai, "GenerateImage")
    assert request.src.endswith(".png")
    listed = await ai.images.edit(model="tiny", image=[("a.png", PNG)], prompt="a hat")
    assert len(listed.data) == 1
    with pytest.raises(openai.BadRequestError) as refused:
        await ai.images.edit(
            model="tiny", image=("a.png", PNG), mask=("b.png", PNG), prompt="a hat"
        )
    assert (refused.value.code, refused.value.param) == ("unsupported_parameter", "mask")


async def test_transcripts_come_as_text_json_and_subtitles(ai, localai):
    transcript = f"{len(WAV)} bytes {len(WAV)} bytes"
    plain = await ai.audio.transcriptions.create(model="tiny", file=("a.wav", WAV))
    assert plain.text == transcript
    verbose = await ai.audio.transcriptions.create(
        model="tiny", file=("a.wav", WAV), response_format="verbose_json", language="de"
    )
    assert [(segment.start, segment.end) for segment in verbose.segments] == [(0, 1), (1, 2)]
    subtitles = await ai.audio.transcriptions.create(
        model="tiny", file=("a.wav", WAV), response_format="vtt"
    )
    assert subtitles.startswith("WEBVTT\n\n00:00:00.000 --> 00:00:01.000\n")
    assert [request.translate for request in calls(localai, "AudioTranscription")] == [False] * 3


async def test_a_recording_is_translated(node, localai):
    form = aiohttp.FormData({"model": "tiny"})
    form.add_field("file", WAV, filename="a.wav")
    status, payload = await told(node.http.post("/v1/audio/translations", data=form))
    assert (status, payload) == (200, {"text": f"{len(WAV)} bytes {len(WAV)} bytes"})
    assert [request.translate for request in calls(localai, "AudioTranscription")] == [True]


async def test_speech_is_wav_and_other_formats_are_refused(ai):
    spoken = await ai.audio.speech.create(model="tiny", voice="ann", input="hi")
    assert (spoken.content, spoken.response.headers["content-type"]) == (WAV, "audio/wav")
    with pytest.raises(openai.BadRequestError) as refused:
        await ai.audio.speech.create(model="tiny", voice="ann", input="hi", response_format="mp3")
    assert refused.value.param == "response_format"


async def test_a_sound_is_generated(node):
    fields = {"model_id": "tiny", "text": "rain", "duration_seconds": 1}
    async with node.http.post("/v1/sound-generation", json=fields) as response:
        assert (response.status, await response.read()) == (200, WAV)
        assert response.headers["content-type"] == "audio/wav"


async def test_documents_are_ranked_and_texts_are_tokenized(node):
    fields = {"model": "tiny", "query": "q", "documents": ["a", "bbb"], "top_n": 1}
    status, ranked = await told(node.http.post("/v1/rerank", json=fields))
    assert (status, ranked["model"]) == (200, "tiny")
    [best] = ranked["results"]
    assert (best["index"], best["document"]) == (1, {"text": "bbb"})
    asked = {"model": "tiny", "content": "eight by"}
    assert await told(node.http.post("/v1/tokenize", json=asked)) == (200, {"tokens": [0, 4]})


@pytest.mark.parametrize("prefix", ["", "/v1"])
async def test_a_store_keeps_finds_and_deletes_columns(node, prefix):
    keys, values = [[0.5, 1], [3, 4]], ["a", "b"]

    async def store(operation, **fields):
        path = f"{prefix}/stores/{operation}"
        return await told(node.http.post(path, json={"store": "tiny", **fields}))

    assert await store("set", keys=keys, values=values) == (200, {})
    assert await store("get", keys=keys) == (200, {"keys": keys, "values": values})
    expected = {"keys": keys[1:], "values": values[1:], "similarities": [1]}
    assert await store("find", key=[3, 3], topk=1) == (200, expected)
    assert await store("delete", keys=keys[:1]) == (200, {})
    assert await store("get", keys=keys) == (200, {"keys": keys[1:], "values": values[1:]})
    status, body = await store("set", keys=keys, values=["a"])
    assert (status, body["error"]["param"]) == (400, "values")


async def test_a_call_that_the_backend_lacks_is_an_unsupported_parameter(ai, localai):
    localai.fail(lacks=frozenset({"Embedding"}))
    with pytest.raises(openai.BadRequestError) as refused:
        await ai.embeddings.create(model="tiny", input="hi")
    assert refused.value.code == "unsupported_parameter"
