"""Do real programs of every kind answer through the mesh? Each stands behind node 1; OpenAI's client asks node 3.

llama.cpp chats, completes, embeds, orders and counts; espeak-ng speaks, and pocketsphinx understands what it said, both over
OpenAI's HTTP and as a LocalAI backend.
"""

import io
import wave
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import openai
import pytest

from registry.records import ModelType
from tests.swarm.client import Client
from tests.swarm.nodes import Node, Swarm
from tests.workers.speech_worker import VOICE

pytestmark = pytest.mark.swarm

PROJECT = "kinds"
WORDS = "hello goodbye world moon"


@pytest.fixture(scope="module")
def workers(swarm: Swarm) -> list[dict[str, Any]]:
    """One program of each kind, as it is registered."""
    llama = {
        "text": swarm.start_worker("text", "--temperature", "0", module="node.demo.worker"),
        "embedding": swarm.start_worker("embedding", "--embedding", module="node.demo.worker"),
        "rerank": swarm.start_worker("rerank", "--rerank", module="node.demo.worker"),
    }
    rows = [
        {
            "model": f"real-{name}",
            "api": actor.ready.split()[1],
            "worker_model": actor.fields["model"],
            "type": int(ModelType[name.upper()]),
        }
        for name, actor in llama.items()
    ]
    audio = swarm.start_worker("audio", "--words", WORDS, module="tests.workers.speech_worker")
    for protocol, api in (("http", audio.fields["url"]), ("grpc", audio.fields["grpc"])):
        for name in ("speech", "transcription"):
            kind = int(ModelType[name.upper()])
            rows.append({"model": f"{name}-over-{protocol}", "api": api, "type": kind})
    return rows


@pytest.fixture
async def ai(
    three: list[Node], client: Client, workers: list[dict[str, Any]]
) -> AsyncIterator[openai.AsyncOpenAI]:
    """OpenAI's client at a node that has no worker."""
    body = {"project": PROJECT, "models": workers}
    answer = await client.post(three[0], "/api/v0/ai/project/register", body)
    assert answer.status == 200, answer.body
    await client.listed(three, *(row["model"] for row in workers))
    async with openai.AsyncOpenAI(
        base_url=f"{three[2].http}/v1", api_key="unused", max_retries=0, timeout=30
    ) as ai:
        yield ai
    await client.unregister(three[0], PROJECT)


async def test_a_chat_and_its_stream(ai: openai.AsyncOpenAI) -> None:
    arguments = {
        "model": "real-text",
        "messages": [{"role": "user", "content": "What is a vine?"}],
        "max_tokens": 12,
        "temperature": 0,
    }
    answer = await ai.chat.completions.create(**arguments)
    assert answer.model == "real-text"
    assert answer.usage
    assert answer.usage.completion_tokens == 12
    stream = await ai.chat.completions.create(stream=True, **arguments)
    pieces = [choice.delta.content or "" async for chunk in stream for choice in chunk.choices]
    assert "".join(pieces) == answer.choices[0].message.content
    assert len(pieces) >= 12


async def test_a_completion(ai: openai.AsyncOpenAI) -> None:
    answer = await ai.completions.create(model="real-text", prompt="A vine", max_tokens=8)
    assert answer.choices[0].text.strip()


async def test_embeddings_of_like_texts_are_nearer_than_those_of_others(
    ai: openai.AsyncOpenAI,
) -> None:
    texts = ["Grapes grow on a vine.", "Grapes grow on the vines.", "SELECT 1 FROM dual;"]
    answer = await ai.embeddings.create(model="real-embedding", input=texts)
    vine, vines, query = (row.embedding for row in answer.data)
    assert _cosine(vine, vines) > _cosine(vine, query)


async def test_documents_are_reordered_by_relevance(ai: openai.AsyncOpenAI) -> None:
    body = {"model": "real-rerank", "query": "What is a vine?", "documents": ["a car", "a plant"]}
    answer = await ai.post("/rerank", body=body, cast_to=httpx2.Response)
    results = answer.json()["results"]
    assert {row["index"] for row in results} == {0, 1}
    scores = [row["relevance_score"] for row in results]
    assert scores == sorted(scores, reverse=True)
    assert len(set(scores)) == 2


async def test_tokens_are_counted(ai: openai.AsyncOpenAI) -> None:
    body = {"model": "real-text", "content": "Grapes grow on a vine."}
    answer = await ai.post("/tokenize", body=body, cast_to=httpx2.Response)
    tokens = answer.json()["tokens"]
    assert 4 <= len(tokens) <= len(body["content"])


async def test_a_request_to_a_model_of_another_kind_is_refused(ai: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="/v1/embeddings"):
        await ai.chat.completions.create(
            model="real-embedding", messages=[{"role": "user", "content": "Hello!"}]
        )


async def spoken(ai: openai.AsyncOpenAI, text: str, over: str, voice: str = VOICE) -> bytes:
    answer = await ai.audio.speech.create(
        model=f"speech-over-{over}", voice=voice, input=text, response_format="wav"
    )
    assert answer.content[:4] == b"RIFF"
    return answer.content


@pytest.mark.parametrize("said", ["hello world", "goodbye world", "hello moon"])
@pytest.mark.parametrize("over", ["http", "grpc"])
async def test_speech_of_one_model_is_transcribed_by_another(
    ai: openai.AsyncOpenAI, over: str, said: str
) -> None:
    file = ("said.wav", await spoken(ai, said, over), "audio/wav")
    transcription = await ai.audio.transcriptions.create(
        model=f"transcription-over-{over}", file=file
    )
    assert transcription.text == said


async def test_a_prompt_limits_the_words_of_a_transcription(ai: openai.AsyncOpenAI) -> None:
    file = ("said.wav", await spoken(ai, "hello world", "http"), "audio/wav")
    transcription = await ai.audio.transcriptions.create(
        model="transcription-over-http", file=file, prompt="hello moon"
    )
    assert transcription.text == "hello moon"


async def test_a_localai_backend_tells_when_a_segment_was_spoken(ai: openai.AsyncOpenAI) -> None:
    recording = await spoken(ai, "hello world", "grpc")
    transcription = await ai.audio.transcriptions.create(
        model="transcription-over-grpc",
        file=("said.wav", recording, "audio/wav"),
        response_format="verbose_json",
    )
    [segment] = transcription.segments or ()
    with wave.open(io.BytesIO(recording)) as file:
        seconds = file.getnframes() / file.getframerate()
    assert 0 <= segment.start < 0.5 * seconds < segment.end <= seconds + 0.5
    assert segment.text == "hello world"


async def test_an_unknown_voice_is_an_error(ai: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="espeak-ng has no voice 'nobody'"):
        await spoken(ai, "hello", "http", voice="nobody")
    # A backend reports no success for the caller's mistakes and for its own faults alike.
    with pytest.raises(openai.InternalServerError):
        await spoken(ai, "hello", "grpc", voice="nobody")


def _cosine(one: list[float], other: list[float]) -> float:
    """Return the cosine of two vectors whose length is 1."""
    return sum(a * b for a, b in zip(one, other, strict=True))
