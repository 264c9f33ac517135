"""Mapping of the requests of Llama Stack's clients to OpenAI's form."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.faces.llama_stack import StackEncoder
from node.faces.llama_stack.request_mapping import body_of, dropped_of
from router.errors import BadRequest
from router.openai.text_writer import Delta, End
from router.openai.usage import Usage

PNG = "data:image/png;base64,aa"
HI = {"role": "user", "text": "hi"}


def said(*messages, streams=False, **fields):
    return body_of({"model": "m", "messages": list(messages), **fields}, streams=streams)


def test_a_chat_becomes_one_of_openais():
    options = {"max_tokens": 5, "temperature": 0, "top_p": 0.5, "logprobs": False}
    assert said(HI, options=options, n_completions=2) == {
        "model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 5, "temperature": 0, "top_p": 0.5, "n": 2,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("wrong", "param"),
    [
        ({"options": {"temperature": "hot"}}, "temperature"),
        ({"options": {"top_p": True}}, "top_p"),
        ({"options": {"top_p": -1}}, "top_p"),
        ({"options": {"max_tokens": 1.5}}, "max_tokens"),
        ({"options": {"max_tokens": -1}}, "max_tokens"),
        ({"options": {"logprobs": "yes"}}, "logprobs"),
        ({"n_completions": 0}, "n_completions"),
        ({"n_completions": "2"}, "n_completions"),
        ({"stream": "yes"}, "stream"),
    ],
)
def test_a_value_of_another_type_is_refused(wrong, param):
    with pytest.raises(BadRequest) as refused:
        said(HI, **wrong)
    assert refused.value.param == param


@pytest.mark.parametrize("role", ["king", "", 5, None])
def test_an_unknown_role_is_refused(role):
    with pytest.raises(BadRequest) as refused:
        said(HI, {"role": role, "text": "hi"})
    assert refused.value.param == "messages[1].role"


def test_logprobs_are_requested():
    body = said(HI, options={"logprobs": True})
    assert (body["logprobs"], body["top_logprobs"]) == (True, 1)


def test_a_stream_requests_its_usage():
    body = said(HI, streams=True)
    assert (body["stream"], body["stream_options"]) == (True, {"include_usage": True})


@pytest.mark.parametrize(
    ("message", "content"),
    [
        ({"text": "a"}, "a"),
        ({"content": "a"}, "a"),
        ({"content": [{"type": "text", "text": "a"}]}, [{"type": "text", "text": "a"}]),
        ({}, ""),
        (
            {"text": "a", "attachments": [{"uri": PNG}]},
            [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": PNG}}],
        ),
        (
            {"attachments": [{"uri": "https://e.org/a", "mime-type": "image/gif"}]},
            [{"type": "image_url", "image_url": {"url": "https://e.org/a"}}],
        ),
    ],
    ids=str,
)
def test_a_message_has_text_or_content_and_attached_images(message, content):
    assert said({"role": "user", **message})["messages"] == [{"role": "user", "content": content}]


def test_a_completion_without_a_role_is_an_assistants_message():
    [_, answer] = said(HI, {"id": "x", "text": "ho", "eot": True})["messages"]
    assert answer == {"role": "assistant", "content": "ho"}


def test_a_result_belongs_to_the_call_before_it():
    call = {"text": "", "tool_call": {"name": "look", "arguments": [{"a": 1}, {"b": 2}]}}
    _, calling, result = said(HI, call, {"role": "tool", "text": "7"})["messages"]
    function = {"name": "look", "arguments": '{"a":1,"b":2}'}
    assert calling["tool_calls"] == [{"id": "call_1", "type": "function", "function": function}]
    assert result == {"role": "tool", "content": "7", "tool_call_id": "call_1"}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": None}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": [HI] * 10_001}, "messages"),
        ({"messages": [5]}, "messages[0]"),
        ({"messages": [{"text": "hi"}]}, "messages[0].role"),
        ({"messages": [HI, {"role": 5}]}, "messages[1].role"),
        ({"messages": [{"role": "user", "text": 5}]}, "messages[0].text"),
        ({"messages": [{**HI, "attachments": 5}]}, "messages[0].attachments"),
        ({"messages": [{**HI, "attachments": [5]}]}, "messages[0].attachments[0]"),
        (
            {"messages": [{**HI, "attachments": [{"uri": "data:text/plain,x"}]}]},
            "messages[0].attachments[0]",
        ),
        (
            {"messages": [{**HI, "attachments": [{"uri": "file:///etc/passwd"}]}]},
            "messages[0].attachments[0]",
        ),
        ({"messages": [{"tool_call": {"arguments": []}}]}, "messages[0].tool_call"),
        (
            {"messages": [{"tool_call": {"name": "a", "arguments": [5]}}]},
            "messages[0].tool_call.arguments",
        ),
        ({"options": 5}, "options"),
        ({"stream": "yes"}, "stream"),
    ],
    ids=lambda value: str(value)[:60],
)
def test_a_wrong_field_is_named(fields, param):
    with pytest.raises(BadRequest) as refused:
        body_of({"model": "m", "messages": [HI], **fields}, streams=False)
    assert refused.value.param == param


def test_parameters_without_effect_are_named():
    options = {"max_tokens": 5, "logprobs": True, "top_k": 3, "seed": None}
    fields = {"messages": [HI], "x": 1, "a,b": 1, "ä": 1, "n" * 65: 1, "options": options}
    assert dropped_of(fields) == ("options.top_k", "x")
    assert dropped_of({"messages": [HI], "options": {"logprobs": False}}) == ()


NAMES = st.sampled_from([
    "model", "messages", "options", "n_completions", "stream", "role", "text", "content", "attachments", "uri", "mime-type",
    "tool_call", "name", "arguments", "eot", "max_tokens", "user", "type", PNG,
])  # fmt: skip
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.floats(allow_nan=False) | NAMES | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES | st.text(), inner),
    max_leaves=12,
)
MESSAGES = st.lists(st.dictionaries(NAMES, JSON, max_size=4) | JSON, max_size=3)


@given(st.dictionaries(NAMES | st.text(), JSON), MESSAGES, JSON, st.booleans())
def test_any_body_is_mapped_to_a_chat_or_refused(given_, messages, options, streams):
    fields = {**given_, "messages": messages, "options": options}
    try:
        body = body_of(fields, streams=streams)
    except BadRequest:
        return
    roles = {message["role"] for message in body["messages"]}
    assert all(isinstance(role, str) and role for role in roles)
    header = ", ".join(dropped_of(fields))
    assert header.isascii()
    assert not header or header.isprintable()


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("estimated", [False, True])
def test_estimated_usage_is_left_out(streams, estimated):
    encoder = StackEncoder("x", "llama", streams=streams, max_event_bytes=100)
    events = [Delta("a"), End("stop"), Usage(3, 4, estimated=estimated)]
    if streams:
        stream = encoder.events(events) + encoder.closing()
        assert (b"output_tokens" in stream) is not estimated
    else:
        assert ("usage" in dict(encoder.answer(events))) is not estimated
