"""Mapping of Anthropic's requests to OpenAI's form; anything else is refused by name."""

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.faces.anthropic import request_mapping
from node.faces.anthropic.errors import fields_of, mapping, rows
from router.errors import BadRequest
from tests.router.canonical.hostile import ANYTHING, outcome

HELLO = [{"role": "user", "content": "hi"}]
PLAIN = {"model": "m", "max_tokens": 9, "messages": HELLO}
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
TOOL = {"name": "weather", "description": "Tells it.", "input_schema": SCHEMA}


def said(**fields):
    return dict(request_mapping.read(PLAIN | fields).fields)


def fault(**fields) -> str | None:
    return outcome(lambda: request_mapping.read(PLAIN | fields))[1]


def test_a_minimal_request_is_mapped():
    assert said() == PLAIN
    assert request_mapping.read(PLAIN).dropped == ()


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ({"temperature": 0.5}, {"temperature": 0.5}),
        ({"top_p": 0.9, "top_k": 40}, {"top_p": 0.9, "top_k": 40}),
        ({"top_k": 0}, {}),
        ({"stop_sequences": ["\n\nHuman:"]}, {"stop": ["\n\nHuman:"]}),
        ({"stop_sequences": []}, {}),
        ({"metadata": {"user_id": "ann"}}, {"user": "ann"}),
        ({"stream": True}, {"stream": True, "stream_options": {"include_usage": True}}),
        ({"stream": False}, {}),
        ({"output_config": {"effort": "max"}}, {"reasoning_effort": "high"}),
        ({"service_tier": "auto", "cache_control": {"type": "ephemeral"}}, {}),
        ({"project": "mine"}, {"project": "mine"}),
        ({"container": None, "mcp_servers": []}, {}),
    ],
)
def test_each_field_is_mapped_to_openais(given, found):
    assert said(**given) == PLAIN | found
    assert request_mapping.read(PLAIN | given).dropped == ()


def test_an_output_schema_becomes_a_response_format():
    config = {"format": {"type": "json_schema", "schema": SCHEMA}}
    form = said(output_config=config)["response_format"]
    assert (form["type"], form["json_schema"]["schema"]) == ("json_schema", SCHEMA)


@pytest.mark.parametrize(
    ("thinking", "thinks", "dropped"),
    [
        (None, False, ()),
        ({"type": "disabled"}, False, ()),
        ({"type": "enabled", "budget_tokens": 2000}, True, ("thinking.budget_tokens",)),
        ({"type": "adaptive"}, True, ()),
        ({"type": "adaptive", "display": "omitted"}, False, ()),
    ],
)
def test_thinking_is_returned_only_when_it_is_requested(thinking, thinks, dropped):
    request = request_mapping.read(PLAIN | {"thinking": thinking})
    assert (request.thinks, request.dropped) == (thinks, dropped)
    assert request.fields == PLAIN


def test_fields_without_a_counterpart_are_named_as_dropped():
    request = request_mapping.read(
        PLAIN | {"context_management": {"edits": []}, "novel": 1, "nothing": None}
    )
    assert request.dropped == ("context_management", "novel")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": "9"}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"model": None}, "model"),
        ({"model": ""}, "model"),
        ({"model": "m" * 514}, "model"),
        ({"temperature": 3}, "temperature"),
        ({"top_p": "high"}, "top_p"),
        ({"top_k": -1}, "top_k"),
        ({"stream": "yes"}, "stream"),
        ({"stop_sequences": "x"}, "stop_sequences"),
        ({"stop_sequences": [""]}, "stop_sequences[0]"),
        ({"stop_sequences": ["x"] * 65}, "stop_sequences"),
        ({"metadata": "ann"}, "metadata"),
        ({"metadata": {"user_id": 7}}, "metadata.user_id"),
        ({"thinking": True}, "thinking"),
        ({"thinking": {"type": "hard"}}, "thinking.type"),
        ({"output_config": {"format": "json"}}, "output_config.format"),
        ({"container": "c_1"}, "container"),
        ({"mcp_servers": [{"url": "https://x"}]}, "mcp_servers"),
    ],
)
def test_a_wrong_field_is_named(fields, param):
    assert fault(**fields) == param


def test_counting_needs_no_max_tokens():
    request = request_mapping.read({"model": "m", "messages": HELLO}, limited=False)
    assert request.fields == {"model": "m", "messages": HELLO}


class TestValues:
    def test_a_mapping_must_be_an_object(self):
        assert mapping({}, "a", "a") == {}
        with pytest.raises(BadRequest):
            mapping({"a": []}, "a", "a")

    def test_nested_fields_are_named_by_their_path(self):
        assert fields_of({"a": {"b": 1}}, "a") == {"a.b": 1}

    def test_rows_carry_their_index(self):
        assert list(rows([{"a": 1}], "x", 1)) == [("x[0]", {"a": 1})]


FIELDS = sorted(request_mapping.READ | request_mapping.BESIDE | set(request_mapping.SERVICES))
KEYS = (
    "type", "text", "role", "content", "source", "data", "media_type", "id", "name", "input", "input_schema", "tool_use_id",
    "is_error", "title", "context", "citations", "url", "thinking", "description", "format", "schema", "effort",
    "tool_name",
)  # fmt: skip
WORDS = (
    "text", "image", "document", "search_result", "tool_use", "tool_result", "thinking", "user", "assistant", "system",
    "tool_reference", "base64", "url", "content", "image/png", "aGk=", "enabled", "auto", "tool", "json_schema",
)  # fmt: skip
VALUES = ANYTHING | st.sampled_from(WORDS)
LIKELY = st.recursive(
    VALUES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner),
    max_leaves=12,
)


@given(fields=st.dictionaries(st.sampled_from(FIELDS), LIKELY))
def test_any_field_is_mapped_or_refused_by_name(fields):
    request, param = outcome(lambda: request_mapping.read(PLAIN | fields))
    assert param != "?"
    if request is not None:
        assert orjson.loads(orjson.dumps(request.fields))["messages"]
        assert all(isinstance(name, str) for name in request.dropped)


@given(content=LIKELY, role=st.sampled_from(["user", "assistant", "system"]))
def test_any_content_of_a_message_is_mapped_or_refused_by_name(content, role):
    messages = [{"role": role, "content": content}]
    request, param = outcome(lambda: request_mapping.read(PLAIN | {"messages": messages}))
    assert param != "?"
    if request is not None:
        orjson.dumps(request.fields)
