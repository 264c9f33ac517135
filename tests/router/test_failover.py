"""Laws of continued streams: the caller reads one text, once, and is told where its seams are."""

from dataclasses import replace

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from registry.records import PeerId
from router.failover import (
    MOST_SEAMS,
    MOST_TEXT_CHARACTERS,
    ContinuedText,
    Finish,
    Resume,
    continued_text,
    ended_too_soon,
    is_failure_event,
    is_wanted,
)
from router.openai.sse import Event, data_of
from router.requests import Kind, Request
from tests.router.world import chat

ONE, TWO = PeerId("one"), PeerId("two")
WORDS = ("One", " two", " three", " four", " five")
CHAT = {
    "model": "m",
    "stream": True,
    "messages": [{"role": "user", "content": "count"}],
    "stream_options": {"include_usage": True},
}


def asked(kind: Kind = Kind.CHAT, **fields: object) -> Request:
    body = {**CHAT, **fields}
    if kind is Kind.COMPLETION:
        body = {"prompt": "count:"} | {n: v for n, v in body.items() if n != "messages"}
    return replace(chat(stream=True, kind=kind, body=orjson.dumps(body)), continues=True)


def stream(request: Request) -> ContinuedText:
    continued = continued_text(request)
    assert continued is not None
    return continued


def event(payload: dict[str, object]) -> Event:
    raw = b"data: " + orjson.dumps(payload) + b"\n\n"
    return Event(raw, data_of(raw))


DONE = Event(b"data: [DONE]\n\n", b"[DONE]")


def part(request: Request, words: tuple[str, ...], *, ident: str, prompt: int = 10) -> list[Event]:
    """Return the events of a worker's stream: role, words, finish reason, usage, and the end."""
    head: dict[str, object] = {"id": ident, "created": ord(ident), "model": "m"}
    if request.kind is Kind.COMPLETION:
        choices = [{"index": 0, "text": word} for word in words]
        choices.append({"index": 0, "text": "", "finish_reason": "stop"})
    else:
        deltas = [{"role": "assistant", "content": None}, *({"content": word} for word in words)]
        choices = [{"index": 0, "delta": delta, "finish_reason": None} for delta in deltas]
        choices.append({"index": 0, "delta": {}, "finish_reason": "stop"})
    usage = {"prompt_tokens": prompt, "completion_tokens": len(words), "total_tokens": 0}
    payloads = [head | {"choices": [choice]} for choice in choices]
    return [*map(event, payloads), event(head | {"choices": [], "usage": usage}), DONE]


def read(raw: bytes) -> list[dict[str, object]]:
    return [
        orjson.loads(data_of(e)) for e in raw.split(b"\n\n") if data_of(e) not in (b"", b"[DONE]")
    ]


def text_of(raw: bytes) -> str:
    pieces = [choice for payload in read(raw) for choice in payload["choices"]]
    return "".join(c.get("text") or c.get("delta", {}).get("content") or "" for c in pieces)


@given(st.sampled_from([Kind.CHAT, Kind.COMPLETION]), st.data())
def test_the_caller_reads_one_text_of_one_answer_wherever_workers_die(
    kind: Kind, data: st.DataObject
) -> None:
    request = asked(kind)
    continued, sent, left = stream(request), b"", WORDS
    for number in range(MOST_SEAMS + 1):
        events = part(request, left, ident="abcd"[number], prompt=10 + len(WORDS) - len(left))
        # A later part without words is the last one.
        last = number == MOST_SEAMS or (number > 0 and not left)
        least = 2 if number else 0
        cut = len(events) if last else data.draw(st.integers(least, len(events)))
        before = continued._written
        for each in events[:cut]:
            sent += continued.feed(each)
        left = left[continued._written - before :]
        if cut == len(events):
            break
        step = continued.decide_continuation(ONE)
        if isinstance(step, Finish):
            sent += step.last
            break
        assert isinstance(step, Resume)
        again = orjson.loads(step.request.body)
        so_far = "".join(WORDS[: len(WORDS) - len(left)])
        if kind is Kind.COMPLETION:
            assert again["prompt"] == "count:" + so_far
        elif so_far:
            assert again["messages"][-1] == {"role": "assistant", "content": so_far}
        sent += continued.seam_event(TWO)
    assert text_of(sent) == "".join(WORDS)
    assert sent.count(b"data: [DONE]\n\n") == 1
    assert sent.endswith(b"data: [DONE]\n\n")
    payloads = read(sent)
    firsts = [s for s in payloads if "id" in s]
    assert len({(s["id"], s["created"], s["model"]) for s in firsts}) == 1
    assert sum("role" in c.get("delta", {}) for s in payloads for c in s["choices"]) <= 1
    assert sum(c.get("finish_reason") == "stop" for s in payloads for c in s["choices"]) <= 1
    [usage] = [s["usage"] for s in payloads if s.get("usage")]
    assert usage["completion_tokens"] == len(WORDS)
    assert usage["prompt_tokens"] in (0, 10)


