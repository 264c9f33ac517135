"""Encoding of answers in OpenAI's form as Anthropic's API has them: whole, and event by event."""

import orjson
import pytest

from node.faces.anthropic.encoder import MAX_CALLS, UNREADABLE, AnthropicEvents, Blocks, content_of
from node.faces.anthropic.request_mapping import read
from router.errors import WorkerFailed
from router.openai.sse import Splitter
from router.openai.text_parser import CallPart, ReasoningPiece, TextFailure
from router.openai.text_writer import Delta, End
from router.openai.usage import Usage

ASKED = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "12345678"}]}
THINKING = {"thinking": {"type": "adaptive"}}
CALLS = [
    CallPart(0, "call_a", "look", ""),
    CallPart(0, "", "", '{"city":'),
    CallPart(0, "", "", '"Paris"}'),
    CallPart(1, "call_b", "look", "{}"),
]
LOOK = {"type": "tool_use", "name": "look"}


def telling(**fields) -> AnthropicEvents:
    return AnthropicEvents(read(ASKED | fields), "r1", "a1", max_event_bytes=99_999)


def events_of(stream: bytes) -> list[dict]:
    """Return the events of a stream; every event names its type twice."""
    found = []
    for event in Splitter(max_event_bytes=2**20).feed(stream):
        name, data = event.raw.decode().strip().split("\n", 1)
        payload = orjson.loads(data.removeprefix("data: "))
        assert name == f"event: {payload['type']}"
        found.append(payload)
    return found


def streamed(parts, **fields) -> list[dict]:
    encoder = telling(stream=True, **fields)
    stream = encoder.opening() + b"".join(encoder.events([part]) for part in parts)
    encoder.encode_events(b"data: [DONE]\n\n")
    return events_of(stream + encoder.closing())


def whole(parts, **fields) -> dict:
    return telling(**fields).answer(parts)


def put_together(events) -> dict:
    """Return the message that a client assembles from a stream."""
    message = events[0]["message"]
    for event in events[1:]:
        match event:
            case {"type": "content_block_start", "index": index, "content_block": block}:
                assert index == len(message["content"])
                message["content"].append(block | {"open": True, "json": ""})
            case {"type": "content_block_delta", "index": index, "delta": delta}:
                block = message["content"][index]
                assert block["open"]
                match delta:
                    case {"type": "text_delta", "text": text}:
                        block["text"] += text
                    case {"type": "thinking_delta", "thinking": text}:
                        block["thinking"] += text
                    case {"type": "input_json_delta", "partial_json": text}:
                        block["json"] += text
            case {"type": "content_block_stop", "index": index}:
                block = message["content"][index]
                assert block.pop("open")
                if (arguments := block.pop("json")) or block["type"] == "tool_use":
                    block["input"] = orjson.loads(arguments or "{}")
            case {"type": "message_delta", "delta": delta, "usage": usage}:
                message |= {**delta, "usage": usage}
    assert events[-1] == {"type": "message_stop"}
    return message


SAID = pytest.mark.parametrize(
    ("heard", "content", "reason"),
    [
        ([], [], "end_turn"),
        ([Delta("a"), Delta("b"), End("stop")], [{"type": "text", "text": "ab"}], "end_turn"),
        ([Delta("a"), End("length")], [{"type": "text", "text": "a"}], "max_tokens"),
        ([End("content_filter")], [], "refusal"),
        (
            [ReasoningPiece("Hm"), ReasoningPiece("."), Delta("Yes."), End("stop")],
            [
                {"type": "thinking", "thinking": "Hm.", "signature": ""},
                {"type": "text", "text": "Yes."},
            ],
            "end_turn",
        ),
        (
            [Delta("Let me see."), *CALLS, End("tool_calls")],
            [
                {"type": "text", "text": "Let me see."},
                LOOK | {"id": "call_a", "input": {"city": "Paris"}},
                LOOK | {"id": "call_b", "input": {}},
            ],
            "tool_use",
        ),
        (
            [CallPart(0, "", "look", "{}"), End("stop")],
            [LOOK | {"id": "toolu_a1_0", "input": {}}],
            "tool_use",
        ),
        ([Delta("a"), End("tool_calls")], [{"type": "text", "text": "a"}], "end_turn"),
        ([Delta("a"), Delta("other", 1), End("length", 1)], [{"type": "text", "text": "a"}], "end_turn"),
    ],
)  # fmt: skip


