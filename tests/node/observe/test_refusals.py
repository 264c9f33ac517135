"""Refusals too frequent for a line each: one line a minute for each event, and none is left out of the count."""

import pytest

from node.observe import refusals
from node.observe.refusals import LINES, QUIET, Refusals


def test_nothing_is_said_while_nothing_is_refused():
    assert not [*Refusals().due({"frames_in": 9, "frames_bad": 0}, 0.0)]


@pytest.mark.parametrize("event", LINES)
def test_the_first_refusal_is_logged_at_once_and_the_rest_together_a_minute_later(event):
    told = Refusals()
    assert [*told.due({event: 1}, 10.0)] == [(LINES[event], 1)]
    assert not [*told.due({event: 500}, 11.0)]
    assert not [*told.due({event: 900}, 9.9 + QUIET)]
    assert [*told.due({event: 1_000}, 10.0 + QUIET)] == [(LINES[event], 999)]
    assert not [*told.due({event: 1_000}, 10.0 + 9 * QUIET)]


def test_each_event_has_a_line_of_its_own():
    told = Refusals()
    assert len([*told.due(dict.fromkeys(LINES, 3), 0.0)]) == len(LINES)


@pytest.mark.parametrize("line", LINES.values())
def test_a_line_takes_one_number(line):
    assert line % 7


class Ended(Exception):
    """The clock has no more values."""


async def test_a_due_line_is_written_as_a_warning(caplog, monkeypatch):
    monkeypatch.setattr(refusals, "PERIOD", 0)
    moments = iter((0.0, 1.0, QUIET))
    counts = iter({"frames_bad": n} for n in (3, 8, 10, 10))

    def clock():
        for moment in moments:
            return moment
        raise Ended

    with pytest.raises(Ended):
        await Refusals().watch(lambda: next(counts), clock)
    lines = [record.getMessage() for record in caplog.records]
    assert lines == [LINES["frames_bad"] % 3, LINES["frames_bad"] % 7]
    assert {record.levelname for record in caplog.records} == {"WARNING"}
