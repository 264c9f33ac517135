"""Chats of the published later versions of Llama Stack, at the worker's node and one hop away."""

import orjson
import pytest

from node.faces.llama_stack.published import PATHS, body_of, dropped_of
from router.errors import BadRequest
from tests.node.faces.assembly import told
from tests.workers.openai_worker import WORDS

SAID = "".join(WORDS)
STREAMED = "".join(WORDS[1:])  # without the word that the stub replaces by its role chunk
HI = {"role": "user", "content": "hi"}
ASKED = {"model_id": "tiny", "messages": [HI], "sampling_params": {"max_tokens": 7}}


def said(*messages, **fields):
    return body_of({"model_id": "m", "messages": list(messages or (HI,)), **fields})


@pytest.mark.parametrize(
    ("params", "fields"),
    [
        ({"strategy": {"type": "greedy"}, "max_tokens": 0}, {"temperature": 0}),
        (
            {"strategy": {"type": "top_p", "temperature": 0.7, "top_p": 0.9}, "max_tokens": 5, "stop": ["x"]},
            {"temperature": 0.7, "top_p": 0.9, "max_tokens": 5, "stop": ["x"]},
        ),
        ({"strategy": {"type": "top_k", "top_k": 4}}, {"top_k": 4}),
        ({"strategy": "top_p", "temperature": 0.7, "top_p": 0.9}, {"temperature": 0.7, "top_p": 0.9}),
        ({"strategy": "greedy", "temperature": 0.7, "repetition_penalty": 1.0}, {"temperature": 0}),
        ({"repetition_penalty": 1.1}, {"repetition_penalty": 1.1}),
        (None, {}),
    ],
)  # fmt: skip
def test_sampling_params_are_mapped_to_openais_fields(params, fields):
    assert said(sampling_params=params) == {"model": "m", "messages": [HI], **fields}


def test_the_model_may_be_given_as_model_or_model_id():
    assert body_of({"model": "m", "messages": [HI]})["model"] == "m"


def test_messages_with_texts_images_calls_and_results_are_mapped():
    image = {"type": "image", "image": {"url": {"uri": "https://e.org/a.png"}}}
    call = {"call_id": "c", "tool_name": "look", "arguments": {"at": 1}}
    body = said(
        {"role": "user", "content": [{"type": "text", "text": "a"}, image, "b"]},
        {"role": "assistant", "content": "", "stop_reason": "end_of_turn", "tool_calls": [call]},
        {"role": "tool", "call_id": "c", "content": {"type": "text", "text": "seen"}},
    )
    parts = [
        {"type": "text", "text": "a"},
        {"type": "image_url", "image_url": {"url": "https://e.org/a.png"}},
        {"type": "text", "text": "b"},
    ]
    function = {"name": "look", "arguments": '{"at":1}'}
    assert body["messages"] == [
        {"role": "user", "content": parts},
        {"role": "assistant", "content": None, "tool_calls": [{"id": "c", "type": "function", "function": function}]},
        {"role": "tool", "tool_call_id": "c", "content": [{"type": "text", "text": "seen"}]},
    ]  # fmt: skip


def test_tools_become_openais_functions():
    parameters = {
        "at": {"param_type": "int", "description": "where", "required": True},
        "why": {"param_type": "str", "required": False},
    }
    tool = {"tool_name": "look", "description": "looks", "parameters": parameters}
    body = said(tools=[tool], tool_config={"tool_choice": "look"})
    assert body["tools"][0]["function"]["parameters"] == {
        "type": "object",
        "properties": {
            "at": {"type": "integer", "description": "where"},
            "why": {"type": "string"},
        },
        "required": ["at"],
    }
    assert body["tool_choice"] == {"type": "function", "function": {"name": "look"}}
    assert said(tools=[tool], tool_choice="required")["tool_choice"] == "required"


@pytest.mark.parametrize(
    "wrong",
    [
        {"messages": []},
        {"messages": ["hi"]},
        {"messages": [{"role": "king", "content": "hi"}]},
        {"messages": [{"role": "user", "content": [5]}]},
        {"sampling_params": "hot"},
        {"sampling_params": {"strategy": {"type": "top_p", "temperature": "hot"}}},
        {"sampling_params": {"strategy": "best"}},
        {"sampling_params": {"max_tokens": -1}},
        {"sampling_params": {"stop": "x"}},
        {"stream": "yes"},
        {"tools": [{}]},
        {"response_format": {"type": "grammar"}},
    ],
)
def test_wrong_values_are_refused(wrong):
    with pytest.raises(BadRequest):
        body_of(ASKED | wrong)


def test_parameters_without_effect_are_named():
    assert dropped_of(ASKED | {"logprobs": {"top_k": 1}, "tool_prompt_format": None}) == (
        "logprobs",
    )


@pytest.fixture(params=["serving", "asked"])
async def node(request, mesh, worker):
    worker.fail(finish="stop")
    return await mesh.offers(request.param, worker)


@pytest.mark.parametrize("path", PATHS)
async def test_a_chat_is_answered_on_both_paths(node, worker, path):
    status, payload = await told(node.http.post(path, json=ASKED))
    assert status == 200
    message = {"role": "assistant", "content": SAID, "stop_reason": "end_of_turn", "tool_calls": []}
    assert payload["completion_message"] == message
    assert {metric["metric"]: metric["value"] for metric in payload["metrics"]}[
        "prompt_tokens"
    ] == 5
    sent = {"model": "tiny", "messages": [HI], "max_tokens": 7}
    assert orjson.loads(worker.received[-1].body) == sent


@pytest.mark.parametrize("path", PATHS)
async def test_a_chat_is_streamed_on_both_paths(node, path):
    async with node.http.post(path, json=ASKED | {"stream": True}) as response:
        assert (response.status, response.content_type) == (200, "text/event-stream")
        text = await response.text()
    events = [
        orjson.loads(e.removeprefix("data: "))["event"]
        for e in text.split("\n\n")
        if e and e[0] != ":"
    ]
    kinds = [event["event_type"] for event in events]
    assert (kinds[0], kinds[-1], set(kinds[1:-1])) == ("start", "complete", {"progress"})
    deltas = [event["delta"] for event in events]
    pieces = deltas if path == PATHS[0] else [delta["text"] for delta in deltas]
    assert "".join(pieces) == STREAMED
    assert events[-1]["stop_reason"] == "end_of_turn"


@pytest.mark.parametrize("stream", [False, True])
async def test_tool_calls_reach_the_client(node, worker, stream):
    worker.fail(calls=(("look", '{"at":1}'),), finish="tool_calls")
    tool = {"tool_name": "look", "parameters": {"at": {"param_type": "int"}}}
    call = node.http.post(PATHS[1], json=ASKED | {"tools": [tool], "stream": stream})
    async with call as response:
        text = await response.text()
    for part in ('"tool_name":"look"', '"arguments":{"at":1}', '"call_id":"call_0"'):
        assert part in text


async def test_a_stream_that_breaks_off_ends_in_an_error(node, worker):
    worker.fail(die_after=3, delay_between=0.01)
    async with node.http.post(PATHS[1], json=ASKED | {"stream": True}) as response:
        text = await response.text()
    assert '"error":{"message"' in text.split("\n\n")[-2]
    assert '"complete"' not in text
