"""Output of a response: it grows item by item, and its events describe all of it."""

import pytest

from node.faces.responses import encoder
from node.faces.responses.encoder import MAX_ITEMS, Output
from router.errors import WorkerFailed
from router.openai.logprobs import Token
from router.openai.text_parser import CallPart, ReasoningPiece, TextFailure
from router.openai.text_writer import Delta, End
from router.openai.usage import Usage


def hear(*text_events):
    """Feed an answer to an output to its end; return the output and its events."""
    output = Output("a", {})
    events = [response_event for event in text_events for response_event in output.take(event)]
    return output, events + list(output.finish())


def kinds(events):
    return [str(event["type"]).removeprefix("response.") for event in events]


PART = ["output_item.added", "content_part.added"]


def test_a_text_is_opened_grows_and_is_closed():
    output, events = hear(Delta("Hel"), Delta("lo"), End("stop"), Usage(5, 6))
    assert kinds(events) == [
        *PART,
        "output_text.delta",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
    ]
    [message] = output.all_items()
    part = {"type": "output_text", "text": "Hello", "annotations": [], "logprobs": []}
    assert (message["status"], message["content"]) == ("completed", [part])
    assert (events[0]["item"]["content"], events[0]["item"]["status"]) == ([], "in_progress")
    assert events[-1]["item"] == message
    assert (output.reason, output.usage) == ("stop", Usage(5, 6))


def test_logprobs_come_with_their_delta_and_with_the_whole_text():
    drawn = Token("lo", -0.5, 7, (Token("lo", -0.5, 7), Token("p", -1.5)))
    output, events = hear(Delta("Hel", 0, (Token("Hel", -0.25),)), Delta("lo", 0, (drawn,)))
    first = {"token": "Hel", "logprob": -0.25, "bytes": [72, 101, 108], "top_logprobs": []}
    [_, _, one, other, done, part, _] = events
    assert one["logprobs"] == [first]
    assert [top["token"] for top in other["logprobs"][0]["top_logprobs"]] == ["lo", "p"]
    assert done["logprobs"] == part["part"]["logprobs"] == [first, *other["logprobs"]]
    [message] = output.all_items()
    assert message["content"][0]["logprobs"] == done["logprobs"]


def test_logprobs_count_towards_the_limit_of_an_answer(monkeypatch):
    monkeypatch.setattr(encoder, "MAX_CHARACTERS", 200)
    output = Output("a", {})
    for _ in range(3):
        list(output.take(Delta("a", 0, (Token("a"),))))
    with pytest.raises(WorkerFailed):
        list(output.take(Delta("a", 0, (Token("a"),))))


def test_reasoning_ends_where_the_text_begins():
    output, events = hear(ReasoningPiece("hm"), Delta("ho"))
    thought = [*PART, "reasoning_text.delta", "reasoning_text.done"]
    assert kinds(events)[:6] == [*thought, "content_part.done", "output_item.done"]
    assert [item["type"] for item in output.all_items()] == ["reasoning", "message"]


def test_parts_of_several_calls_may_be_interleaved():
    parts = [
        CallPart(0, "c0", "look", '{"a"'),
        CallPart(1, "", "wait", ""),
        CallPart(0, "", "", ":1}"),
        CallPart(1, "", "", "{}"),
    ]
    output, events = hear(Delta("See"), *parts, End("tool_calls"))
    _, look, wait = output.all_items()
    assert (look["call_id"], look["name"], look["arguments"]) == ("c0", "look", '{"a":1}')
    assert (wait["call_id"], wait["arguments"]) == ("call_a0002", "{}")
    assert kinds(events)[-4:] == ["function_call_arguments.done", "output_item.done"] * 2
    assert [event["output_index"] for event in events[-4:]] == [1, 1, 2, 2]


def test_a_call_has_the_callers_name_and_namespace():
    output = Output("a", {"vines__look": {"name": "look", "namespace": "vines"}})
    events = list(output.take(CallPart(0, "c", "vines__look", "{}"))) + list(output.finish())
    [call] = output.all_items()
    assert (call["name"], call["namespace"]) == ("look", "vines")
    assert events[-2]["name"] == "look"


def test_a_text_after_calls_is_an_item_of_its_own():
    output, _ = hear(Delta("a"), CallPart(0, "c", "look", "{}"), Delta("b"))
    assert [item["type"] for item in output.all_items()] == ["message", "function_call", "message"]


@pytest.mark.parametrize("reason", ["length", "content_filter"])
def test_of_a_cut_answer_the_last_item_is_incomplete(reason):
    output, _ = hear(ReasoningPiece("hm"), Delta("ho"), End(reason))
    assert [item["status"] for item in output.all_items()] == ["completed", "incomplete"]


def test_an_answer_without_text_is_an_empty_text():
    output, events = hear(End("stop"))
    [message] = output.all_items()
    assert message["content"][0]["text"] == ""
    assert "output_text.delta" not in kinds(events)


def test_an_unfinished_item_is_incomplete():
    output = Output("a", {})
    for part in (ReasoningPiece("hm"), Delta("ho")):
        assert list(output.take(part))
    assert [item["status"] for item in output.all_items()] == ["completed", "incomplete"]


def test_other_choices_and_failures_add_nothing():
    other_choices = [
        Delta("x", 1),
        ReasoningPiece("x", 1),
        CallPart(0, "", "", "", 1),
        End("length", 1),
    ]
    output, events = hear(*other_choices, TextFailure("m", "t", "c"))
    assert (output.reason, len(events)) == (None, len(hear()[1]))


def test_ids_of_items_are_unique():
    output, _ = hear(ReasoningPiece("hm"), Delta("ho"), CallPart(0, "", "look", ""))
    assert [item["id"] for item in output.all_items()] == ["rs_a0000", "msg_a0001", "fc_a0002"]


def test_the_items_of_an_output_are_limited():
    with pytest.raises(WorkerFailed, match="items"):
        hear(*(CallPart(n, "", "look", "") for n in range(MAX_ITEMS + 1)))


def test_the_characters_of_an_output_are_limited(monkeypatch):
    monkeypatch.setattr(encoder, "MAX_CHARACTERS", 4)
    with pytest.raises(WorkerFailed, match="characters"):
        hear(Delta("four"), Delta("!"))
