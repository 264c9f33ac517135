"""Strangers may speak so often, each by itself, and remembering them costs a bounded place."""

from hypothesis import given
from hypothesis import strategies as st

from registry.intake.rate import MAX_BUCKETS, RateLimit


def test_a_burst_passes_and_the_next_is_refused() -> None:
    pace = RateLimit(rate=1.0, burst=3.0)
    assert [pace.allows("a", 0.0) for _ in range(5)] == [True, True, True, False, False]


def test_time_gives_back_what_was_taken_but_never_more_than_the_burst() -> None:
    pace = RateLimit(rate=2.0, burst=3.0)
    assert [pace.allows("a", 0.0) for _ in range(4)].count(True) == 3
    assert [pace.allows("a", 0.5) for _ in range(2)] == [True, False]
    assert [pace.allows("a", 1e9) for _ in range(5)].count(True) == 3


def test_one_stranger_does_not_pay_for_another() -> None:
    pace = RateLimit(rate=1.0, burst=1.0)
    assert pace.allows("a", 0.0)
    assert not pace.allows("a", 0.0)
    assert pace.allows("b", 0.0)


@given(st.lists(st.floats(0, 2), max_size=60), st.floats(0.1, 5), st.floats(1, 10))
def test_no_more_than_burst_and_rate_pass_in_any_time(
    pauses: list[float], rate: float, burst: float
) -> None:
    pace, now, passed = RateLimit(rate=rate, burst=burst), 0.0, 0
    for pause in pauses:
        now += pause
        passed += pace.allows("a", now)
        assert passed <= burst + rate * now + 1e-6


def test_being_refused_does_not_cost_what_comes_back_with_time() -> None:
    pace = RateLimit(rate=1.0, burst=1.0)
    assert pace.allows("a", 0.0)
    assert [pace.allows("a", 0.1 * n) for n in range(1, 10)] == [False] * 9
    assert pace.allows("a", 1.01)


def test_the_one_that_spoke_longest_ago_makes_room() -> None:
    pace = RateLimit(rate=0.0, burst=1.0)
    for n in range(MAX_BUCKETS):
        assert pace.allows(str(n), 0.0)
    assert not pace.allows("0", 0.0)
    assert pace.allows("newcomer", 0.0)
    assert not pace.allows("0", 0.0)
    assert pace.allows("1", 0.0)
