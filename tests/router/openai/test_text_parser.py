"""Parsing of answers in OpenAI's form: the inverse of the writer."""

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.errors import WorkerFailed
from router.openai import text_parser
from router.openai.text_parser import CallPart, ReasoningPiece, TextFailure
from router.openai.text_writer import DONE, Delta, End, TextForm, ToolCall
from router.openai.usage import Usage
from router.requests import Kind

CHAT = TextForm("chatcmpl-1", 17, "llama", Kind.CHAT)
COMPLETION = TextForm("cmpl-1", 17, "llama", Kind.COMPLETION)
FORMS = pytest.mark.parametrize("form", [CHAT, COMPLETION])
SAID = [Delta("a"), Delta("ü"), End("length"), Usage(3, 4)]


def heard(stream: bytes, size: int = 2**20) -> list[text_parser.TextEvent]:
    ear = text_parser.TextStreamParser(max_event_bytes=2**20)
    found = [
        event
        for start in range(0, len(stream), size)
        for event in ear.feed(stream[start : start + size])
    ]
    return [*found, *ear.finish()]


def data(**fields: object) -> bytes:
    return b"data: " + orjson.dumps(fields) + b"\n\n"


@FORMS
@given(size=st.integers(1, 64))
def test_a_written_stream_is_read_back_whatever_the_size_of_its_chunks(form, size) -> None:
    assert heard(form.stream(SAID), size) == SAID


@FORMS
def test_a_written_whole_answer_is_read_back(form) -> None:
    body, _ = form.whole_answer(SAID)
    assert text_parser.parse_answer(form.kind, body) == [Delta("aü"), End("length"), Usage(3, 4)]


def test_tool_calls_are_read_in_both_forms() -> None:
    events = [ToolCall("c1", "look", "{}"), ToolCall("c2", "see", '{"a":1}'), End("tool_calls")]
    calls = [CallPart(0, "c1", "look", "{}"), CallPart(1, "c2", "see", '{"a":1}')]
    assert heard(CHAT.stream(events)) == [*calls, End("tool_calls")]
    assert text_parser.parse_answer(Kind.CHAT, CHAT.whole_answer(events)[0])[:3] == [
        *calls,
        End("tool_calls"),
    ]


def test_a_tool_call_may_come_in_pieces_and_its_arguments_as_an_object() -> None:
    def part(**call: object) -> bytes:
        return data(choices=[{"index": 0, "delta": {"tool_calls": [call]}}])

    stream = part(index=0, id="c", function={"name": "f", "arguments": ""})
    stream += part(index=0, function={"arguments": '{"a"'})
    stream += part(index=1, id="d", function={"name": "g", "arguments": {"b": 2}})
    assert heard(stream) == [
        CallPart(0, "c", "f", ""),
        CallPart(0, "", "", '{"a"'),
        CallPart(1, "d", "g", '{"b":2}'),
    ]


def test_calls_that_all_have_the_index_0_stay_apart() -> None:
    def call(id_: str | None, name: str | None, arguments: str) -> dict[str, object]:
        return {"index": 0, "id": id_, "function": {"name": name, "arguments": arguments}}

    calls = [
        call("c", "f", '{"a"'),
        call("c", "f", ":1"),
        call(None, None, "}"),
        call("d", "g", "{"),
        call("", "", "}"),
    ]
    stream = b"".join(
        data(choices=[{"index": 0, "delta": {"tool_calls": [part]}}]) for part in calls
    )
    assert heard(stream) == [
        CallPart(0, "c", "f", '{"a"'),
        CallPart(0, "c", "f", ":1"),
        CallPart(0, "", "", "}"),
        CallPart(1, "d", "g", "{"),
        CallPart(1, "", "", "}"),
    ]
    message = {"tool_calls": [call("0", "f", "{}"), call("0", "g", "{}")]}
    body = orjson.dumps({"choices": [{"index": 0, "message": message}]})
    assert text_parser.parse_answer(Kind.CHAT, body)[:2] == [
        CallPart(0, "0", "f", "{}"),
        CallPart(1, "0", "g", "{}"),
    ]


