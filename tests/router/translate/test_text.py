"""Laws of translating a text that a worker gives in another protocol, and of cutting it before stop strings."""

import orjson
from hypothesis import given
from hypothesis import strategies as st

from router.canonical.text import TextRequest, read
from router.openai.text_writer import Delta, End, ToolCall
from router.openai.usage import Usage
from router.requests import Kind
from router.translate.text import ChoiceReader, OutputPiece, StopFilter, in_one_piece
from tests.router.world import chat

CALL = ToolCall("call_1", "look", "{}")


def asked(kind: Kind = Kind.COMPLETION, **fields: object) -> TextRequest:
    defaults = {"model": "m", "prompt": "12345678", "messages": [{"role": "user", "content": "hi"}]}
    return read(chat(kind=kind, body=orjson.dumps({**defaults, **fields})))


def told(request: TextRequest, *output_pieces: OutputPiece) -> list[object]:
    """Return the events of several parts, one after the other."""
    left = iter(output_pieces)
    stream = ChoiceReader(request, lambda _, __: next(left))
    return [event for _ in output_pieces for event in stream.feed(b"")] + list(stream.finish())


def test_a_text_comes_piece_by_piece_and_ends_with_its_usage() -> None:
    usage = Usage(3, 2)
    events = told(
        asked(),
        OutputPiece("a"),
        OutputPiece("b", usage=usage),
        OutputPiece(reason="length", over=True),
    )
    assert events == [Delta("a"), Delta("b"), End("length"), usage]


def test_usage_that_the_worker_does_not_report_is_estimated() -> None:
    assert told(asked(), OutputPiece("a"), OutputPiece("b", over=True))[-1] == Usage(
        2, 1, estimated=True
    )
    whole = in_one_piece(asked(), 0, OutputPiece("123456789"))
    assert whole == [Delta("123456789"), End("stop"), Usage(2, 3, estimated=True)]


def test_a_text_ends_before_a_stop_string_and_nothing_follows() -> None:
    stream = ChoiceReader(
        asked(stop="bc"), lambda _, data: OutputPiece(data.decode(), over=data == b"x")
    )
    assert stream.feed(b"ab") == [Delta("a")]
    assert stream.feed(b"cd") == [End("stop", 0, "bc"), Usage(2, 1, estimated=True)]
    assert stream.ended
    assert in_one_piece(asked(stop="b"), 0, OutputPiece("abc", "length", Usage(1, 1))) == [
        Delta("a"), End("stop", 0, "b"), Usage(1, 1),
    ]  # fmt: skip


def test_an_incomplete_stop_string_is_returned_at_the_end() -> None:
    assert told(asked(stop="bc"), OutputPiece("ab"), OutputPiece(over=True))[:3] == [
        Delta("a"), Delta("b"), End("stop"),
    ]  # fmt: skip


def test_an_echoed_prompt_comes_first() -> None:
    assert told(asked(echo=True), OutputPiece("a", over=True))[0] == Delta("12345678a")
    twice = asked(echo=True, prompt=["x", "y"])
    assert [in_one_piece(twice, n, OutputPiece("a"))[0] for n in (0, 1)] == [
        Delta("xa"),
        Delta("ya", 1),
    ]


def test_a_tool_call_sets_the_finish_reason() -> None:
    usage = Usage(1, 1)
    whole = in_one_piece(asked(Kind.CHAT), 0, OutputPiece("so", "stop", usage, calls=(CALL,)))
    assert whole == [Delta("so"), CALL, End("tool_calls"), usage]
    events = told(asked(Kind.CHAT), OutputPiece(calls=(CALL,)), OutputPiece(usage=usage, over=True))
    assert events == [CALL, End("tool_calls"), usage]


def test_a_stream_ends_properly_only_with_a_finish_reason() -> None:
    assert told(asked(), OutputPiece("a")) == [Delta("a")]
    assert told(asked(), OutputPiece("a", "length"))[1] == End("length")


LETTERS = st.text(alphabet="ab", max_size=12)


def pieces(stops: StopFilter, text: list[str]) -> str:
    return "".join(map(stops.feed, text)) + stops.flush()


@given(st.lists(LETTERS, max_size=6), st.lists(LETTERS.filter(bool), max_size=3))
def test_a_text_ends_before_the_first_stop_string_however_it_is_split(
    text: list[str], stops: list[str]
) -> None:
    whole = "".join(text)
    found = [index for stop in stops if (index := whole.find(stop)) >= 0]
    cut = StopFilter(stops)
    written = pieces(cut, text)
    assert bool(cut.hit) == bool(found)
    if not found:
        assert written == whole
        return
    # Of two overlapping stop strings, the one that is complete first counts.
    assert whole.startswith(written)
    assert not any(stop in written for stop in stops)
    assert whole.startswith(cut.hit, len(written))
    assert cut.hit in stops


def test_only_characters_that_may_begin_a_stop_string_are_held_back() -> None:
    stops = StopFilter(["STOP"])
    assert stops.feed("go on ST") == "go on "
    assert stops.feed("ILL") == "STILL"
    assert stops.feed(" S") == " "
    assert stops.feed("TOP and more") == ""
    assert (stops.feed("never seen"), stops.flush(), stops.hit) == ("", "", "STOP")


def test_held_back_characters_are_returned_when_the_text_ends() -> None:
    stops = StopFilter(["STOP"])
    assert stops.feed("the STO") == "the "
    assert (stops.flush(), stops.flush()) == ("STO", "")
