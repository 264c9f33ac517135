"""Progress of a batch: how far, how fast, how long yet; and no flood of lines where there is no terminal."""

import io

import pytest

from node.cli.console.progress import EVERY, Progress, duration, line


def counts(total, completed, failed=0):
    return {"total": total, "completed": completed, "failed": failed}


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0.4, "0s"), (59.9, "59s"), (60, "1m 0s"), (3_599, "59m 59s"), (7_300, "2h 1m")],
)
def test_a_duration_is_written_for_people(seconds, said):
    assert duration(seconds) == said


def test_a_line_says_how_far_the_batch_is():
    assert line("validating", counts(0, 0), 0, 0) == "validating"
    text = line("in_progress", counts(4_000, 1_000, 10), 30.0, 2_990)
    assert text.startswith("in_progress [#######.")
    assert text.endswith("1,010 of 4,000, 10 refused, 30.0 a second, 1m 39s left")
    assert line("completed", counts(4, 4), 2.0, 0) == f"completed [{'#' * 30}] 4 of 4"


def test_on_a_terminal_one_line_is_redrawn():
    now, out = [0.0], Terminal()
    progress = Progress(lambda: now[0], out)
    for second in range(3):
        now[0] = second
        progress.seen("in_progress", counts(10, second))
    progress.waits("nobody is there")
    progress.end()
    assert out.getvalue().count("\r") == 4
    assert "1.0 a second, 8s left" in out.getvalue()
    assert out.getvalue().endswith("waiting: nobody is there\n")


def test_without_a_terminal_a_line_is_printed_now_and_then():
    now, out = [0.0], io.StringIO()
    progress = Progress(lambda: now[0], out)
    for second in range(int(3 * EVERY)):
        now[0] = second
        progress.seen("in_progress", counts(100, second))
    progress.end()
    assert len(out.getvalue().splitlines()) == 3
