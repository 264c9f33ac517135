"""What is read of TGI's verbatim answers: their end, their failures, and their usage where they state it."""

import orjson
import pytest

from router.dialects.tgi_http.answer_parser import PASSING
from router.errors import WorkerBusy, WorkerError, WorkerFailed
from router.openai.usage import StreamUsage, Usage

ASKED = orjson.dumps({"inputs": "x" * 9})


def no_header(_: str) -> str:
    return ""


def streamed(**fields) -> bytes:
    return b"data:" + orjson.dumps({"token": {"id": 1, "text": "a"}} | fields) + b"\n\n"


def last(**details) -> bytes:
    return streamed(generated_text="a", details={"finish_reason": "length", **details})


def took(stream: bytes) -> Usage:
    tokens = StreamUsage(hidden=False, usage_format=PASSING.streamed.usage_format(ASKED))
    assert tokens.inspect(stream) == stream
    return tokens.usage()


def test_a_streams_usage_is_read_from_its_last_event():
    assert took(streamed() + last(generated_tokens=7)) == Usage(3, 7, estimated=True)
    assert took(last(generated_tokens=7, input_length=4)) == Usage(4, 7)
    assert took(streamed() + last()).estimated


@pytest.mark.parametrize(
    "details", [None, 5, {}, {"generated_tokens": -1}, {"generated_tokens": "7"}]
)
def test_nonsensical_details_give_no_usage(details):
    body = orjson.dumps({"generated_text": "a", "details": details})
    assert PASSING.whole(ASKED, body, no_header) is None
    assert took(streamed(generated_text="a", details=details)).estimated


def test_a_whole_answers_usage_is_read_from_its_details():
    body = orjson.dumps({"generated_text": "a", "details": {"generated_tokens": 7}})
    assert PASSING.whole(ASKED, body, lambda _: "5") == Usage(5, 7)
    assert PASSING.whole(ASKED, body, no_header) == Usage(3, 7, estimated=True)


@pytest.mark.parametrize(
    ("stream", "over"),
    [
        (streamed(), False),
        (streamed(generated_text=None, details=None), False),
        (streamed(token={"text": '"generated_text":"a"'}), False),
        (last(), True),
        (b'data: {"generated_text": "a"}\n\n', True),
        (b'data:{"error":"no","error_type":"generation"}\n\n', True),
    ],
)
def test_the_end_of_a_text_is_recognised(stream, over):
    assert (PASSING.streamed.over.search(stream) is not None) is over


@pytest.mark.parametrize(
    ("said", "failure"),
    [
        (b'{"error":"full","error_type":"overloaded"}', WorkerBusy),
        (b'{"error":"no"}', WorkerFailed),
        (b'{"generated":"a"}', WorkerFailed),
        (b"[]", WorkerFailed),
        (b"<html>", WorkerFailed),
    ],
)
def test_a_body_that_is_no_answer_is_a_failure(said, failure):
    with pytest.raises(failure):
        PASSING.whole(ASKED, said, no_header)
    with pytest.raises(WorkerError):
        PASSING.streamed.event(said)
