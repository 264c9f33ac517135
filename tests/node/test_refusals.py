"""What is refused too often for a line each: one line a minute, and nothing is left out of the count."""

import pytest

from node.refusals import LINES, QUIET, Refusals


def test_nothing_is_said_while_nothing_is_refused():
    assert not [*Refusals().due({"frames_in": 9, "frames_bad": 0}, 0.0)]


@pytest.mark.parametrize("event", LINES)
def test_the_first_refusal_is_told_and_the_rest_a_minute_later_together(event):
    refusals = Refusals()
    assert [*refusals.due({event: 1}, 10.0)] == [(LINES[event], 1)]
    assert not [*refusals.due({event: 500}, 11.0)]
    assert not [*refusals.due({event: 900}, 9.9 + QUIET)]
    assert [*refusals.due({event: 1_000}, 10.0 + QUIET)] == [(LINES[event], 999)]
    assert not [*refusals.due({event: 1_000}, 10.0 + 9 * QUIET)]


def test_each_event_has_a_line_of_its_own():
    refusals = Refusals()
    assert len([*refusals.due(dict.fromkeys(LINES, 3), 0.0)]) == len(LINES)


@pytest.mark.parametrize("line", LINES.values())
def test_a_line_takes_one_number(line):
    assert line % 7
