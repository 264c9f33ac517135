"""Charts show the given figures, and equal figures give equal bytes."""

import re
from pathlib import Path

import pytest

from bench import charts

pytest.importorskip(
    "matplotlib", reason="the extra `bench` is not installed: make .venv/made/bench"
)


def lines(file: Path) -> str:
    rows = {"often": [1, 2, 30], "once": [float("inf"), 3, 0]}
    charts.draw_lines(file, "How far", [10, 100, 1000], rows, across="nodes", up="seconds")
    return file.read_text()


def test_lines_omit_infinite_values_and_axes_are_labelled(tmp_path):
    picture = lines(tmp_path / "lines.svg")
    assert picture.count("<use") >= 4
    assert not re.search(r"\b(inf|nan)\b", picture)
    for text in ("How far", "often", "once", "nodes", "seconds", "1,000"):
        assert re.search(rf"<text[^>]*>{text}</text>", picture), text


def test_bars_are_sorted_and_labelled_with_their_values(tmp_path):
    file = tmp_path / "bars.svg"
    values = {"slow": 15_313.0, "quick & small": 15.4, "never": float("inf")}
    charts.draw_bars(file, "CPU", values, ours={"slow"}, unit="microseconds")
    picture = file.read_text()
    assert charts.OURS in picture
    assert charts.OTHERS in picture
    texts = re.findall(r"<text[^>]*>([^<]*)</text>", picture)
    assert texts.index("quick &amp; small") < texts.index("slow")
    assert {"15.4", "15,300"} <= set(texts)
    assert "never" not in texts


def test_equal_figures_give_equal_bytes(tmp_path):
    assert lines(tmp_path / "one.svg") == lines(tmp_path / "two.svg")