def died(*events: Event, **fields: object) -> tuple[ContinuedText, Resume | Finish | None]:
    continued = stream(asked(**fields))
    for each in events:
        continued.feed(each)
    return continued, continued.decide_continuation(ONE)


def words(count: int) -> list[Event]:
    return part(asked(), WORDS, ident="a")[: count + 1]


def test_a_stream_that_does_not_break_is_unchanged() -> None:
    continued = stream(asked())
    events = [Event(b": ping\r\n\r\n", b""), *part(asked(), WORDS, ident="a")]
    assert [continued.feed(e) for e in events] == [e.raw for e in events]


def test_the_seam_names_both_nodes_and_the_characters_before_it() -> None:
    continued, _ = died(*words(2))
    [payload] = read(continued.seam_event(TWO))
    assert payload["modelvine"] == {"seam": {"from": ONE, "to": TWO, "characters": len("One two")}}
    assert payload["choices"] == [{"index": 0, "delta": {}, "finish_reason": None}]
    assert payload["id"] == "a"


def test_tokens_already_written_count_against_the_limit() -> None:
    _, step = died(*words(2), max_tokens=5, max_completion_tokens=7)
    assert isinstance(step, Resume)
    again = orjson.loads(step.request.body)
    assert (again["max_tokens"], again["max_completion_tokens"]) == (3, 3)


def test_a_text_that_had_reached_its_limit_ends_there() -> None:
    _, step = died(*words(2), max_tokens=2)
    assert isinstance(step, Finish)
    ending, usage = read(step.last)
    assert ending["choices"] == [{"index": 0, "delta": {}, "finish_reason": "length"}]
    assert usage["modelvine"] == {"estimated": True, "seams": 0}
    assert step.last.endswith(b"data: [DONE]\n\n")


def test_a_stream_that_broke_after_its_end_needs_no_other_worker() -> None:
    assert died(*part(asked(), WORDS, ident="a"))[1] == Finish(b"")
    assert died(*part(asked(), WORDS, ident="a")[:-1])[1] == Finish(DONE.raw)


def test_an_assistant_message_begun_by_the_caller_stays_one_message() -> None:
    begun = [*CHAT["messages"], {"role": "assistant", "content": "Zero "}]
    _, step = died(*words(1), messages=begun)
    assert isinstance(step, Resume)
    assert orjson.loads(step.request.body)["messages"][1:] == [
        {"role": "assistant", "content": "Zero One"}
    ]


def test_a_stream_that_broke_before_its_first_word_is_requested_again_unchanged() -> None:
    _, step = died(*words(0))
    assert isinstance(step, Resume)
    assert orjson.loads(step.request.body) == CHAT


def test_an_error_event_of_the_worker_ends_its_part_and_is_not_passed_on() -> None:
    continued = stream(asked())
    assert continued.feed(event({"error": {"message": "engine is dead"}})) == b""
    assert isinstance(continued.decide_continuation(ONE), Resume)


def test_the_number_of_seams_is_bounded() -> None:
    continued = stream(asked())
    for _ in range(MOST_SEAMS):
        for piece in words(1):
            continued.feed(piece)
        assert isinstance(continued.decide_continuation(ONE), Resume)
    for piece in words(1):
        continued.feed(piece)
    assert continued.decide_continuation(ONE) is None


