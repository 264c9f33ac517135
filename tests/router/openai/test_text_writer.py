"""The written form of an answer that a worker gave in another protocol."""

from typing import Any

import orjson
import pytest

from router.openai.text_writer import DONE, Delta, End, Event, TextForm, ToolCall, refused
from router.openai.usage import Usage, read_usage
from router.requests import Kind

CHAT = TextForm("chatcmpl-1", 17, "llama", Kind.CHAT)
COMPLETION = TextForm("cmpl-1", 17, "llama", Kind.COMPLETION)
FORMS = pytest.mark.parametrize("form", [CHAT, COMPLETION])


def said(event: bytes) -> dict[str, Any]:
    assert event.startswith(b"data: ")
    assert event.endswith(b"\n\n")
    return dict(orjson.loads(event[6:]))


@FORMS
def test_every_event_of_a_stream_has_the_id_time_and_model_of_the_answer(form: TextForm) -> None:
    events: list[Event] = [Delta("a"), End("stop"), Usage(1, 2)]
    for chunk in (said(form.opening()), *(said(form.event(event)) for event in events)):
        assert (chunk["id"], chunk["created"], chunk["model"]) == (form.id, 17, "llama")
        assert chunk["system_fingerprint"] is None
        for choice in chunk["choices"]:
            assert {"index", "finish_reason", "logprobs"} <= set(choice)


def test_a_chat_begins_with_its_role_and_a_completion_with_no_text() -> None:
    assert said(CHAT.opening())["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert said(COMPLETION.opening())["choices"][0]["text"] == ""


@FORMS
def test_usage_is_an_event_without_choices(form: TextForm) -> None:
    chunk = said(form.event(Usage(3, 4, estimated=True)))
    assert chunk["choices"] == []
    assert chunk["usage"] == {
        "prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7, "estimated": True,
    }  # fmt: skip
    assert read_usage(chunk) == Usage(3, 4, estimated=True)
    assert "estimated" not in said(form.event(Usage(3, 4)))["usage"]


def test_a_whole_answer_is_the_sum_of_its_parts() -> None:
    events = [
        Delta("b", 1),
        Delta("a"),
        Delta("c"),
        End("length"),
        End("stop", 1),
        Usage(1, 2),
        Usage(1, 3),
    ]
    body, usage = COMPLETION.whole_answer(events)
    answer = orjson.loads(body)
    assert [choice["text"] for choice in answer["choices"]] == ["ac", "b"]
    assert [choice["finish_reason"] for choice in answer["choices"]] == ["length", "stop"]
    assert (usage, answer["usage"]["total_tokens"]) == (Usage(2, 5), 7)
    assert answer["object"] == "text_completion"


def test_tool_calls_are_numbered_in_a_stream_and_replace_the_text_of_a_whole_answer() -> None:
    events = [
        ToolCall("c1", "look", "{}"),
        ToolCall("c2", "look", "{}"),
        End("tool_calls"),
        Usage(1, 1),
    ]
    *chunks, done, end = CHAT.stream(events).split(b"\n\n")
    calls = [said(chunk + b"\n\n") for chunk in chunks][1:3]
    assert [c["choices"][0]["delta"]["tool_calls"][0]["index"] for c in calls] == [0, 1]
    assert (done + b"\n\n", end) == (DONE, b"")
    [choice] = orjson.loads(CHAT.whole_answer(events)[0])["choices"]
    assert choice["message"]["content"] is None
    assert [call["id"] for call in choice["message"]["tool_calls"]] == ["c1", "c2"]


def test_a_refusal_is_in_openais_form() -> None:
    error = refused("no such number", "n")
    assert error.status == 400
    assert orjson.loads(error.body)["error"]["param"] == "n"
    assert orjson.loads(error.body)["error"]["code"] == "invalid_parameter"
