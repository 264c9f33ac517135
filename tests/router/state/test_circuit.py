"""Laws of a circuit: who is asked, who is left alone, and when somebody looks again."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.state.circuit import (
    FIRST_PAUSE,
    LONGEST_PAUSE,
    MAX_ADDRESSES,
    TRIP,
    Circuit,
    Health,
    Sign,
)

HERE = "http://127.0.0.1:8080"


@pytest.fixture
def health() -> Health:
    return Health(lambda: 0.5)


def request(health: Health, sign: Sign, now: float) -> None:
    health.began(HERE, now)
    health.show(HERE, sign, now)


def trip(health: Health, now: float) -> None:
    for _ in range(TRIP):
        request(health, Sign.FAILED, now)


def test_an_address_that_nobody_asked_is_asked(health: Health) -> None:
    assert health.admits(HERE, 0.0)
    assert health.condition(HERE, 0.0).circuit is Circuit.CLOSED


def test_failures_in_a_row_open_and_fewer_do_not(health: Health) -> None:
    for _ in range(TRIP - 1):
        request(health, Sign.FAILED, 0.0)
    assert health.admits(HERE, 0.0)
    request(health, Sign.FAILED, 0.0)
    assert not health.admits(HERE, 0.0)
    assert health.condition(HERE, 0.25).retry_in == FIRST_PAUSE - 0.25


def test_an_answer_between_failures_begins_the_count_anew(health: Health) -> None:
    for _ in range(10 * TRIP):
        request(health, Sign.FAILED, 0.0)
        request(health, Sign.ANSWERED, 0.0)
    assert health.admits(HERE, 0.0)


def test_answers_that_begin_and_break_count_as_failures(health: Health) -> None:
    for _ in range(TRIP):
        health.began(HERE, 0.0)
        health.show(HERE, Sign.BEGUN, 0.0)
        health.show(HERE, Sign.FAILED, 0.0)
    assert not health.admits(HERE, 0.0)


def test_a_trial_that_begins_lets_others_in_and_out_again_if_it_breaks(health: Health) -> None:
    trip(health, 0.0)
    health.began(HERE, 1.0)
    health.show(HERE, Sign.BEGUN, 1.5)
    assert health.admits(HERE, 1.5)
    health.show(HERE, Sign.FAILED, 2.0)
    assert not health.admits(HERE, 2.0)


def test_what_shows_nothing_changes_nothing(health: Health) -> None:
    for _ in range(10 * TRIP):
        request(health, Sign.NOTHING, 0.0)
    assert health.admits(HERE, 0.0)


def test_after_the_pause_one_request_tries_and_the_others_stay_away(health: Health) -> None:
    trip(health, 0.0)
    assert not health.admits(HERE, FIRST_PAUSE - 0.01)
    assert health.admits(HERE, FIRST_PAUSE)
    health.began(HERE, FIRST_PAUSE)
    assert health.condition(HERE, FIRST_PAUSE).circuit is Circuit.TRYING
    assert not health.admits(HERE, FIRST_PAUSE + 100)
    health.show(HERE, Sign.ANSWERED, FIRST_PAUSE + 1)
    assert health.admits(HERE, FIRST_PAUSE + 1)


def test_a_trial_whose_caller_left_leaves_the_trial_to_the_next(health: Health) -> None:
    trip(health, 0.0)
    health.began(HERE, 1.0)
    health.show(HERE, Sign.NOTHING, 1.5)
    assert health.admits(HERE, 1.5)


def test_trials_that_fail_grow_rarer_up_to_a_bound_and_success_forgets_it(health: Health) -> None:
    trip(health, 0.0)
    now, pauses = 0.0, []
    for _ in range(6):
        pause = health.condition(HERE, now).retry_in
        pauses.append(pause)
        now += pause
        request(health, Sign.FAILED, now)
    assert pauses == [1, 2, 4, LONGEST_PAUSE, LONGEST_PAUSE, LONGEST_PAUSE]
    now += LONGEST_PAUSE
    request(health, Sign.ANSWERED, now)
    trip(health, now)
    assert health.condition(HERE, now).retry_in == FIRST_PAUSE


def test_a_late_answer_of_one_that_is_out_brings_it_back_at_once(health: Health) -> None:
    health.began(HERE, 0.0)
    trip(health, 1.0)
    health.show(HERE, Sign.ANSWERED, 1.5)
    assert health.admits(HERE, 1.5)


def test_memory_is_bounded(health: Health) -> None:
    trip(health, 0.0)
    for number in range(MAX_ADDRESSES):
        health.show(f"http://127.0.0.1:{number}/x", Sign.FAILED, 0.0)
    assert health.admits(HERE, 0.0)


signs = st.lists(st.tuples(st.sampled_from(Sign), st.floats(0, 5)), max_size=60)


@given(signs)
def test_whoever_is_out_is_tried_again_within_the_longest_pause(
    steps: list[tuple[Sign, float]],
) -> None:
    health, now = Health(lambda: 0.999), 0.0
    for sign, wait in steps:
        now += wait
        request(health, sign, now)
    assert health.admits(HERE, now + 1.25 * LONGEST_PAUSE)
