"""Laws of usage: requested in the body, exact or marked as estimated, and never shown to a caller that did not ask."""

import json

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.openai.usage import (
    ASK_AGAIN,
    MAX_WORKERS,
    OptionSupport,
    StreamUsage,
    Usage,
    add_usage_option,
    read_usage,
    read_usage_at_end,
)

WORD = b'data: {"choices":[{"delta":{"content":"a"}}],"usage":null}\n\n'
TOLD = b'data: {"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":6}}\n\n'
DONE = b"data: [DONE]\n\n"
LAST = TOLD.replace(b"[]", b'[{"finish_reason":"stop"}]').replace(b"5", b"7")
EVENTS = (WORD, TOLD, DONE, LAST, TOLD.replace(b"\n", b"\r\n"), b": alive\n\n", b"data: {\n" + TOLD)

leaves = st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=5)
options = st.dictionaries(
    st.sampled_from(["include_usage", "include_obfuscation", 'x"{', "}"]), leaves, max_size=3
)
bodies = st.dictionaries(
    st.sampled_from(["model", "messages", "stream_options", "tools"]),
    leaves | options | st.lists(st.dictionaries(st.just("stream_options"), options)),
)


@given(bodies, st.sampled_from([None, 1]))
def test_the_usage_option_is_the_only_change_to_a_body(
    fields: dict[str, object], indent: int | None
) -> None:
    body = json.dumps(fields, indent=indent).encode()
    changed = add_usage_option(body)
    options = fields.get("stream_options")
    if changed is None:
        return
    given_options = options if isinstance(options, dict) else {}
    expected = fields | {"stream_options": given_options | {"include_usage": True}}
    if body != b"{}":
        assert json.loads(changed) == expected


@pytest.mark.parametrize(
    ("body", "asked"),
    [
        (b' {"model":"m", "n":1.0}', b'{"stream_options":{"include_usage":true},"model":"m", "n":1.0}'),
        (b'{"a":1,"stream_options":null}', b'{"a":1,"stream_options":{"include_usage":true}}'),
        (b'{"stream_options" : { } }', b'{"stream_options" : {"include_usage":true } }'),
        (b'{"stream_options":{"include_usage": false}}', b'{"stream_options":{"include_usage":true}}'),
        (b'{"stream_options":{"x":1}}', b'{"stream_options":{"include_usage":true,"x":1}}'),
        (b'{"tools":[{"stream_options":{"x":1}}]}',
         b'{"stream_options":{"include_usage":true},"tools":[{"stream_options":{"x":1}}]}'),
        (b'{"stream_options":{"include_usage" : true}}', None),
        (b'{"stream_options":{"x":{}}}', None),
        (b'{"stream_options":{"include_usage":0}}', None),
        (b'{"stream_options":1}', None),
        (b'{"stream_options":{},"stream_options":{}}', None),
    ],
)  # fmt: skip
def test_every_other_byte_stays_and_options_of_unknown_form_are_left_alone(
    body: bytes, asked: bytes | None
) -> None:
    assert add_usage_option(body) == asked


@pytest.mark.parametrize(
    ("said", "usage"),
    [
        ({"usage": {"prompt_tokens": 5, "completion_tokens": 6}}, Usage(5, 6)),
        ({"usage": {"prompt_tokens": 5}}, Usage(5, 0)),
        (
            {"usage": {"prompt_tokens": 5, "prompt_tokens_details": {"cached_tokens": 4}}},
            Usage(5, 0, cached=4),
        ),
        (
            {"usage": {"prompt_tokens": 5, "prompt_tokens_details": {"cached_tokens": 6}}},
            Usage(5, 0),
        ),
        ({"usage": {"prompt_tokens": 5, "prompt_tokens_details": None}}, Usage(5, 0)),
        ({"usage": {"prompt_tokens": -5}}, None),
        ({"usage": {"prompt_tokens": 5, "completion_tokens": "6"}}, None),
        ({"usage": {"prompt_tokens": 2**60}}, None),
        ({"usage": None}, None),
        ([], None),
    ],
)
def test_usage_is_read_from_an_answer_if_its_numbers_are_sensible(
    said: object, usage: Usage | None
) -> None:
    assert read_usage(said) == usage
    if isinstance(said, dict):
        padded = orjson.dumps({"data": "x" * 5_000} | said)
        assert read_usage_at_end(padded) == usage


