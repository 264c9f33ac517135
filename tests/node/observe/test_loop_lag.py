"""Lateness of the event loop: the worst value counts, for a minute."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.observe.loop_lag import PERIOD, WINDOW, LoopLag, WindowMaximum


def test_nothing_was_late_before_anything_was_measured():
    assert WindowMaximum().worst(0.0) == 0.0


def test_a_wake_ahead_of_time_is_not_late():
    maximum = WindowMaximum()
    maximum.note(-0.001, 1.0)
    assert maximum.worst(1.0) == 0.0


@given(st.lists(st.tuples(st.integers(0, 30), st.floats(0, 10)), min_size=1))
def test_the_worst_of_the_last_minute_is_told(steps):
    maximum, now, all_of_it = WindowMaximum(), 0, []
    for wait, late in steps:
        now += wait
        maximum.note(late, now)
        all_of_it.append((now, late))
        assert maximum.worst(now) == max(late for at, late in all_of_it if at > now - WINDOW)
    assert maximum.worst(now + WINDOW) == 0.0


def test_the_number_of_remembered_values_is_bounded():
    maximum = WindowMaximum()
    for n in range(10_000):
        maximum.note(1.0 / (n + 1), n * PERIOD)
    assert len(maximum._worst) <= WINDOW / PERIOD + 1


class Ended(Exception):
    """The clock has no more values."""


async def test_a_loop_that_was_blocked_is_noticed():
    said = iter((0.0, 5.0))

    def clock() -> float:
        for moment in said:
            return moment
        raise Ended

    loop_lag = LoopLag()
    with pytest.raises(Ended):
        await loop_lag.watch(clock, iter((1.0, 1.5, 1.5)).__next__)
    assert loop_lag.lag.worst(5.0) == pytest.approx(5.0 - PERIOD)
    assert loop_lag.busy.worst(5.0) == pytest.approx(0.5)
