"""Reading a request for text from OpenAI's body."""

import orjson
import pytest

from router.canonical.text import MAX_STOPS, Sampling, TextRequest, read
from router.canonical.values import MAX_OTHERS, dropped_names
from router.errors import BadRequest
from router.requests import Kind
from tests.router.world import chat

HELLO = {"messages": [{"role": "user", "content": "hi"}]}
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}


def asked(kind: Kind = Kind.CHAT, **fields: object) -> TextRequest:
    defaults = HELLO if kind is Kind.CHAT else {"prompt": "once"}
    body = orjson.dumps({"model": "llama", **defaults, **fields})
    return read(chat(kind=kind, body=body, stream=fields.get("stream") is True))


def test_absent_fields_are_left_to_the_worker() -> None:
    plain = asked()
    assert plain.sampling == Sampling()
    assert (plain.n, plain.stop, plain.schema, plain.tools, plain.others) == (1, (), None, (), {})


def test_values_that_change_nothing_are_left_out() -> None:
    usual = asked(
        top_p=1, presence_penalty=0, frequency_penalty=0.0, repetition_penalty=1, top_k=-1, min_p=0
    )
    assert usual.sampling == Sampling()
    assert asked(logprobs=False, best_of=1, modalities=["text"], logit_bias={}).others == {}


def test_the_newer_name_of_the_limit_counts() -> None:
    assert asked(max_tokens=3, max_completion_tokens=7).sampling.max_tokens == 7
    assert asked(max_tokens=3, max_completion_tokens=None).sampling.max_tokens == 3


def test_a_stop_string_may_stand_alone() -> None:
    assert asked(stop="END").stop == ("END",)
    assert asked(stop=["a", "", "b"]).stop == ("a", "b")


def test_several_prompts_ask_for_several_texts() -> None:
    several = asked(Kind.COMPLETION, prompt=["a", "b"], n=3)
    assert (several.prompts, several.choices) == (("a", "b"), 6)


def test_a_schema_is_found() -> None:
    schema = {"type": "object"}
    written = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    assert asked(response_format=written).schema == schema
    assert asked(response_format={"type": "json_object"}).schema == {}
    assert asked(response_format={"type": "text"}).schema is None


@pytest.mark.parametrize("choice", ["auto", "none", "required"])
def test_a_choice_of_tools_is_read(choice: str) -> None:
    assert asked(tools=[TOOL], tool_choice=choice).tool_choice == choice


def test_one_tool_may_be_named() -> None:
    request = asked(tools=[TOOL], tool_choice={"type": "function", "function": {"name": "look"}})
    assert (request.tool_choice, request.tool_name) == ("named", "look")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"temperature": 2.1}, "temperature"),
        ({"temperature": True}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"top_p": -0.1}, "top_p"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"max_completion_tokens": 2**40}, "max_completion_tokens"),
        ({"presence_penalty": 3}, "presence_penalty"),
        ({"seed": 2**63}, "seed"),
        ({"n": 0}, "n"),
        ({"n": 129}, "n"),
        ({"stop": 5}, "stop"),
        ({"stop": [5]}, "stop"),
        ({"stop": ["x"] * (MAX_STOPS + 1)}, "stop"),
        ({"stop": "x" * 2_000}, "stop"),
        ({"messages": []}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": [{"content": "hi"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": ["hi"]}]}, "messages[0].content"),
        ({"stream_options": True}, "stream_options"),
        ({"response_format": {"type": "xml"}}, "response_format"),
        ({"response_format": "json"}, "response_format"),
        ({"tools": [{"type": "web"}]}, "tools[0]"),
        ({"tools": {}, "tool_choice": "auto", "n": 0}, "n"),
        ({"tools": [TOOL], "tool_choice": "perhaps"}, "tool_choice"),
        (
            {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "x"}}},
            "tool_choice",
        ),
    ],
)
def test_a_fault_names_the_field(fields: dict[str, object], param: str) -> None:
    with pytest.raises(BadRequest) as wrong:
        asked(**fields)
    assert wrong.value.param == param


@pytest.mark.parametrize("prompt", [None, 5, [], [1, 2], ["a", 1], [[1]]])
def test_a_prompt_is_text(prompt: object) -> None:
    with pytest.raises(BadRequest) as wrong:
        asked(Kind.COMPLETION, prompt=prompt)
    assert wrong.value.param == "prompt"


def test_texts_of_one_request_are_bounded() -> None:
    with pytest.raises(BadRequest):
        asked(Kind.COMPLETION, prompt=["a"] * 65, n=2)


def test_dropped_fields_are_named_if_their_names_are_safe_in_a_header() -> None:
    odd = asked(**{"logit_bias": {"1": 2}, "best_of": 3, "x\r\nset-cookie: a": 1, "é": 1})
    assert dropped_names(odd) == ["best_of", "logit_bias"]
    assert len(dropped_names(asked(**{f"field_{n}": 1 for n in range(100)}))) == MAX_OTHERS
