"""Does OpenAI's own client work with any node, unmodified? Answers, streams, files, and its error classes."""

import asyncio
from collections.abc import AsyncIterator

import openai
import pytest

from router.settings import RouterSettings
from tests.swarm.client import Client
from tests.swarm.nodes import Node
from tests.swarm.waiting import until
from tests.workers.openai_worker import WORDS, OpenAIWorker, running

pytestmark = pytest.mark.swarm

PROJECT = "openai-client"
MODELS = ("talker", "painter", "listener", "full")
SAID = "".join(WORDS)
HELLO = [{"role": "user", "content": "Hello!"}]
PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 40


@pytest.fixture
async def worker(three: list[Node], client: Client) -> AsyncIterator[OpenAIWorker]:
    """A worker behind node 1, and its models known at all nodes."""
    async with running() as worker:
        await client.register(three[0], PROJECT, MODELS, worker.url)
        await client.listed(three, *MODELS)
        await client.agreed(three)
        yield worker
        await client.unregister(three[0], PROJECT)


@pytest.fixture(params=["serving", "asked"])
async def ai(
    request: pytest.FixtureRequest, three: list[Node], worker: OpenAIWorker
) -> AsyncIterator[openai.AsyncOpenAI]:
    """OpenAI's client at the node with the worker, and at one that has none."""
    node = three[0] if request.param == "serving" else three[2]
    async with openai.AsyncOpenAI(
        base_url=f"{node.http}/v1", api_key="sk-nobody-checks-it", max_retries=0, timeout=20
    ) as ai:
        yield ai


async def test_chat(ai: openai.AsyncOpenAI) -> None:
    answer = await ai.chat.completions.create(model="talker", messages=HELLO)
    assert answer.choices[0].message.content == SAID
    assert answer.model == "talker"


async def test_chat_in_a_stream(ai: openai.AsyncOpenAI) -> None:
    stream = await ai.chat.completions.create(model="talker", messages=HELLO, stream=True)
    pieces = [chunk.choices[0].delta.content or "" async for chunk in stream]
    assert "".join(pieces) == "".join(WORDS[1:])
    assert len(pieces) == len(WORDS)


async def test_a_project_may_stand_before_the_models_name(ai: openai.AsyncOpenAI) -> None:
    answer = await ai.chat.completions.create(model=f"{PROJECT}/talker", messages=HELLO)
    assert answer.choices[0].message.content == SAID


async def test_completions(ai: openai.AsyncOpenAI, worker: OpenAIWorker) -> None:
    answer = await ai.completions.create(model="talker", prompt="Hello!")
    assert answer.id == "c"
    assert worker.received[-1].path == "/v1/completions"


async def test_embeddings(ai: openai.AsyncOpenAI) -> None:
    answer = await ai.embeddings.create(model="talker", input="Hello!", encoding_format="float")
    assert answer.data[0].embedding == [0.25, -1.5]


async def test_images_are_made(ai: openai.AsyncOpenAI) -> None:
    answer = await ai.images.generate(model="painter", prompt="A cute baby sea otter", n=1)
    assert answer.data
    assert answer.data[0].b64_json == "aGVsbG8="


async def test_images_are_edited_and_the_file_arrives_as_it_was(
    ai: openai.AsyncOpenAI, worker: OpenAIWorker
) -> None:
    answer = await ai.images.edit(
        model="painter",
        image=("otter.png", PNG, "image/png"),
        mask=("mask.png", PNG[::-1], "image/png"),
        prompt="wearing a beret",
    )
    assert answer.data
    assert answer.data[0].b64_json == "aGVsbG8="
    assert PNG in worker.received[-1].body
    assert PNG[::-1] in worker.received[-1].body


async def test_several_images_are_edited_at_once(
    ai: openai.AsyncOpenAI, worker: OpenAIWorker
) -> None:
    images = [("a.png", PNG, "image/png"), ("b.png", PNG[::-1], "image/png")]
    await ai.images.edit(model="painter", image=images, prompt="together")
    assert worker.received[-1].body.count(b'name="image[]"') == 2


async def test_speech_is_bytes(ai: openai.AsyncOpenAI) -> None:
    answer = await ai.audio.speech.create(model="talker", voice="alloy", input="Hello!")
    assert answer.content[:4] == b"RIFF"
    assert len(answer.content) == 1004


