"""Rate limit of strangers: each has a token bucket of its own, and the number of buckets is bounded."""

from hypothesis import given
from hypothesis import strategies as st

from registry.intake.rate import MAX_BUCKETS, RateLimit


def test_a_burst_passes_and_the_next_is_refused() -> None:
    pace = RateLimit(rate=1.0, burst=3.0)
    assert [pace.allows("a", 0.0) for _ in range(5)] == [True, True, True, False, False]


def test_time_refills_what_was_taken_but_never_beyond_the_burst() -> None:
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


def test_refused_attempts_do_not_delay_the_refill() -> None:
    pace = RateLimit(rate=1.0, burst=1.0)
    assert pace.allows("a", 0.0)
    assert [pace.allows("a", 0.1 * n) for n in range(1, 10)] == [False] * 9
    assert pace.allows("a", 1.01)


def test_the_stranger_that_spoke_longest_ago_is_evicted() -> None:
    pace = RateLimit(rate=0.0, burst=1.0)
    for n in range(MAX_BUCKETS):
        assert pace.allows(str(n), 0.0)
    assert not pace.allows("0", 0.0)
    assert pace.allows("newcomer", 0.0)
    assert not pace.allows("0", 0.0)
    assert pace.allows("1", 0.0)
