"""Mapping of tools: those that the caller runs become functions, Anthropic's own are refused."""

import pytest

from node.faces.anthropic import request_mapping
from node.faces.anthropic.messages import choice_of, tools_of
from tests.node.faces.anthropic.test_request_mapping import PLAIN, SCHEMA, TOOL, fault, said


def test_a_tool_becomes_a_function():
    assert said(tools=[TOOL | {"cache_control": {"type": "ephemeral"}}])["tools"] == [
        {
            "type": "function",
            "function": {
                "name": "weather",
                "description": "Tells it.",
                "parameters": SCHEMA,
            },
        }
    ]


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ({"type": "auto"}, {"tool_choice": "auto"}),
        ({"type": "any"}, {"tool_choice": "required"}),
        ({"type": "none"}, {"tool_choice": "none"}),
        (
            {"type": "tool", "name": "weather"},
            {"tool_choice": {"type": "function", "function": {"name": "weather"}}},
        ),
        (
            {"type": "any", "disable_parallel_tool_use": True},
            {"tool_choice": "required", "parallel_tool_calls": False},
        ),
    ],
)
def test_a_tool_choice_is_mapped_to_openais(given, found):
    plain = said(tools=[TOOL])
    assert said(tools=[TOOL], tool_choice=given) == plain | found


def test_parts_of_tools_without_effect_are_named():
    tool = TOOL | {"input_examples": [{"city": "Paris"}], "defer_loading": True}
    dropped = request_mapping.read(PLAIN | {"tools": [tool]}).dropped
    assert dropped == ("tools.defer_loading", "tools.input_examples")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": {}}, "tools"),
        ({"tools": [7]}, "tools[0]"),
        ({"tools": [TOOL] * 513}, "tools"),
        ({"tools": [TOOL, {"name": "a b", "input_schema": {}}]}, "tools[1].name"),
        ({"tools": [{"name": "a"}]}, "tools[0].input_schema"),
        ({"tools": [TOOL | {"description": 7}]}, "tools[0].description"),
        ({"tools": [TOOL | {"strict": 1}]}, "tools[0].strict"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, "tools[0].type"),
        ({"tools": [TOOL], "tool_choice": "auto"}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {}}, "tool_choice.type"),
        ({"tools": [TOOL], "tool_choice": {"type": "tool"}}, "tool_choice.name"),
        ({"tools": [TOOL], "tool_choice": {"type": "tool", "name": "x"}}, "tool_choice.name"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
    ],
)
def test_a_wrong_field_of_a_tool_is_named(fields, param):
    assert fault(**fields) == param


def test_without_tools_a_tool_choice_is_dropped():
    assert tools_of({}) == ([], ())
    assert choice_of({"tool_choice": {"type": "auto"}}, []) == {}
