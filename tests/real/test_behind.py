"""Published programs as workers. Each stands behind one node; another node is asked."""

import asyncio
import re
from pathlib import Path
from typing import Any

import orjson
import pytest

from tests.real.conftest import Behind, World, who
from tests.real.programs import KEY, chat_weights
from tests.swarm.client import Client, Seen, events_of
from tests.swarm.test_attach import attached
from tests.swarm.waiting import show

pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]

MESSAGES = [{"role": "user", "content": "Tell me a story about a vine."}]
SHORT = 8
DOCUMENTS = ["a car on a road", "a vine on a wall", "a house"]
REFUSED = {
    "infinity-emb": {"input": {"no": "text"}},
    # It does not say what is wrong with messages: it fails.
    "transformers": {"messages": MESSAGES, "no-such-field": 1},
}
"""What each program refuses, where that is not a chat without valid messages."""


async def whole(client: Client, world: World, path: str, body: dict[str, object]) -> Any:
    """Ask the node that has no worker; return its answer, which must be a success."""
    answer = await client.post(world.asked, path, body)
    assert answer.status == 200, answer.body
    assert answer.node == world.serving.peer
    return orjson.loads(answer.body)


def error(answer: Seen) -> dict[str, Any]:
    return dict(orjson.loads(answer.body)["error"])


def attached_with(behind: Behind, world: World) -> tuple[str, tuple[str, ...]]:
    """Return the address that is given to `attach`, and further options where the address is not enough."""
    url = behind.running.place.url
    match behind.running.program.package:
        case "infinity-emb":
            return f"{url}/embeddings", ("--type", "embedding", "--model", "minilm")
        case "transformers" | "mlx-lm":
            # Their lists of models are those of a cache that does not exist here.
            return url, ("--model", chat_weights(world.folder))
    return url, ()


@who("found")
async def test_attach_finds_out_what_the_program_is_and_serves_its_models(
    behind: Behind, world: World, client: Client, tmp_path: Path
) -> None:
    url, more = attached_with(behind, world)
    options = ("--project", "found", "--header", f"authorization: Bearer {KEY}", *more)
    async with attached(world.serving, tmp_path, url, *options) as attach:
        await attach.says("monitoring it", within=6)
        [*served] = re.findall(r"\bfound/([^\s,]+)", attach.said)
        assert served
        await client.listed([world.asked], *served)
        assert await attach.end() == 0


@who("chat")
async def test_a_chat_is_answered(behind: Behind, world: World, client: Client) -> None:
    # A program that is strict about fields is not sent those that only nodes understand.
    ours = {"project": behind.running.program.package}
    body = {"model": behind.chats, "messages": MESSAGES, "max_tokens": SHORT, **ours}
    answer = await whole(client, world, "/v1/chat/completions", body)
    assert answer["model"] == behind.chats
    [choice] = answer["choices"]
    assert choice["message"]["content"]
    assert choice["finish_reason"] == "length"
    assert answer["usage"]["completion_tokens"] == SHORT


@who("stream")
async def test_a_streamed_chat_equals_the_whole_one_and_ends_as_the_protocol_says(
    behind: Behind, world: World, client: Client
) -> None:
    body = {"model": behind.chats, "messages": MESSAGES, "max_tokens": SHORT, "temperature": 0}
    answer = await whole(client, world, "/v1/chat/completions", body)
    url = f"{world.asked.http}/v1/chat/completions"
    async with client.session.post(url, json=body | {"stream": True}) as response:
        assert response.status == 200, await response.text()
        *events, done = [event async for event in events_of(response)]
    assert done == "[DONE]"
    chunks = [orjson.loads(event) for event in events]
    assert {chunk["model"] for chunk in chunks} == {behind.chats}
    pieces = [choice["delta"].get("content") or "" for c in chunks for choice in c["choices"]]
    assert "".join(pieces) == answer["choices"][0]["message"]["content"]
    ends = [choice.get("finish_reason") for c in chunks for choice in c["choices"]]
    assert [end for end in ends if end] == ["length"]


@who("completion")
async def test_a_completion_goes_on(behind: Behind, world: World, client: Client) -> None:
    body = {"model": behind.chats, "prompt": "Once upon a time", "max_tokens": SHORT}
    answer = await whole(client, world, "/v1/completions", body)
    assert answer["model"] == behind.chats
    assert answer["choices"][0]["text"]


@who("embeddings")
async def test_texts_become_vectors_of_their_own(
    behind: Behind, world: World, client: Client
) -> None:
    body = {"model": behind.reads, "input": ["a vine", "a car"], "encoding_format": "float"}
    answer = await whole(client, world, "/v1/embeddings", body)
    one, other = (row["embedding"] for row in answer["data"])
    assert answer["model"] == behind.reads
    assert len(one) == len(other) > 8
    assert one != other


@who("rerank")
async def test_documents_come_in_order_with_their_texts(
    behind: Behind, world: World, client: Client
) -> None:
    body = {"model": behind.ranks, "query": "wine", "documents": DOCUMENTS, "top_n": 2}
    answer = await whole(client, world, "/v1/rerank", body | {"return_documents": True})
    scores = [row["relevance_score"] for row in answer["results"]]
    assert len(scores) == 2
    assert scores == sorted(scores, reverse=True)
    assert all(row["document"]["text"] == DOCUMENTS[row["index"]] for row in answer["results"])
    objects = [{"text": text} for text in DOCUMENTS]
    again = await whole(client, world, "/v1/rerank", body | {"documents": objects})
    assert [row["index"] for row in again["results"]] == [row["index"] for row in answer["results"]]


@who("refusal")
async def test_a_request_that_the_program_refuses_is_the_callers_error_and_no_failure_of_the_program(
    behind: Behind, world: World, client: Client
) -> None:
    body = REFUSED.get(behind.running.program.package, {"messages": "no list"})
    body = {"model": behind.chats or behind.reads, **body}
    path = "/v1/chat/completions" if behind.chats else "/v1/embeddings"
    for _ in range(3):
        refused = await client.post(world.asked, path, body)
        assert 400 <= refused.status < 500, refused.body
        assert error(refused)["message"]
    await answers(behind, world, client)


async def answers(behind: Behind, world: World, client: Client) -> Seen:
    """Ask for the least that the program can do; return the answer, which must be a success."""
    if behind.chats:
        body: dict[str, object] = {"model": behind.chats, "messages": MESSAGES, "max_tokens": 2}
        answer = await client.post(world.asked, "/v1/chat/completions", body)
    else:
        body = {"model": behind.reads, "input": "a vine"}
        answer = await client.post(world.asked, "/v1/embeddings", body)
    assert answer.status == 200, answer.body
    return answer


@who("restart")
async def test_a_program_that_restarts_under_its_registration_is_asked_again_at_once(
    behind: Behind, world: World, client: Client
) -> None:
    await answers(behind, world, client)
    await asyncio.to_thread(behind.running.kill)
    body = {"model": behind.chats or behind.reads, "messages": MESSAGES, "input": "a vine"}
    path = "/v1/chat/completions" if behind.chats else "/v1/embeddings"
    refused = await client.post(world.asked, path, body)
    assert refused.status == 503, refused.body
    assert "Retry-After" in refused.headers
    await asyncio.to_thread(behind.running.start)
    show(behind.running.program.package, back=(await answers(behind, world, client)).seconds)
