"""Published clients at a node. Each asks, in a process of its own, for all that it can ask for."""

import json
import re
from typing import Any

import pytest

from tests.clients.conftest import READER, TALKER, Seen
from tests.clients.tried import CLIENTS, Client

pytestmark = pytest.mark.clients

CALL = ("weather", {"city": "Paris"})


def who(kind: str) -> pytest.MarkDecorator:
    """Run a test for each client that tries this."""
    able = [client for client in CLIENTS if kind in client.tried]
    return pytest.mark.parametrize("client", able, ids=str)


def read(calls: list[dict[str, Any]]) -> list[tuple[str, Any]]:
    """Return the calls of tools; some clients parse the arguments, others leave them as text."""
    pairs = [(call["name"], call["arguments"]) for call in calls]
    return [
        (name, json.loads(arguments) if isinstance(arguments, str) else arguments)
        for name, arguments in pairs
    ]


@who("models")
def test_models_are_listed(client: Client, seen: Seen) -> None:
    assert {TALKER, READER} <= set(seen(client)["models"])


@who("chat")
def test_a_chat_is_answered(client: Client, seen: Seen) -> None:
    assert seen(client)["chat"].strip()


@who("stream")
def test_a_streamed_text_comes_in_pieces(client: Client, seen: Seen) -> None:
    pieces = [piece for piece in seen(client)["stream"] if piece]
    assert len(pieces) >= 3


@who("completion")
def test_a_completion_goes_on(client: Client, seen: Seen) -> None:
    assert seen(client)["completion"].strip()


@who("tools")
def test_a_tool_is_called_whole_and_in_a_stream(client: Client, seen: Seen) -> None:
    assert read(seen(client)["tools"]) == [CALL, CALL]


@who("responses")
def test_a_response_comes_whole_and_in_pieces_and_calls_a_tool(client: Client, seen: Seen) -> None:
    response = seen(client)["responses"]
    assert response["text"].strip()
    assert len([delta for delta in response["deltas"] if delta]) >= 3
    assert read(response["calls"]) == [CALL, CALL]


@who("embeddings")
def test_two_texts_become_two_vectors(client: Client, seen: Seen) -> None:
    one, other = seen(client)["embeddings"]
    assert len(one) == len(other) > 8
    assert one != other
    # llama.cpp makes vectors of length 1; bytes that were misread would give any length.
    assert sum(number * number for number in one) == pytest.approx(1, abs=0.01)


@who("speech")
def test_speech_that_a_model_made_is_transcribed_again(client: Client, seen: Seen) -> None:
    assert seen(client)["speech"] == "hello world"


@who("tokens")
def test_the_tokens_of_a_chat_are_counted(client: Client, seen: Seen) -> None:
    # The worker's chat template adds some.
    assert 8 <= seen(client)["tokens"] <= 80


@who("logprobs")
def test_the_log_probability_of_each_token_is_told(client: Client, seen: Seen) -> None:
    tokens = seen(client)["logprobs"]
    assert "".join(text for text, _ in tokens) == seen(client)["completion"]
    assert all(likely <= 0 for _, likely in tokens)


@pytest.mark.parametrize("client", CLIENTS, ids=str)
def test_a_model_that_no_node_has_is_the_clients_own_error_in_our_words(
    client: Client, seen: Seen
) -> None:
    error = seen(client)["unknown"]
    assert error["raised"] == client.unknown
    # Where the path names the model, its project does too.
    assert re.search("no node serves the model '(clients/)?nobody-has-this'", error["words"])


@pytest.mark.parametrize("client", CLIENTS, ids=str)
def test_no_client_takes_half_an_answer_for_a_whole_one(client: Client, seen: Seen) -> None:
    error = seen(client)["broken"]
    assert error["raised"] == client.broken
    # Llama Stack's client takes the error in the stream for a piece of the answer, but notices that the stream is cut off.
    cut = client.package == "llama-stack-client"
    assert ("peer closed connection" if cut else "the worker broke off") in error["words"]
