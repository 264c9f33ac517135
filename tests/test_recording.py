"""The recording of `make demo` in the README: what a terminal shows becomes one animated picture."""

from xml.etree import ElementTree as ET

from scripts import recording
from tests.copied import ROOT

SVG = "{http://www.w3.org/2000/svg}"


def shown(*output: tuple[float, str]) -> recording.Screen:
    screen = recording.Screen()
    for moment, text in output:
        screen.write(text, moment)
    return screen


def test_a_line_that_is_cleared_disappears_when_its_successor_appears():
    screen = shown((1.0, "  … node 1 starts"), (2.0, "\r\x1b[K  ✓ node 1 starts\r\n"))
    assert [(run.text.strip(), run.row, run.since, run.until) for run in screen.runs] == [
        ("… node 1 starts", 0, 1.0, 2.0),
        ("✓ node 1 starts", 0, 2.0, None),
    ]


def test_a_line_longer_than_the_terminal_goes_on_in_the_next_row():
    screen = shown((0.0, "x" * (recording.COLUMNS + 3)))
    assert [(run.row, run.column, len(run.text)) for run in screen.runs] == [
        (0, 0, recording.COLUMNS),
        (1, 0, 3),
    ]


def test_colours_are_kept_and_end_where_the_terminal_ends_them():
    screen = shown((0.0, "\x1b[32m✓\x1b[0m done"))
    assert [(run.text, run.style) for run in screen.runs] == [("✓", "g"), (" done", "")]


def test_long_waits_are_shortened_and_short_ones_are_as_long_as_they_were():
    paced = recording.paced(iter([(0.5, "a"), (60.5, "b"), (61.0, "c")]))
    assert [round(moment, 2) for moment, _ in paced] == [0.5, 2.0, 2.5]


def test_the_last_frame_is_shown_where_reduced_motion_is_preferred():
    picture = recording.svg(shown((1.0, "gone"), (2.0, "\r\x1b[Kstays <&>")), 2.0)
    texts = {text.text: text.get("class") for text in ET.fromstring(picture).iter(f"{SVG}text")}
    assert "gone" in texts["gone"].split()
    assert "gone" not in texts["stays <&>"].split()
    assert picture.index("@media (prefers-reduced-motion:no-preference)") < picture.index(
        "@keyframes"
    )


def test_the_picture_in_the_readme_is_small_and_loads_nothing():
    picture = (ROOT / "docs/images/demo.svg").read_text()
    assert "(docs/images/demo.svg)" in (ROOT / "README.md").read_text()
    assert len(picture.encode()) < 100_000
    names = {element.tag.removeprefix(SVG) for element in ET.fromstring(picture).iter()}
    assert names == {"svg", "style", "rect", "text"}
    assert not [word for word in ("url(", "@import", "href") if word in picture]
