"""Rates and budgets of one key, with time as a number."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.auth.rate_limit import (
    DAY,
    DayBudget,
    Gcra,
    requests_a_minute,
    tokens_a_minute,
)

SIXTY = requests_a_minute(60)


def passed(gcra, rate, times, cost=1):
    """Return the times at which a request conforms."""
    done = []
    for now in times:
        if not gcra.wait(now, rate, cost):
            gcra.spend(now, rate, cost)
            done.append(now)
    return done


def most_in_a_minute(times):
    return max(sum(1 for t in times if start <= t < start + 60) for start in times)


def test_a_few_may_come_at_once_and_the_others_evenly_spread():
    gcra = Gcra()
    assert passed(gcra, SIXTY, [0.0] * 10) == [0.0, 0.0]
    assert gcra.wait(0.0, SIXTY, 1) == pytest.approx(1.0)
    assert passed(gcra, SIXTY, [0.9, 1.0, 1.1, 2.0]) == [1.0, 2.0]


def test_a_caller_that_waits_as_told_is_admitted_then():
    gcra, now = Gcra(), 0.0
    for _ in range(200):
        now += gcra.wait(now, SIXTY, 1)
        assert gcra.wait(now, SIXTY, 1) == 0
        gcra.spend(now, SIXTY, 1)
    assert now == pytest.approx(198)


@given(st.integers(1, 5_000), st.lists(st.floats(0, 600), min_size=1, max_size=400), st.integers())
def test_no_minute_has_more_requests_than_the_limit_and_the_burst(limit, times, seed):
    rate = requests_a_minute(limit)
    random.Random(seed).shuffle(times)
    done = passed(Gcra(), rate, sorted(times))
    assert most_in_a_minute(done) <= limit + rate.burst


def test_a_burst_is_at_least_one_request():
    limit = requests_a_minute(1)
    assert passed(Gcra(), limit, [0.0, 30.0, 59.9, 60.0]) == [0.0, 60.0]


def test_one_request_may_take_all_tokens_of_a_minute_and_more_when_nothing_was_taken():
    rate, gcra = tokens_a_minute(1_000), Gcra()
    assert gcra.wait(0.0, rate, 5_000) == 0
    gcra.spend(0.0, rate, 5_000)
    assert gcra.left(0.0, rate) == 0
    assert gcra.wait(0.0, rate, 1) == pytest.approx(240.06)


def test_reserved_tokens_that_are_not_used_come_back():
    rate, gcra = tokens_a_minute(600), Gcra()
    gcra.spend(0.0, rate, 600)
    assert gcra.wait(0.0, rate, 100) == pytest.approx(10)
    gcra.spend(0.0, rate, -500)
    assert gcra.left(0.0, rate) == 500
    assert gcra.wait(0.0, rate, 100) == 0


def test_the_tokens_left_never_exceed_the_burst():
    rate, gcra = tokens_a_minute(600), Gcra()
    gcra.spend(0.0, rate, -1_000)
    assert gcra.left(100.0, rate) == 600


def test_two_nodes_in_sync_pass_no_more_than_one_node_and_one_request_each():
    """Every 0.1 s both nodes tell what they spent, and learn how far ahead all are; callers ask all the time."""
    nodes, shared = (Gcra(), Gcra()), 0.0
    done = []
    for step in range(120 * 100):
        now = step / 100
        for gcra in nodes:
            done += passed(gcra, SIXTY, [now])
        if step % 10 == 0:
            for gcra in nodes:
                shared = max(shared, now) + gcra.spent
                gcra.spent = 0.0
            for gcra in nodes:
                gcra.learn(now, max(shared - now, 0.0))
    assert 58 <= most_in_a_minute(done) <= 63
    assert len(done) >= 118


def test_spending_that_is_not_told_yet_adds_to_the_learned_standing():
    gcra = Gcra()
    gcra.spend(0.0, SIXTY, 1)
    gcra.learn(0.0, 5.0)
    assert gcra.due == 6.0


def test_a_days_tokens_are_spent_until_midnight():
    budget = DayBudget()
    now = 10 * DAY + 3_600
    assert budget.wait(now, 100) == 0
    budget.spend(now, 100)
    assert budget.wait(now, 100) == DAY - 3_600
    assert budget.wait(11 * DAY, 100) == 0


def test_a_clock_that_steps_back_over_midnight_renews_no_tokens():
    budget = DayBudget()
    budget.spend(10 * DAY + 10, 100)
    assert budget.wait(10 * DAY - 0.5, 100) == DAY + 0.5
    assert budget.wait(10 * DAY + 11, 100) == DAY - 11
    # A clock that was years ahead blocks no caller until then.
    assert budget.wait(2 * DAY, 100) == 0


def test_a_days_unused_tokens_come_back_and_the_spending_of_other_nodes_counts():
    budget = DayBudget()
    budget.spend(DAY, 80)
    budget.spend(DAY, -30)
    assert (budget.used, budget.spent) == (50, 50)
    budget.spent = 0
    budget.spend(DAY, 5)
    budget.learn(DAY, 1, 70)
    assert budget.used == 75
    budget.learn(2 * DAY, 1, 80)
    assert budget.used == 0
