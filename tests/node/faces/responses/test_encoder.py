"""Encoding of a response in one piece and in a stream: the same however the worker's bytes are cut."""

from itertools import pairwise

import orjson
from hypothesis import given
from hypothesis import strategies as st

from node.faces.errors import refusal
from node.faces.responses.encoder import Head, ResponsesEncoder
from router.errors import AnswerBroken
from router.openai.sse import Splitter
from router.openai.text_writer import DONE, Delta, End, TextForm
from router.openai.usage import Usage
from router.requests import Kind

HEAD = Head("a", 1, "tiny", {"tools": []}, {})


def voice(*, streams=True):
    return ResponsesEncoder(HEAD, streams=streams, max_event_bytes=9_999)


def events_of(stream):
    splitter = Splitter(max_event_bytes=99_999)
    return [orjson.loads(event.data) for event in (*splitter.feed(stream), *splitter.finish())]


def stream_of(*events):
    form = TextForm("x", 1, "m", Kind.CHAT)
    return form.opening() + b"".join(map(form.event, events)) + DONE


STREAM = stream_of(Delta("Hä"), Delta("llo"), End("stop"), Usage(5, 6))


@given(st.lists(st.integers(0, len(STREAM)), max_size=8))
def test_however_a_stream_is_cut_its_events_are_the_same(cuts):
    encoder, bounds = voice(), [0, *sorted(cuts), len(STREAM)]
    pieces = [encoder.encode_events(STREAM[a:b]) for a, b in pairwise(bounds)]
    events = events_of(b"".join(pieces) + encoder.encode_end())
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert events[-1]["type"] == "response.completed"
    response = events[-1]["response"]
    assert response["output"][0]["content"][0]["text"] == "Hällo"
    assert response["usage"]["total_tokens"] == 11


def test_an_event_names_its_type_in_its_event_field_too():
    first = voice().encode_events(STREAM).split(b"\n")[0]
    assert first == b"event: response.created"


def test_the_response_is_the_same_in_one_piece_and_in_a_stream():
    message = {"message": {"content": "ho"}, "finish_reason": "stop"}
    body = orjson.dumps(
        {"choices": [message], "usage": {"prompt_tokens": 1, "completion_tokens": 2}}
    )
    kind, answer = voice(streams=False).encode_whole(body)
    streamed_kind, stream = voice().encode_whole(body)
    assert (kind, streamed_kind) == ("application/json", "text/event-stream")
    assert orjson.loads(answer) == events_of(stream)[-1]["response"]


def test_estimated_usage_is_marked():
    stream = stream_of(Delta("ho"), End("stop"), Usage(1, 2, estimated=True))
    encoder = voice()
    last = events_of(encoder.encode_events(stream) + encoder.encode_end())[-1]
    assert last["response"]["usage"]["estimated"] is True


def test_an_answer_without_a_finish_reason_has_completed():
    encoder = voice()
    last = events_of(encoder.encode_events(stream_of(Delta("ho"))) + encoder.encode_end())[-1]
    assert (last["type"], last["response"]["usage"]) == ("response.completed", None)


def test_a_failure_before_any_text_is_a_response_that_began_and_failed():
    events = events_of(voice().encode_failure(refusal(AnswerBroken("gone"))))
    kinds = [event["type"] for event in events]
    assert kinds == ["response.created", "response.in_progress", "response.failed", "error"]
    assert events[2]["response"]["error"] == {"code": "answer_broken", "message": "gone"}
    assert events[3]["error"]["type"] == "server_error"


def test_nothing_follows_a_failure():
    encoder = voice()
    encoder.encode_failure(refusal(AnswerBroken("gone")))
    assert encoder.encode_events(STREAM) + encoder.encode_end() == b""


def test_a_stream_without_finish_reason_and_done_has_failed():
    encoder = voice()
    stream = stream_of(Delta("ho")).removesuffix(DONE)
    *_, failed, error = events_of(encoder.encode_events(stream) + encoder.encode_end())
    assert (failed["type"], error["code"]) == ("response.failed", "answer_broken")