async def test_a_recording_is_transcribed(ai: openai.AsyncOpenAI, worker: OpenAIWorker) -> None:
    await ai.audio.transcriptions.create(model="listener", file=("a.wav", PNG, "audio/wav"))
    assert worker.received[-1].path == "/v1/audio/transcriptions"
    assert PNG in worker.received[-1].body


async def test_models_are_listed_and_looked_up(ai: openai.AsyncOpenAI) -> None:
    names = {model.id async for model in ai.models.list()}
    assert set(MODELS) <= names
    retrieved = await ai.models.retrieve("talker")
    assert (retrieved.id, retrieved.object, retrieved.owned_by) == ("talker", "model", PROJECT)
    with pytest.raises(openai.NotFoundError):
        await ai.models.retrieve("nobody-has-this")


async def test_an_unknown_model_is_not_found_and_the_error_names_the_nearest_ones(
    ai: openai.AsyncOpenAI,
) -> None:
    with pytest.raises(openai.NotFoundError, match="talker") as caught:
        await ai.chat.completions.create(model="talkr", messages=HELLO)
    assert caught.value.code == "model_not_found"


async def test_a_bad_body_is_a_bad_request(ai: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        await ai.chat.completions.create(model="", messages=HELLO)
    assert caught.value.type == "invalid_request_error"


async def test_a_rejection_of_the_worker_is_passed_on_in_its_own_words(
    ai: openai.AsyncOpenAI, worker: OpenAIWorker
) -> None:
    refusal = b'{"error":{"message":"temperature is 9","type":"x","param":"temperature"}}'
    worker.fail(status=400, refusal=refusal)
    with pytest.raises(openai.BadRequestError, match="temperature is 9") as caught:
        await ai.chat.completions.create(model="talker", messages=HELLO, temperature=9)
    assert caught.value.param == "temperature"


async def test_a_full_worker_is_a_rate_limit_error_with_retry_after(
    ai: openai.AsyncOpenAI, worker: OpenAIWorker
) -> None:
    worker.fail(status=429, retry_after="7")
    with pytest.raises(openai.RateLimitError) as caught:
        await ai.chat.completions.create(model="full", messages=HELLO)
    assert caught.value.response.headers["retry-after"] == "7"


async def test_a_capacity_and_a_queue_that_are_used_up_are_a_rate_limit_error(
    ai: openai.AsyncOpenAI, worker: OpenAIWorker, three: list[Node], client: Client
) -> None:
    row = {"project": PROJECT, "model": "full", "api": worker.url, "type": 0, "capacity": 1}
    answer = await client.post(three[0], "/api/v0/ai/model/register", row)
    assert answer.status == 200
    worker.fail(delay_between=0.2)
    async with client.stream(three[0], "full") as response:
        assert response.status == 200
        asking = [
            asyncio.ensure_future(ai.chat.completions.create(model="full", messages=HELLO))
            for _ in range(RouterSettings().queue + 1)
        ]
        done, pending = await asyncio.wait(asking, return_when=asyncio.FIRST_COMPLETED)
        for task in pending:
            task.cancel()
        await asyncio.wait(asking)
    refused = done.pop().exception()
    assert isinstance(refused, openai.RateLimitError)
    assert int(refused.response.headers["retry-after"]) >= 1


async def test_a_known_model_whose_worker_is_gone_is_an_internal_server_error(
    ai: openai.AsyncOpenAI, three: list[Node], client: Client
) -> None:
    # Nothing listens on port 9 of loopback.
    await client.register(three[0], "gone", ["gone"], "http://127.0.0.1:9/v1")
    await client.listed(three, "gone")
    with pytest.raises(openai.InternalServerError) as caught:
        await ai.chat.completions.create(model="gone", messages=HELLO)
    assert caught.value.status_code == 503
    assert int(caught.value.response.headers["retry-after"]) >= 1
    await client.unregister(three[0], "gone")

    async def forgotten() -> bool:
        return not [n for n in three if "gone" in await client.models(n)]

    await until(forgotten, within=5, otherwise="it is still listed")


async def test_a_stream_that_breaks_raises_and_does_not_end_as_if_it_were_whole(
    ai: openai.AsyncOpenAI, worker: OpenAIWorker
) -> None:
    worker.fail(die_after=3, delay_between=0.05)
    stream = await ai.chat.completions.create(model="talker", messages=HELLO, stream=True)
    chunks = aiter(stream)
    pieces = [(await anext(chunks)).choices[0].delta.content or "" for _ in range(3)]
    assert pieces == ["", *WORDS[1:3]]
    with pytest.raises(openai.APIError):
        await anext(chunks)