def test_a_long_answer_that_ends_in_nonsense_has_no_usage() -> None:
    for end in (b'"usage"', b'"usage":{', b'"usage":{"prompt_tokens":', b"{" * 3_000, b""):
        assert read_usage_at_end(b"x" * 10_000 + end) is None


def test_the_usage_event_that_the_router_requested_is_removed_and_all_others_stay() -> None:
    tokens = StreamUsage(hidden=True)
    assert tokens.inspect(WORD) == WORD
    assert tokens.inspect(WORD + TOLD + DONE) == WORD + DONE
    assert tokens.inspect(b"") == b""
    assert tokens.usage() == Usage(5, 6)


@given(st.lists(st.sampled_from(EVENTS), max_size=6))
def test_events_in_one_chunk_are_read_as_in_chunks_of_their_own(events: list[bytes]) -> None:
    together, apart = StreamUsage(hidden=True), StreamUsage(hidden=True)
    assert together.inspect(b"".join(events)) == b"".join(map(apart.inspect, events))
    assert together.usage() == apart.usage()


@pytest.mark.parametrize("more", [1, -(2**53)])
def test_a_number_of_tokens_beyond_53_bits_is_no_usage(more: int) -> None:
    largest = 2**53 - 1
    for name in ("prompt_tokens", "completion_tokens"):
        usage = {"prompt_tokens": largest, "completion_tokens": largest}
        assert read_usage({"usage": usage}) == Usage(largest, largest)
        assert read_usage({"usage": usage | {name: largest + more}}) is None


def test_a_caller_that_asked_for_usage_gets_every_byte() -> None:
    tokens = StreamUsage(hidden=False)
    assert tokens.inspect(WORD + TOLD + DONE) == WORD + TOLD + DONE
    assert tokens.usage() == Usage(5, 6)


def test_usage_in_an_event_with_a_choice_stays_in_it() -> None:
    last = TOLD.replace(b"[]", b'[{"finish_reason":"stop"}]')
    tokens = StreamUsage(hidden=True)
    assert tokens.inspect(last) == last
    assert tokens.usage() == Usage(5, 6)


def test_the_last_usage_of_a_stream_counts_and_only_once() -> None:
    tokens = StreamUsage(hidden=False)
    for number in range(3):
        tokens.inspect(TOLD.replace(b"6", b"%d" % number))
    assert tokens.usage() == tokens.usage() == Usage(5, 2)


def test_a_stream_without_usage_is_estimated_from_its_number_of_events() -> None:
    tokens = StreamUsage(hidden=True)
    tokens.events = 7
    quoted = rb'data: {"choices":[{"delta":{"content":"\"prompt_tokens\": 5"}}]}' + b"\n\n"
    assert tokens.inspect(quoted) == quoted
    assert tokens.usage() == Usage(0, 7, estimated=True)


@pytest.mark.parametrize("nonsense", [b"data: {", b"data: []", b'data: {"usage":1}', b"data: "])
def test_nonsense_that_mentions_tokens_is_passed_on_and_gives_no_usage(nonsense: bytes) -> None:
    event = nonsense + b' "prompt_tokens"\n\n'
    tokens = StreamUsage(hidden=True)
    assert tokens.inspect(event) == event
    assert tokens.usage().estimated


def test_a_worker_that_refuses_the_option_is_sent_none_for_a_while() -> None:
    support = OptionSupport()
    assert support.should_send("w", 0.0)
    assert support.may_be_due_to_option("w", 400, b"no")
    support.record_refused("w", 0.0)
    assert not support.should_send("w", ASK_AGAIN - 1)
    assert support.should_send("w", ASK_AGAIN)
    support.record_accepted("w")
    assert support.should_send("w", ASK_AGAIN + 1)


def test_a_refusal_by_a_worker_that_takes_the_option_is_due_to_it_only_if_it_names_it() -> None:
    support = OptionSupport()
    support.record_accepted("w")
    assert not support.may_be_due_to_option("w", 400, b"too long")
    assert support.may_be_due_to_option("w", 422, b"unknown field stream_options")
    assert not support.may_be_due_to_option("new", 413, b"stream_options")


def test_beyond_the_limit_of_remembered_workers_all_are_forgotten_and_sent_the_option() -> None:
    support = OptionSupport()
    for number in range(MAX_WORKERS):
        support.record_refused(f"w{number}", 0.0)
    assert not support.should_send("w1", 1.0)
    support.record_accepted("one more")
    assert support.should_send("w1", 1.0)
