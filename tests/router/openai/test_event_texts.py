"""Texts of similar events: both forms find the same, and from that the events can be written again."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.router.openai.conftest import Contains, EventTexts, in_python

BEGIN, END = b'data: {"content":"', b'"}\n\n'
SIGNS = (b'"error"', b'"usage"')

# Few letters, so that texts often look like beginnings, ends and signs.
PIECE = st.lists(st.sampled_from([b"a", b'"', b'"error"', b"err", b'or"', b"\n", b"\0", b"\xff", b"}"]), max_size=6).map(
    b"".join
)  # fmt: skip
BEGINS = st.one_of(st.just(BEGIN), PIECE)
ENDS = st.one_of(st.just(END), PIECE, PIECE.map(lambda end: end + b"\n\n"))


@settings(max_examples=1_000)
@given(BEGINS, ENDS, st.lists(PIECE, max_size=6), PIECE, st.lists(PIECE.filter(bool), max_size=2))
@example(BEGIN, END, [b'"error'], b"", [b'"error"'])
@example(BEGIN, END, [b'error"'], b"", [b'"error"'])
@example(b"", b"\n", [b"", b"a"], b"", [])
@example(b'"err', b'or"\n', [b""], b"", [b'"error"'])
def test_both_forms_find_the_same(
    event_texts: EventTexts,
    begin: bytes,
    end: bytes,
    texts: list[bytes],
    odd: bytes,
    signs: list[bytes],
) -> None:
    inner_signs = tuple(sign for sign in signs if sign not in begin and sign not in end)
    events = b"".join(begin + text + end for text in texts) + odd
    found = event_texts(events, begin, end, inner_signs)
    assert found == in_python("event_texts").event_texts(events, begin, end, inner_signs)
    lines, count, size = found
    assert lines.count(b"\n") == count
    assert b"".join(begin + text + end for text in lines.split(b"\n")[:-1]) == events[:size]
    assert not any(sign in events[:size] and b"\n" not in sign for sign in inner_signs) or count > 1


@pytest.mark.parametrize(
    ("text", "count"),
    [(b"a", 3), (b"", 3), (b"error", 1), (b"usage", 1), (b"a\nb", 1), (b"a\0b", 1), (b'\\"error\\"', 3), (b'","error":"', 1)],
)  # fmt: skip
def test_texts_are_lines_up_to_the_first_unusual_event(
    event_texts: EventTexts, text: bytes, count: int
) -> None:
    events = b"".join(BEGIN + word + END for word in (b"first", text, b"last"))
    lines = b"".join(word + b"\n" for word in (b"first", text, b"last")[:count])
    size = sum(len(BEGIN + word + END) for word in (b"first", text, b"last")[:count])
    assert event_texts(events, BEGIN, END, SIGNS) == (lines, count, size)


@pytest.mark.parametrize(
    "rest", [b"", b"\n", BEGIN, BEGIN + b"a", BEGIN + b"a" + END[:-1], END, b": ping\n\n"]
)
def test_half_an_event_is_left(event_texts: EventTexts, rest: bytes) -> None:
    event = BEGIN + b"a" + END
    assert event_texts(event + rest, BEGIN, END, SIGNS) == (b"a\n", 1, len(event))


@pytest.mark.parametrize(
    "given",
    [
        (),
        (b"", b"", b""),
        ("", b"", b"", ()),
        (b"", bytearray(), b"", ()),
        (b"", b"", None, ()),
        (b"", b"", b"", [b"a"]),
        (b"", b"", b"", (b"",)),
        (b"", b"", b"", ("a",)),
    ],
)
def test_other_arguments_are_refused(event_texts: EventTexts, given: tuple[object, ...]) -> None:
    with pytest.raises(TypeError):
        event_texts(*given)  # type: ignore[arg-type]


@given(st.lists(PIECE, max_size=6).map(b"".join), PIECE.filter(bool))
@example(b"", b"a")
@example(b"aab", b"ab")
@example(b"ab", b"abc")
def test_bytes_are_found_as_python_finds_them(
    contains: Contains, events: bytes, searched: bytes
) -> None:
    assert contains(events, searched) is (searched in events)
    assert in_python("event_texts").contains(events, searched) is (searched in events)


@pytest.mark.parametrize("given", [(), (b"a",), (b"a", b""), (b"a", 97), (bytearray(b"a"), b"a")])
def test_only_bytes_are_searched(contains: Contains, given: tuple[object, ...]) -> None:
    with pytest.raises(TypeError):
        contains(*given)  # type: ignore[arg-type]
