import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.cli.console.text import plain, prose, say_table, seconds


@given(st.text())
def test_plain_text_has_one_line_and_no_controls(text: str) -> None:
    shown = plain(text)
    assert len(shown) == len(text)
    assert len(shown.splitlines()) <= 1
    assert not any(ord(c) < 32 or 127 <= ord(c) < 160 for c in shown)


@given(st.text())
def test_prose_keeps_its_lines_and_loses_its_controls(text: str) -> None:
    shown = prose(text)
    assert shown.count("\n") == text.count("\n")
    assert not any((ord(c) < 32 and c not in "\n\t") or 127 <= ord(c) < 160 for c in shown)


def test_invisible_joiners_of_scripts_stay_in_prose() -> None:
    assert prose("می\u200cشود") == "می\u200cشود"


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0.00031, "0.31 ms"),
        (0.42, "420 ms"),
        (3.14, "3.1 s"),
        (119.9, "119.9 s"),
        (150, "2 min"),
        (7500, "2 h 05 min"),
    ],
)
def test_durations_read_as_people_say_them(value: float, shown: str) -> None:
    assert seconds(value) == shown


def test_a_table_without_rows_is_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    say_table(("A", "B"), [], none="nothing yet")
    assert capsys.readouterr().out == "nothing yet\n"