def test_a_function_call_of_the_older_form_is_a_tool_call() -> None:
    pieces = [{"name": "f", "arguments": ""}, {"arguments": "{}"}]
    stream = b"".join(data(choices=[{"index": 0, "delta": {"function_call": p}}]) for p in pieces)
    assert heard(stream) == [CallPart(0, "", "f", ""), CallPart(0, "", "", "{}")]
    message = {"content": None, "function_call": {"name": "f", "arguments": "{}"}}
    body = orjson.dumps({"choices": [{"message": message, "finish_reason": "function_call"}]})
    assert text_parser.parse_answer(Kind.CHAT, body) == [
        CallPart(0, "", "f", "{}"),
        End("tool_calls"),
    ]


def test_reasoning_is_read_as_thoughts() -> None:
    choice = {"index": 0, "delta": {"reasoning_content": "hm", "content": None}}
    assert heard(data(choices=[choice])) == [ReasoningPiece("hm")]


def test_content_may_be_a_list_of_texts_and_thoughts() -> None:
    thought = {"type": "thinking", "thinking": [{"type": "text", "text": "h"}, {"text": "m"}]}
    parts = [
        thought,
        {"type": "thinking", "thinking": "m"},
        {"type": "text", "text": "a"},
        {"type": "text", "text": "b"},
    ]
    events = [ReasoningPiece("hmm"), Delta("ab")]
    assert heard(data(choices=[{"index": 0, "delta": {"content": parts}}])) == events
    body = orjson.dumps({"choices": [{"index": 0, "message": {"content": parts}}]})
    assert text_parser.parse_answer(Kind.CHAT, body)[:2] == events
    assert heard(data(choices=[{"index": 0, "delta": {"content": []}}])) == []


@pytest.mark.parametrize("content", [5, {"a": 1}, [{"type": "image_url", "image_url": {}}], [[]]])
def test_other_content_is_a_failure(content) -> None:
    with pytest.raises(WorkerFailed):
        heard(data(choices=[{"index": 0, "delta": {"content": content}}]))


def test_events_after_done_are_ignored() -> None:
    ear = text_parser.TextStreamParser(max_event_bytes=1000)
    assert ear.feed(DONE + CHAT.event(Delta("late"))) == []
    assert ear.ended


@pytest.mark.parametrize(
    ("error", "failure"),
    [
        ({"message": "gone", "type": "server_error", "code": "x"}, ("gone", "server_error", "x")),
        ({"message": "gone", "type": None, "code": 7}, ("gone", "", "")),
        ("gone", ("gone", "", "")),
        ({"strange": 1}, ("the stream broke off", "", "")),
    ],
)
def test_an_error_event_ends_the_stream(error, failure) -> None:
    stream = data(error=error) + CHAT.event(Delta("late"))
    assert heard(stream) == [TextFailure(*failure)]


def test_comments_and_empty_deltas_give_no_events() -> None:
    assert heard(b": alive\n\n" + CHAT.opening() + COMPLETION.opening()) == []


@pytest.mark.parametrize("event", [b"data: {\n\n", b"data: 5\n\n", data(choices=[5])])
def test_a_stream_in_another_form_is_a_failure(event) -> None:
    with pytest.raises(WorkerFailed):
        heard(event)


def test_an_endless_event_is_a_failure() -> None:
    with pytest.raises(WorkerFailed):
        text_parser.TextStreamParser(max_event_bytes=100).feed(b"data: " + b"a" * 200)


@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b"{}", b'{"choices":[]}', b'{"choices":[3]}', b'{"choices":[{}]}',
     b'{"choices":[{"message":{"tool_calls":[{}]}}]}'],
)  # fmt: skip
def test_a_whole_answer_in_another_form_is_a_failure(body) -> None:
    with pytest.raises(WorkerFailed):
        text_parser.parse_answer(Kind.CHAT, body)


