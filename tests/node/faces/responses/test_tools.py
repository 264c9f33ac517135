"""Mapping of tools: functions are offered as in a chat, tools that a server would run are refused."""

import pytest

from node.faces.responses import request_mapping
from node.faces.responses.request_mapping import functions_of, read, repeated
from router.canonical.text import MAX_TOOLS
from router.errors import BadRequest, WorkerUnable

LOOK = {"type": "function", "name": "look", "parameters": {"type": "object"}, "strict": None}
WAIT = {"type": "function", "name": "wait"}


def offered(fields):
    return request_mapping.offered(fields, functions_of(fields))


def nested(name, **more):
    return {"type": "function", "function": {"name": name, **more}}


def test_functions_are_nested_as_in_a_chat():
    chat = offered({"tools": [LOOK, WAIT], "parallel_tool_calls": False})
    assert chat == {
        "tools": [nested("look", parameters={"type": "object"}), nested("wait")],
        "parallel_tool_calls": False,
    }


def test_functions_of_a_namespace_are_prefixed_with_it():
    vines = {"type": "namespace", "name": "vines", "description": "x", "tools": [WAIT, LOOK]}
    fields = {"tools": [WAIT, vines]}
    names = [tool["function"]["name"] for tool in offered(fields)["tools"]]
    assert names == ["wait", "vines__wait", "vines__look"]
    functions = functions_of(fields)
    assert functions["vines__wait"].called == {"name": "wait", "namespace": "vines"}
    assert functions["vines__wait"].unheard == {"tools.description": "x"}
    assert (functions["wait"].called, functions["wait"].unheard) == ({"name": "wait"}, {})


@pytest.mark.parametrize("choice", ["auto", "none", "required"])
def test_tool_choice_words_are_the_same_in_a_chat(choice):
    assert offered({"tools": [WAIT], "tool_choice": choice})["tool_choice"] == choice


def test_one_function_may_be_required_by_name():
    chat = offered({"tools": [LOOK, WAIT], "tool_choice": WAIT})
    assert chat["tool_choice"] == nested("wait")


def test_only_the_allowed_tools_are_offered():
    allowed = {"type": "allowed_tools", "mode": "required", "tools": [WAIT]}
    chat = offered({"tools": [LOOK, WAIT], "tool_choice": allowed})
    assert chat == {"tools": [nested("wait")], "tool_choice": "required"}


def test_without_tools_no_field_for_them_is_sent():
    assert offered({"tools": [], "tool_choice": "auto", "parallel_tool_calls": True}) == {}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": {}}, "tools"),
        ({"tools": 7}, "tools"),
        ({"tools": [WAIT] * (MAX_TOOLS + 1)}, "tools"),
        ({"tools": ["look"]}, "tools[0]"),
        ({"tools": [{"type": "function"}]}, "tools[0].name"),
        ({"tools": [WAIT, WAIT]}, "tools[1].name"),
        ({"tools": [{"type": "namespace", "tools": [WAIT]}]}, "tools[0].name"),
        ({"tools": [{"type": "namespace", "name": "a", "tools": WAIT}]}, "tools[0].tools"),
        (
            {"tools": [{"type": "namespace", "name": "a", "tools": [WAIT, {}]}]},
            "tools[0].tools[1]",
        ),
        ({"tools": [WAIT | {"description": 7}]}, "tools[0].description"),
        ({"tools": [WAIT | {"parameters": "x"}]}, "tools[0].parameters"),
        ({"tools": [WAIT | {"strict": "yes"}]}, "tools[0].strict"),
        ({"tools": [WAIT], "parallel_tool_calls": "no"}, "parallel_tool_calls"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": "any"}, "tool_choice"),
        ({"tool_choice": []}, "tool_choice"),
        ({"tools": [WAIT], "tool_choice": LOOK}, "tool_choice.name"),
        ({"tool_choice": {"type": "allowed_tools"}}, "tool_choice"),
        (
            {"tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [LOOK]}},
            "tool_choice.tools[0].name",
        ),
        (
            {"tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [7]}},
            "tool_choice.tools[0]",
        ),
    ],
)
def test_a_fault_is_named_by_its_place(fields, param):
    with pytest.raises(BadRequest) as wrong:
        offered(fields)
    assert wrong.value.param == param


@pytest.mark.parametrize(
    "kind",
    ["file_search", "code_interpreter", "mcp", "computer_use_preview", "custom"],
)
def test_tools_that_a_server_would_run_are_refused(kind):
    with pytest.raises(WorkerUnable, match=kind) as unable:
        offered({"tools": [WAIT, {"type": kind}]})
    assert unable.value.param == "tools[1].type"
    with pytest.raises(WorkerUnable) as unable:
        offered({"tools": [WAIT], "tool_choice": {"type": kind}})
    assert unable.value.param == "tool_choice.type"


@pytest.mark.parametrize("kind", ["web_search", "web_search_preview", "web_search_2025_08_26"])
def test_a_web_search_is_dropped_when_offered_and_refused_when_required(kind):
    search = {"type": kind, "external_web_access": True}
    fields = {"model": "a", "input": "hi", "tools": [WAIT, search]}
    request = read(fields)
    assert [tool["function"]["name"] for tool in request.chat["tools"]] == [WAIT["name"]]
    assert list(request.others) == ["tools.web_search"]
    assert request.dropped == ("tools.web_search",)
    with pytest.raises(WorkerUnable):
        read({**fields, "tool_choice": {"type": kind}})
    with pytest.raises(BadRequest, match="no tool"):
        read({**fields, "tools": [search], "tool_choice": "required"})


def test_namespaces_cannot_be_nested_and_share_the_limit():
    inner = {"type": "namespace", "name": "b", "tools": [WAIT]}
    with pytest.raises(WorkerUnable) as unable:
        functions_of({"tools": [{"type": "namespace", "name": "a", "tools": [inner]}]})
    assert unable.value.param == "tools[0].tools[0].type"
    many = [WAIT | {"name": str(number)} for number in range(MAX_TOOLS)]
    with pytest.raises(BadRequest, match="at most"):
        functions_of({"tools": [WAIT, {"type": "namespace", "name": "a", "tools": many}]})


def test_the_answer_repeats_the_tools():
    assert repeated({}) == {"tools": [], "tool_choice": "auto", "parallel_tool_calls": True}
    fields = repeated({"tools": [LOOK], "tool_choice": "none", "parallel_tool_calls": False})
    assert fields == {"tools": [LOOK], "tool_choice": "none", "parallel_tool_calls": False}
