import json
import unicodedata
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.cli.console.text import cut, json_text, narrowed, plain, prose, say_table

# Unicode's explicit formatting characters of the bidirectional algorithm.
TURNING = {"LRE", "RLE", "PDF", "LRO", "RLO", "LRI", "RLI", "FSI", "PDI"}


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


@pytest.mark.parametrize("show", [plain, prose])
def test_bidirectional_controls_are_not_shown(show: Callable[[str], str]) -> None:
    turning = [chr(c) for c in range(0x110000) if unicodedata.bidirectional(chr(c)) in TURNING]
    assert len(turning) == 9
    for c in [*turning, *"\u061c\u200e\u200f"]:
        assert show(f"a{c}b") == "a\ufffdb"


@given(st.recursive(st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)))
def test_json_text_keeps_its_value_and_has_no_unprintable_characters(value: object) -> None:
    text = json_text(value)
    assert json.loads(text) == value
    assert plain(text.replace("\n", "")) == text.replace("\n", "")


def test_invisible_joiners_of_scripts_stay_in_prose() -> None:
    assert prose("می\u200cشود") == "می\u200cشود"


@given(
    st.lists(
        st.tuples(st.integers(1, 300), st.sampled_from(["ID", "NODE", "CONNECTION"])), min_size=1
    ),
    st.integers(1, 200),
)
def test_columns_are_narrowed_as_little_as_needed_and_the_last_are_left_out(
    columns: list[tuple[int, str]], room: int
) -> None:
    heads = [head for _, head in columns]
    widths = [max(width, len(head)) for width, head in columns]
    found = narrowed(widths, heads, room)
    total = sum(found) + 2 * (len(found) - 1)
    kept = list(zip(found, widths, heads, strict=False))
    assert all(new <= old for new, old, _ in kept)
    if sum(widths) + 2 * (len(widths) - 1) <= room:
        assert found == widths
    elif len(found) == len(widths):
        assert total == room or len(found) == 1
    elif len(found) > 1:
        assert total <= room - 3
    if len(found) > 1:
        assert all(new >= len(head) and (head != "ID" or new == old) for new, old, head in kept)


@given(st.text(), st.integers(1, 50))
def test_a_text_that_is_cut_ends_with_an_ellipsis(text: str, width: int) -> None:
    shown = cut(text, width)
    assert shown == text or (shown.endswith("…") and text.startswith(shown[:-1]))


def test_a_table_without_rows_is_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    say_table(("A", "B"), [], none="nothing yet")
    assert capsys.readouterr().out == "nothing yet\n"