@SAID
def test_a_whole_answer_has_anthropics_blocks_and_stop_reason(heard, content, reason):
    answer = whole([*heard, Usage(3, 4)], **THINKING)
    assert (answer["content"], answer["stop_reason"]) == (content, reason)
    assert answer["usage"] == {"input_tokens": 3, "output_tokens": 4}
    assert (answer["id"], answer["type"], answer["role"], answer["model"]) == (
        "msg_a1",
        "message",
        "assistant",
        "m",
    )


@SAID
def test_a_stream_adds_up_to_the_whole_answer(heard, content, reason):
    message = put_together(streamed([*heard, Usage(3, 4)], **THINKING))
    assert message == whole([*heard, Usage(3, 4)], **THINKING)


def test_thinking_is_left_out_when_it_was_not_requested():
    parts = [ReasoningPiece("Hm."), Delta("Yes."), End("stop")]
    assert whole(parts)["content"] == [{"type": "text", "text": "Yes."}]
    assert put_together(streamed(parts))["content"] == [{"type": "text", "text": "Yes."}]


def test_usage_without_a_report_is_estimated_and_marked_so():
    answer = whole([Delta("12345678")])
    assert answer["usage"] == {"input_tokens": 6, "output_tokens": 2, "estimated": True}
    first, *_ = streamed([])
    assert first["message"]["usage"] == {"input_tokens": 6, "output_tokens": 0}
    assert put_together(streamed([Delta("12345678")]))["usage"] == answer["usage"]


STOPPED = [Delta("1, 2"), End("stop", 0, "3")]


@pytest.mark.parametrize(
    "said", [whole, lambda *given, **fields: put_together(streamed(*given, **fields))]
)
def test_a_stop_sequence_is_named_where_the_worker_reports_it(said):
    answer = said(STOPPED, stop_sequences=["x", "3"])
    assert (answer["stop_reason"], answer["stop_sequence"]) == ("stop_sequence", "3")
    # A stop sequence that the caller did not ask for is the model's own.
    answer = said(STOPPED)
    assert (answer["stop_reason"], answer["stop_sequence"]) == ("end_turn", None)


def test_an_answer_does_not_repeat_the_text_that_the_caller_prefilled():
    begun = [*ASKED["messages"], {"role": "assistant", "content": "The answer is {"}]
    for text in ("The answer is {42}", "42}"):
        answer = whole([Delta(text), End("stop")], messages=begun)
        assert answer["content"] == [{"type": "text", "text": "42}"}]
    assert whole([Delta("The answer is {")], messages=begun)["content"] == []


def test_arguments_that_are_no_object_are_passed_on_as_text():
    for arguments in ('{"city": "Par', "[1]", '{"a":' * 300 + "1" + "}" * 300):
        (call,) = whole([CallPart(0, "a", "look", arguments), End("length")])["content"]
        assert call["input"] == {UNREADABLE: arguments}


def test_whitespace_between_pieces_of_calls_is_ignored():
    parts = [CALLS[0], Delta("\n"), *CALLS[1:]]
    assert [block["id"] for block in put_together(streamed(parts))["content"]] == [
        "call_a",
        "call_b",
    ]


def test_a_piece_of_an_earlier_call_is_a_failure():
    blocks = Blocks("a1")
    blocks.take(CALLS)
    assert blocks.take([CallPart(0, "", "", "")]) == b""
    with pytest.raises(WorkerFailed):
        blocks.take([CallPart(0, "", "", "more")])


@pytest.mark.parametrize("take", [Blocks("a1").take, lambda said: content_of(said, "a1")])
def test_a_call_without_a_name_and_too_many_calls_are_failures(take):
    with pytest.raises(WorkerFailed):
        take([CallPart(0, "a", "", "{}")])
    with pytest.raises(WorkerFailed):
        take([CallPart(index, "a", "look", "{}") for index in range(MAX_CALLS + 1)])


def test_a_stream_that_breaks_off_ends_in_an_error():
    encoder = telling(stream=True)
    (last,) = events_of(encoder.failure(TextFailure("gone", "server_error", "answer_broken")))
    assert last == {
        "type": "error",
        "error": {"type": "api_error", "message": "gone"},
        "request_id": "r1",
    }
