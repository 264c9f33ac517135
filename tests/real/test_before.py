"""Published gateways with a node as the server that they ask."""

from typing import Any

import aiohttp
import orjson
import pytest

from tests.real.conftest import READER, TALKER, who
from tests.real.programs import KEY, Running
from tests.real.test_behind import MESSAGES, SHORT
from tests.real.tried import BEFORE
from tests.swarm.client import Client, events_of

pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]

NOBODY = "nobody-has-this"
HEADERS = {"Authorization": f"Bearer {KEY}"}


def named(before: Running, model: str) -> str:
    """Return the name by which a gateway knows a model of the node."""
    return f"upstream/{model}" if before.program.package == "llama-stack" else model


def asked(
    client: Client, before: Running, path: str, **body: object
) -> "aiohttp.client._RequestContextManager":
    return client.session.post(before.place.url + path, json=body, headers=HEADERS)


async def whole(client: Client, before: Running, path: str, **body: object) -> Any:
    async with asked(client, before, path, **body) as response:
        assert response.status == 200, await response.text()
        return await response.json()


@who("models", BEFORE)
async def test_a_gateway_lists_the_models_of_the_node(before: Running, client: Client) -> None:
    url = f"{before.place.url}/v1/models"
    async with client.session.get(url, headers=HEADERS) as response:
        rows = (await response.json())["data"]
    assert {named(before, TALKER), named(before, READER)} <= {row["id"] for row in rows}


@who("chat", BEFORE)
async def test_a_chat_is_answered(before: Running, client: Client) -> None:
    model = named(before, TALKER)
    answer = await whole(
        client, before, "/v1/chat/completions", model=model, messages=MESSAGES, max_tokens=SHORT
    )
    assert answer["choices"][0]["message"]["content"]
    assert answer["usage"]["completion_tokens"] == SHORT


@who("stream", BEFORE)
async def test_a_chat_comes_in_pieces(before: Running, client: Client) -> None:
    more = {"model": named(before, TALKER), "messages": MESSAGES, "max_tokens": SHORT}
    async with asked(client, before, "/v1/chat/completions", **more, stream=True) as response:
        assert response.status == 200, await response.text()
        events = [event async for event in events_of(response) if event != "[DONE]"]
    choices = [choice for event in events for choice in orjson.loads(event)["choices"]]
    assert len([True for choice in choices if choice["delta"].get("content")]) >= 3
    assert choices[-1]["finish_reason"] == "length"


@who("completion", BEFORE)
async def test_a_completion_goes_on(before: Running, client: Client) -> None:
    model = named(before, TALKER)
    answer = await whole(
        client, before, "/v1/completions", model=model, prompt="Once upon", max_tokens=SHORT
    )
    assert answer["choices"][0]["text"]


@who("embeddings", BEFORE)
async def test_a_text_becomes_a_vector(before: Running, client: Client) -> None:
    answer = await whole(
        client, before, "/v1/embeddings", model=named(before, READER), input=["a vine"]
    )
    assert len(answer["data"][0]["embedding"]) > 8


@who("refusal", BEFORE)
async def test_a_model_that_no_node_has_is_refused(before: Running, client: Client) -> None:
    model = named(before, NOBODY)
    async with asked(client, before, "/v1/chat/completions", model=model, messages=MESSAGES) as no:
        assert 400 <= no.status < 500, await no.text()
        assert NOBODY in await no.text()
