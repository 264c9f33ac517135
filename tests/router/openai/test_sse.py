"""Laws of event streams: chunk boundaries have no meaning, and no byte is lost."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.openai.sse import (
    EVENT_ENDS,
    DoneDetector,
    EventTooLarge,
    FirstDataDetector,
    Splitter,
    WholeEvents,
    has_line,
)

pieces = st.sampled_from(
    [b"data: a", b"data:b", b"data", b": note", b"event: x", b"\n", b"\r\n", b"\r", b"\n\n", b"\r\n\r\n",
     b"\xc3\xa9", b"data: \xe2\x82\xac", b"[DONE]", b" ", b"\xef\xbb\xbf"]
)  # fmt: skip
streams = st.lists(pieces, max_size=30).map(b"".join)


def split(chunks: list[bytes], limit: int = 10_000) -> list[tuple[bytes, bytes]]:
    splitter = Splitter(max_event_bytes=limit)
    events = [event for chunk in chunks for event in splitter.feed(chunk)]
    return [(event.raw, event.data) for event in events + splitter.finish()]


@given(streams, st.lists(st.integers(0, 200), max_size=12))
def test_any_chunking_gives_the_same_events_and_all_the_bytes(
    stream: bytes, cuts: list[int]
) -> None:
    bounds = sorted({0, len(stream), *(cut for cut in cuts if cut < len(stream))})
    chunks = [stream[a:b] for a, b in pairwise(bounds)]
    events = split(chunks)
    assert events == split([stream[i : i + 1] for i in range(len(stream))])
    assert b"".join(raw for raw, _ in events) == stream


@given(
    st.lists(
        st.lists(st.sampled_from([b"a", b"\n", b"\r"]), min_size=1, max_size=4).map(b"".join),
        max_size=12,
    )
)
def test_what_ends_within_all_that_came_is_passed_on(chunks: list[bytes]) -> None:
    events, held = WholeEvents(), b""
    for chunk in chunks:
        held += chunk
        end = max(held.rfind(mark) + len(mark) if mark in held else 0 for mark in EVENT_ENDS)
        assert events.feed(chunk) == held[:end]
        held = held[end:]
        assert events.rest == held


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_all_three_line_ends_of_the_specification_are_accepted(end: bytes) -> None:
    stream = (
        b"data: one"
        + end
        + b"data: two"
        + end
        + end
        + b": note"
        + end
        + end
        + b"data:three"
        + end
        + end
    )
    assert [data for _, data in split([stream])] == [b"one\ntwo", b"", b"three"]


def test_one_space_after_the_colon_belongs_to_the_format_and_a_second_to_the_data() -> None:
    assert split([b"data:  x\n\n"])[0][1] == b" x"


def test_fields_that_only_begin_like_data_are_not_data() -> None:
    assert split([b"database: x\nid: data: y\n\n"])[0][1] == b""


def test_an_event_is_returned_as_soon_as_its_blank_line_is_complete() -> None:
    splitter = Splitter(max_event_bytes=100)
    assert splitter.feed(b"data: x\r\n\r") == []
    assert [event.data for event in splitter.feed(b"\ndata: y")] == [b"x"]
    assert [event.data for event in splitter.finish()] == [b"y"]


def test_an_event_beyond_the_limit_is_refused_and_many_small_ones_are_not() -> None:
    assert len(split([b"data: x\n\n" * 100], limit=20)) == 100
    with pytest.raises(EventTooLarge):
        split([b"data: " + b"x" * 20], limit=20)


def opening(chunks: list[bytes]) -> bytes:
    detector = FirstDataDetector()
    return next(filter(None, map(detector.feed, chunks)), b"")


@given(streams, st.lists(st.integers(0, 200), max_size=12))
def test_the_first_data_of_a_stream_is_found_in_any_chunking(
    stream: bytes, cuts: list[int]
) -> None:
    # If a chunk ends in the middle of a line, those few bytes are not yet a result.
    whole = stream + b"\n"
    bounds = sorted({0, len(whole), *(cut for cut in cuts if cut < len(whole))})
    lines = whole.replace(b"\r", b"\n").split(b"\n")
    values = [line[5:].removeprefix(b" ") for line in lines if line.startswith(b"data:")]
    expected = next((value[:8] for value in values if value), b"")
    assert opening([whole[a:b] for a, b in pairwise(bounds)]) == expected
    assert opening([whole[i : i + 1] for i in range(len(whole))]) == expected


def test_comments_and_blank_lines_are_no_data_however_long_they_are() -> None:
    detector = FirstDataDetector()
    for chunk in (
        b": still here\n\n" * 1000,
        b"\r\n" * 1000,
        b"event: data: x\n",
        b":" + b"data: x" * 99,
    ):
        assert detector.feed(chunk) == b""
    assert detector.feed(b'data:\n\ndata: {"er') == b""
    assert detector.feed(b'ror": 1') == b'{"error"'


@pytest.mark.parametrize(
    ("events", "has"),
    [
        (b"data: [DONE]\n\n", True),
        (b"data:[DONE]\n\n", True),
        (b"data: {}\n\ndata: [DONE]", True),
        (b"data: {}\r\n\r\ndata:[DONE]\r\n", True),
        (b"data: {}\r\rdata: [DONE]\r\r", True),
        (b'data: "data: [DONE]"\n\n', False),
        (b": x\r\r: data: [DONE]\r\r", False),
        (b"event: x\nid: data: [DONE]\n\n", False),
        (b"data:  [DONE]\n\n", False),
        (b"", False),
    ],
)
def test_a_line_is_recognised_by_the_beginning_of_its_data(events: bytes, has: bool) -> None:
    assert has_line(events, b"[DONE]") is has


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
@pytest.mark.parametrize("step", [1, 7, 1000])
def test_the_end_of_a_stream_is_found_in_any_chunking_and_not_before(end: bytes, step: int) -> None:
    stream = end.join([b'data: {"a":"data: [DONE]\\n\\n"}', b"", b"data: [DONE]", b"", b""])
    detector = DoneDetector()
    found = [detector.feed(stream[at : at + step]) for at in range(0, len(stream), step)]
    assert found == [False] * (len(found) - 1) + [True]


def test_the_end_of_a_stream_is_found_with_more_behind_it() -> None:
    assert DoneDetector().feed(b"data: a\n\ndata: [DONE]\n\n: bye\n\n")


def test_the_end_of_a_stream_is_found_behind_texts_that_mention_it() -> None:
    said = b'data: {"a":"[DONE]"}\n\n' * 1000
    assert DoneDetector().feed(said + b"data: [DONE]\n\n" + b": bye\n\n" * 1000)


def test_a_stream_goes_on_if_json_follows_its_end() -> None:
    detector = DoneDetector()
    assert not detector.feed(b"data: [DONE]\n\ndata: {}\n\n")
    assert detector.feed(b"data: [DONE]\n\n")


@pytest.mark.parametrize(
    "stream",
    [b": data: [DONE]\n\n", b"data: [DONE]\r\n", b"data: [DONE]\r\n\r", b"data: [DONE] \n\n"],
)
def test_only_the_whole_event_ends_a_stream(stream: bytes) -> None:
    detector = DoneDetector()
    assert not any(detector.feed(stream[at : at + 1]) for at in range(len(stream)))
