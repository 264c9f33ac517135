"""Mapping of a request field by field: to a chat's field, repeated, named as dropped, or refused by name."""

import pytest

from node.faces.responses.request_mapping import LIKELY, MAX_REPEATED_BYTES, read
from router.errors import BadRequest, WorkerUnable

SCHEMA = {"type": "json_schema", "name": "x", "schema": {"type": "object"}, "strict": True}


def asked(**fields):
    return read({"model": "tiny", "input": "hi", **fields})


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"max_output_tokens": 5}, {"max_tokens": 5}),
        ({"temperature": 0, "top_p": 1}, {"temperature": 0.0, "top_p": 1.0}),
        ({"text": {"format": {"type": "text"}, "verbosity": "low"}}, {"verbosity": "low"}),
        (
            {"text": {"format": {"type": "json_object"}}},
            {"response_format": {"type": "json_object"}},
        ),
        ({"reasoning": {"effort": "high"}}, {"reasoning_effort": "high"}),
        ({"user": "ann", "prompt_cache_key": "k"}, {"user": "ann", "prompt_cache_key": "k"}),
        ({"safety_identifier": "s", "service_tier": "flex"}, {"safety_identifier": "s", "service_tier": "flex"}),
        ({"top_k": 5, "seed": 7, "project": "p"}, {"top_k": 5, "seed": 7, "project": "p"}),
        ({"stream": True}, {"stream": True, "stream_options": {"include_usage": True}}),
        ({"metadata": {"a": "b"}, "store": True}, {}),
        ({"include": [LIKELY]}, {"logprobs": True, "top_logprobs": 1}),
        ({"include": [LIKELY], "top_logprobs": 5}, {"logprobs": True, "top_logprobs": 5}),
    ],
)  # fmt: skip
def test_fields_with_a_counterpart_in_a_chat_are_mapped(fields, said):
    request = asked(**fields)
    hello = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}
    assert (dict(request.chat), request.dropped) == (hello | said, ())
    assert request.stream is bool(fields.get("stream"))


def test_the_answer_repeats_the_effective_top_logprobs():
    assert asked(top_logprobs=5).repeats["top_logprobs"] == 0
    assert asked(top_logprobs=5, include=[LIKELY]).repeats["top_logprobs"] == 5
    assert asked(include=[LIKELY]).repeats["top_logprobs"] == 1


def test_a_schema_becomes_a_response_format():
    form = {"name": "x", "schema": {"type": "object"}, "strict": True}
    response_format = asked(text={"format": SCHEMA}).chat["response_format"]
    assert response_format == {"type": "json_schema", "json_schema": form}


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"truncation": "auto"}, ("truncation",)),
        ({"truncation": "disabled", "include": [], "top_logprobs": 0}, ()),
        ({"include": ["reasoning.encrypted_content"]}, ("include",)),
        ({"include": [LIKELY], "top_logprobs": 3}, ()),
        ({"include": [LIKELY, "x"]}, ("include",)),
        ({"top_logprobs": 3, "max_tool_calls": 2}, ("max_tool_calls", "top_logprobs")),
        ({"reasoning": {"summary": "auto", "effort": "low"}}, ("reasoning.summary",)),
        ({"text": {"later": 1}}, ("text.later",)),
        ({"stream_options": {"include_obfuscation": False}}, ()),
        ({"stream_options": {"include_obfuscation": True}}, ("stream_options",)),
        ({"context_management": [{}], "what a name": 1}, ("context_management",)),
        ({"messages": [{"role": "user"}], "n": 3}, ("messages", "n")),
        (
            {"tools": [{"type": "function", "name": "x", "defer_loading": True}]},
            ("tools.defer_loading",),
        ),
    ],
)
def test_fields_without_effect_are_named(fields, named):
    request = asked(**fields)
    assert request.dropped == named
    assert request.chat["messages"] == [{"role": "user", "content": "hi"}]
    assert "n" not in request.chat


@pytest.mark.parametrize(
    "fields",
    [
        {"previous_response_id": "resp_1"},
        {"conversation": {"id": "c"}},
        {"background": True},
        {"prompt": {"id": "p"}},
        {"moderation": {"model": "m"}},
    ],
)
def test_fields_that_would_change_the_answer_are_refused(fields):
    with pytest.raises(WorkerUnable) as unable:
        asked(**fields)
    assert unable.value.param == next(iter(fields))


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"stream": "yes"}, "stream"),
        ({"store": 1}, "store"),
        ({"instructions": ["x"]}, "instructions"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"max_output_tokens": True}, "max_output_tokens"),
        ({"temperature": "hot"}, "temperature"),
        ({"top_p": 1.5}, "top_p"),
        ({"top_logprobs": 21}, "top_logprobs"),
        ({"max_tool_calls": -1}, "max_tool_calls"),
        ({"truncation": "some"}, "truncation"),
        ({"include": "x"}, "include"),
        ({"include": ["x"] * 65}, "include"),
        ({"metadata": [1]}, "metadata"),
        ({"metadata": {"a": 1}}, "metadata"),
        ({"metadata": {"a" * 65: "b"}}, "metadata"),
        ({"metadata": dict.fromkeys(map(str, range(17)), "b")}, "metadata"),
        ({"stream_options": True}, "stream_options"),
        ({"text": "x"}, "text"),
        ({"text": {"format": "json"}}, "text.format"),
        ({"text": {"format": {"type": "json_schema"}}}, "text.format"),
        ({"text": {"format": SCHEMA | {"strict": "x"}}}, "text.format"),
        ({"text": {"verbosity": "loud"}}, "text.verbosity"),
        ({"text": {"verbosity": ["low"]}}, "text.verbosity"),
        ({"reasoning": 7}, "reasoning"),
        ({"reasoning": {"effort": {}}}, "reasoning.effort"),
        ({"user": 7}, "user"),
        ({"prompt_cache_key": "k" * 1_025}, "prompt_cache_key"),
    ],
)
def test_a_fault_names_its_field(fields, param):
    with pytest.raises(BadRequest) as wrong:
        asked(**fields)
    assert wrong.value.param == param


def test_the_answer_repeats_the_settings():
    repeats = asked(temperature=0.5, text={"format": SCHEMA}, metadata={"a": "b"}).repeats
    assert (repeats["temperature"], repeats["metadata"]) == (0.5, {"a": "b"})
    assert (repeats["text"], repeats["store"]) == ({"format": SCHEMA}, False)


def test_long_fields_are_not_repeated():
    request = asked(instructions="x" * MAX_REPEATED_BYTES, temperature=0.5)
    assert (request.repeats["instructions"], request.repeats["temperature"]) == (None, 0.5)
    assert len(str(request.chat["messages"])) > MAX_REPEATED_BYTES
