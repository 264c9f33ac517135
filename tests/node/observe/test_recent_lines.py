"""The last lines of a log: bounded, numbered, and as they were written, from any logger."""

import io
import logging
from collections.abc import Iterator

import pytest

from node.observe import logs
from node.observe.recent_lines import MAX_CHARACTERS, MAX_LINES, RecentLines


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def test_the_oldest_line_is_dropped_and_a_long_one_is_cut() -> None:
    lines = RecentLines()
    for number in range(MAX_LINES + 5):
        lines.add(float(number), "INFO", "x", "a" * (MAX_CHARACTERS + 1))
    kept = lines.since(0.0)
    assert (len(kept), kept[0].number, kept[-1].number) == (MAX_LINES, 6, MAX_LINES + 5)
    assert len(kept[0].message) == MAX_CHARACTERS
    assert [line.number for line in lines.since(MAX_LINES + 3.0)] == [MAX_LINES + 4, MAX_LINES + 5]


def test_only_lines_that_are_written_are_kept_and_with_their_fields() -> None:
    logs.configure(form="console", level="info", stream=io.StringIO())
    log = logging.getLogger("modelvine.test")
    log.debug("hidden")
    log.warning("model %s", "tiny", extra={"why": "two words"})
    logs.RequestLog("modelvine.requests").info("request=1")
    log.error("broken", exc_info=OSError("gone"))
    assert [(line.level, line.logger, line.message) for line in logs.recent().since(0.0)] == [
        ("WARNING", "modelvine.test", 'model tiny  why="two words"'),
        ("INFO", "modelvine.requests", "request=1"),
        ("ERROR", "modelvine.test", "broken  [OSError: gone]"),
    ]


def test_a_process_that_logs_nowhere_keeps_nothing() -> None:
    logging.getLogger().handlers[:] = []
    assert logs.recent().since(0.0) == ()
