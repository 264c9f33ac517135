"""Laws of translating a text that a worker gives in another protocol."""

import orjson

from router.canonical import TextRequest, read
from router.openai.text_writer import Delta, End, ToolCall
from router.openai.usage import Usage
from router.requests import Kind
from router.translate.text import ChoiceReader, OutputPiece, in_one_piece
from tests.router.world import chat

CALL = ToolCall("call_1", "look", "{}")


def asked(kind: Kind = Kind.COMPLETION, **fields: object) -> TextRequest:
    given = {"model": "m", "prompt": "12345678", "messages": [{"role": "user", "content": "hi"}]}
    return read(chat(kind=kind, body=orjson.dumps({**given, **fields})))


def told(asked: TextRequest, *said: OutputPiece) -> list[object]:
    """Return the events of several parts, one after the other."""
    left = iter(said)
    stream = ChoiceReader(asked, lambda _, __: next(left))
    return [event for _ in said for event in stream.take(b"")] + list(stream.finish())


def test_a_text_comes_piece_by_piece_and_ends_with_its_usage() -> None:
    spent = Usage(3, 2)
    events = told(
        asked(),
        OutputPiece("a"),
        OutputPiece("b", usage=spent),
        OutputPiece(reason="length", over=True),
    )
    assert events == [Delta("a"), Delta("b"), End("length"), spent]


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
    assert stream.take(b"ab") == [Delta("a")]
    assert stream.take(b"cd") == [End("stop", 0, "bc"), Usage(2, 1, estimated=True)]
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
    spent = Usage(1, 1)
    whole = in_one_piece(asked(Kind.CHAT), 0, OutputPiece("so", "stop", spent, calls=(CALL,)))
    assert whole == [Delta("so"), CALL, End("tool_calls"), spent]
    events = told(asked(Kind.CHAT), OutputPiece(calls=(CALL,)), OutputPiece(usage=spent, over=True))
    assert events == [CALL, End("tool_calls"), spent]


def test_a_stream_ends_properly_only_with_a_finish_reason() -> None:
    assert told(asked(), OutputPiece("a")) == [Delta("a")]
    assert told(asked(), OutputPiece("a", "length"))[1] == End("length")
