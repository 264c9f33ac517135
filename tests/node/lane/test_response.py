"""Header lines that the lane keeps from answer to answer: those of another answer are made anew."""

import pytest

from node.lane.response import EndOfHead, SteadyLines, lines_of
from router.http.heads import header_lines

FIRST = ("application/json", "12D3a", "local", 1)


@pytest.mark.parametrize(
    "other",
    [
        ("text/plain", "12D3a", "local", 1),
        ("application/json", "12D3b", "local", 1),
        ("application/json", "12D3a", "peer", 1),
        ("application/json", "12D3a", "local", 2),
    ],
)
def test_lines_are_those_of_the_answer_whatever_the_one_before_was(
    other: tuple[str, str, str, int],
) -> None:
    lines = SteadyLines()
    for content_type, node, route, attempts in (FIRST, FIRST, other, FIRST):
        lines.look_up(content_type, node, route, attempts)
        assert lines.before == f"content-type: {content_type}\r\nx-request-id: "
        assert lines.behind == (
            f"\r\nx-modelvine-node: {node}\r\nx-modelvine-route: {route}\r\nx-modelvine-attempts: {attempts}\r\n"
        )


def test_a_line_break_in_a_value_is_refused_and_the_lines_before_stay() -> None:
    lines = SteadyLines()
    lines.look_up(*FIRST)
    before = lines.before, lines.behind
    for wrong in (("text/plain\r\nx: y", *FIRST[1:]), (FIRST[0], "a\nb", *FIRST[2:])):
        with pytest.raises(ValueError, match="line break"):
            lines.look_up(*wrong)
        lines.look_up(*FIRST)
        assert (lines.before, lines.behind) == before


def test_the_end_of_a_head_has_the_date_and_the_headers_of_its_listener() -> None:
    end = EndOfHead()
    date = "Thu, 01 Jan 1970 00:00:0%d GMT"
    for second, fixed in (
        (0, "a: b\r\n"),
        (0, "a: b\r\n"),
        (1, "a: b\r\n"),
        (1, "c: d\r\n"),
        (0, ""),
    ):
        assert end.at(second, fixed) == f"\r\nDate: {date % second}\r\n{fixed}\r\n"


def test_the_lines_of_any_headers_are_the_same_as_those_made_anew() -> None:
    usual = {
        "content-type": "text/event-stream",
        "x-request-id": "r1",
        "x-modelvine-node": "12D3a",
        "x-modelvine-route": "local",
        "x-modelvine-attempts": "1",
    }
    other = {name: value for name, value in usual.items() if name != "x-modelvine-node"}
    for headers in (
        usual,
        {**usual, "x-request-id": "r2"},
        {**usual, "x-modelvine-attempts": "2"},
        {**usual, "x-modelvine-dropped": "n"},
        {**other, "retry-after": "1"},
        {"content-type": "a/b", "x-request-id": "r3"},
        usual,
    ):
        assert lines_of(headers) == header_lines(headers)