@given(st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(
        st.sampled_from(["choices", "delta", "message", "index", "tool_calls", "function", "error", "usage", "text"]),
        inner, max_size=4,
    ),
    max_leaves=20,
))  # fmt: skip
def test_any_json_is_read_or_is_a_failure(said) -> None:
    body = orjson.dumps({"choices": said, **(said if isinstance(said, dict) else {})}, default=str)
    for kind in (Kind.CHAT, Kind.COMPLETION):
        try:
            text_parser.parse_answer(kind, body)
            heard(b"data: " + body + b"\n\n")
        except WorkerFailed:
            pass


def test_text_finish_reason_and_usage_are_taken_from_the_events() -> None:
    events = [Delta("a"), Delta("x", 1), Delta("b"), Usage(1, 1), End("length"), Usage(2, 3)]
    assert (text_parser.text_of(events), text_parser.text_of(events, 1)) == ("ab", "x")
    assert (text_parser.reason_of(events), text_parser.reason_of(events, 1)) == ("length", "stop")
    assert text_parser.usage_of(events) == Usage(2, 3)
    assert text_parser.usage_of([]) is None


@FORMS
@pytest.mark.parametrize("end", [End("stop", 0, "\n\n"), End("length")])
def test_the_stop_string_that_ended_a_text_is_passed_in_vllms_form(form, end):
    events = [Delta("a"), end, Usage(1, 1)]
    assert text_parser.parse_answer(form.kind, form.whole_answer(events)[0]) == events
    assert heard(form.stream(events)) == events


@pytest.mark.parametrize(
    ("told", "stop"),
    [
        ({"matched_stop": "END"}, "END"),
        ({"stop_reason": None, "matched_stop": "END"}, "END"),
        ({"stop_reason": 128009}, ""),
        ({"finish_reason": "length", "stop_reason": "END"}, ""),
    ],
)
def test_a_stop_reason_counts_only_if_it_is_the_string_that_ended_the_text(told, stop):
    choice = {"index": 0, "message": {"content": ""}, "finish_reason": "stop", **told}
    (end,) = text_parser.parse_answer(Kind.CHAT, orjson.dumps({"choices": [choice]}))
    assert end.stop == stop


@pytest.mark.parametrize(
    ("stream", "whole"),
    [
        (b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n', False),
        (b'data: {"choices":[{"delta":{},"finish_reason":"stop"}]}\n\n', True),
        (b"data: [DONE]\n\n", True),
        (b"", False),
    ],
)
def test_a_stream_without_a_finish_reason_or_done_is_incomplete(stream, whole):
    ear = text_parser.TextStreamParser(max_event_bytes=1000)
    ear.feed(stream)
    assert ear.may_end is whole


@pytest.mark.parametrize("body", [b"", b"[]", b"5", b"{"])
def test_an_answer_that_is_no_object_is_a_failure(body: bytes) -> None:
    with pytest.raises(WorkerFailed):
        text_parser.answer_object(body)


def test_a_byte_order_mark_is_no_part_of_an_answer() -> None:
    assert text_parser.answer_object(b'\xef\xbb\xbf{"a":1}') == {"a": 1}


def test_numbers_that_json_lacks_are_null_and_nothing_else_invalid_is_accepted() -> None:
    body = b'\xef\xbb\xbf{"a":NaN,"b":[-Infinity,Infinity],"c":"NaN"}'
    assert text_parser.answer_object(body) == {"a": None, "b": [None, None], "c": "NaN"}
    deep = b'{"a":NaN,"b":' + b"[" * 100_000
    for odd in (b'{"a":NaN', b'{"a":NaN,"b":"\\ud800"}', b'{"a":NaN,"b":"\xff"}', deep):
        with pytest.raises(WorkerFailed, match="not valid JSON"):
            text_parser.answer_object(odd)


def test_arguments_are_an_object_unless_they_are_nested_too_deeply() -> None:
    shallow = {"code": "{[" * 1_000, "edits": [{"at": [n]} for n in range(1_000)]}
    assert text_parser.arguments_object(orjson.dumps(shallow).decode()) == shallow
    assert text_parser.arguments_object("") == {}
    for odd in ("[]", "{", '{"a":' + "[" * 300 + "]" * 300 + "}"):
        assert text_parser.arguments_object(odd) is None
