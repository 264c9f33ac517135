"""Writer of log lines in a thread of its own, and the last lines, which are kept in memory."""

import errno
import io
import json
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from node.observe import logs
from node.observe.log_writer import (
    MAX_CHARACTERS,
    MAX_LINES,
    MAX_WAITING,
    LogWriter,
    RecentLines,
    batches,
    writing_to,
)


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


ROOT = Path(__file__).parents[3]


class Taker:
    """Stream that takes lines, waits or fails, and source of the lines that are due."""

    def __init__(self) -> None:
        self.taken: list[str] = []
        self.source: list[str] = []
        self.calls = 0
        self.fails: OSError | None = None
        self.open = threading.Event()
        self.open.set()

    def write(self, text: str) -> None:
        self.calls += 1
        self.open.wait(10)
        if self.fails is not None:
            raise self.fails
        self.taken += text.splitlines()

    def due(self) -> list[str]:
        due, self.source = self.source, []
        return due

    def lost(self, count: int) -> str:
        return f"{count} lost"


def lines(taker: Taker, due: list[str] | None = None) -> LogWriter:
    taker.source += due or []
    return LogWriter(taker.write, taker)


def test_every_line_is_written_in_order_and_many_at_once() -> None:
    taker = Taker()
    out = lines(taker)
    expected = [f"line {n}" for n in range(10_000)]
    for line in expected:
        out.add(line)
    out.flush()
    assert taker.taken == expected
    assert taker.calls < 1_000


def test_a_single_line_is_written_soon_and_so_are_lines_that_are_due() -> None:
    taker = Taker()
    out = lines(taker, due=["due"])
    out.add("alone", hurry=True)
    ended = time.monotonic() + 5
    while taker.taken != ["alone", "due"] and time.monotonic() < ended:
        time.sleep(0.01)
    assert sorted(taker.taken) == ["alone", "due"]


def test_a_stream_that_takes_nothing_delays_no_caller_and_waiting_lines_are_bounded() -> None:
    taker = Taker()
    taker.open.clear()
    out = lines(taker)
    began = time.monotonic()
    out.add("first", hurry=True)
    line, many = "x" * 1_000, 2 * MAX_WAITING // 1_000
    for _ in range(many):
        out.add(line)
    assert time.monotonic() - began < 2
    taker.open.set()
    out.flush()
    out.flush()
    kept = taker.taken.count(line)
    assert kept <= MAX_WAITING // 1_000
    # Lines that are lost while the first count waits to be written are in the next count.
    lost = [int(text.removesuffix(" lost")) for text in taker.taken if text.endswith(" lost")]
    assert sum(lost) == many - kept > 0


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EPIPE, errno.EIO])
def test_a_full_disk_loses_lines_and_says_how_many_once_there_is_room(number: int) -> None:
    taker = Taker()
    taker.fails = OSError(number, os.strerror(number))
    out = lines(taker)
    for n in range(100):
        out.add(f"line {n}")
        if n % 30 == 0:
            out.flush()
    out.flush()
    assert taker.taken == []
    taker.fails = None
    out.add("room")
    out.flush()
    assert taker.taken == ["100 lost", "room"]


def test_lines_written_at_once_fit_the_size_that_a_pipe_keeps_together() -> None:
    messages = ["x" * 1_000] * 10 + ["y" * 9_000] + ["é" * 2_000] * 3
    groups = batches(messages)
    assert [line for group in groups for line in group] == messages
    for group in groups:
        assert len(group) == 1 or sum(len(line.encode()) + 1 for line in group) <= 4096


def test_a_file_takes_a_line_whole_whatever_characters_it_has(tmp_path: Path) -> None:
    with (tmp_path / "log").open("w") as file:
        writing_to(file)("a\udcffb é\n" * 10_000)
    assert (tmp_path / "log").read_text() == "a?b é\n" * 10_000


ENDS = {
    "at its end": "",
    "by exit": "sys.exit(3)",
    "by an error": "raise RuntimeError",
}

PROGRAM = """
import logging, sys
from node.observe import logs
logs.configure(form="json", level="info")
for n in range(2000):
    logging.getLogger("modelvine.x").info("line %d", n)
{end}
"""


@pytest.mark.parametrize("end", ENDS)
def test_no_line_is_lost_when_the_process_ends(end: str) -> None:
    program = PROGRAM.format(end=ENDS[end])
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, check=False
    )
    json_lines = [line for line in ended.stderr.splitlines() if line.startswith("{")]
    assert [json.loads(line)["message"] for line in json_lines] == [
        f"line {n}" for n in range(2000)
    ]


def test_a_full_disk_changes_nothing_but_the_log() -> None:
    program = PROGRAM.format(end="")
    with Path("/dev/full").open("w") as full:
        ended = subprocess.run(
            [sys.executable, "-c", program], stderr=full, cwd=ROOT, timeout=30, check=False
        )
    assert ended.returncode == 0