def test_a_request_that_kills_its_workers_is_sent_to_two_at_most() -> None:
    continued = stream(asked())
    step = continued.decide_continuation(ONE)
    assert isinstance(step, Resume)
    # The next worker learns that one has died already, and the request is not held for a worker to come back.
    assert (step.request.deaths, step.request.holds) == (1, False)
    assert continued.decide_continuation(ONE) is None


def test_a_stream_that_states_null_finish_reasons_needs_a_final_one() -> None:
    goes_on = b'data: {"choices":[{"index":0,"delta":{"content":"x"},"finish_reason":null}]}\n\n'
    ends = b'data: {"choices":[{"index":0,"delta":{},"finish_reason": "stop"}]}\n\n'
    silent = b'data: {"choices":[{"index":0,"delta":{"content":"x"}}]}\n\n'
    assert ended_too_soon(goes_on)
    assert not ended_too_soon(goes_on + ends)
    assert not ended_too_soon(goes_on + b"data: [DONE]\n\n")
    assert not ended_too_soon(silent)
    assert not ended_too_soon(b"")


def test_only_an_error_event_is_a_failure_and_not_an_error_within_a_text() -> None:
    assert is_failure_event(event({"error": {"message": "engine is dead"}}))
    assert not is_failure_event(event({"choices": [], "error": None}))
    assert not is_failure_event(event({"choices": [{"delta": {"content": '{"error": 1}'}}]}))


def test_the_remembered_text_is_bounded() -> None:
    long = {"choices": [{"index": 0, "delta": {"content": "x" * MOST_TEXT_CHARACTERS}}]}
    assert isinstance(died(event(long))[1], Resume)
    assert died(event(long), *words(1))[1] is None


@pytest.mark.parametrize(
    "choices",
    [
        [{"index": 0, "delta": {"tool_calls": [{"index": 0}]}}],
        [{"index": 0, "delta": {"reasoning_content": "hm"}}],
        [{"index": 0, "delta": {"content": "x"}, "logprobs": {"content": []}}],
        [{"index": 1, "delta": {"content": "x"}}],
        [{"index": 0, "delta": {}}, {"index": 1, "delta": {}}],
        [{"index": 0, "delta": "x"}],
        ["x"],
        "x",
    ],
)
def test_a_stream_with_other_than_plain_text_is_passed_on_but_not_continued(
    choices: object,
) -> None:
    continued = stream(asked())
    odd = event({"choices": choices})
    assert continued.feed(odd) == odd.raw
    assert continued.decide_continuation(ONE) is None


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": [{"type": "function"}]},
        {"n": 2},
        {"logprobs": True},
        {"response_format": {"type": "json_object"}},
        {"guided_json": {}} | {"grammar": "x"},
        {"messages": []},
        {"messages": "x"},
        {"messages": ["x"]},
        {"messages": [{"role": "assistant", "content": [{"type": "text"}]}]},
    ],
)
def test_requests_that_cannot_be_continued_are_not(fields: dict[str, object]) -> None:
    assert continued_text(asked(**fields)) is None


def test_only_text_streams_whose_callers_want_it_are_continued() -> None:
    assert is_wanted(asked())
    assert not is_wanted(replace(asked(), continues=False))
    assert not is_wanted(replace(asked(), stream=False))
    assert not is_wanted(replace(asked(), kind=Kind.SPEECH))
    assert not is_wanted(replace(asked(), fallbacks=("other",)))
    assert continued_text(asked(Kind.COMPLETION, prompt=["a", "b"])) is None
    assert continued_text(asked(Kind.COMPLETION, echo=True)) is None
    assert continued_text(asked(n=1, response_format={"type": "text"}, tools=[])) is not None


@given(st.lists(st.binary(max_size=40)))
def test_nonsense_in_a_stream_raises_nothing(lines: list[bytes]) -> None:
    continued = stream(asked())
    for line in lines:
        continued.feed(Event(line, line))
    continued.decide_continuation(ONE)
    continued.seam_event(TWO)
