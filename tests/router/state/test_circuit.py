"""Laws of a circuit breaker: which addresses get requests, when a trial is admitted, and pauses that a worker asked for."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.state.circuit import (
    FIRST_PAUSE,
    LONGEST_PAUSE,
    LONGEST_RETRY_AFTER,
    MAX_ADDRESSES,
    MAX_WAITING_ADDRESSES,
    TRIP,
    Circuit,
    CircuitBreakers,
    RetryAfter,
    Sign,
)

HERE = "http://127.0.0.1:8080"


@pytest.fixture
def health() -> CircuitBreakers:
    return CircuitBreakers(lambda: 0.5)


def request(health: CircuitBreakers, sign: Sign, now: float) -> None:
    health.record_request(HERE, now)
    health.record_sign(HERE, sign, now)


def trip(health: CircuitBreakers, now: float) -> None:
    for _ in range(TRIP):
        request(health, Sign.FAILED, now)


def test_the_circuit_of_an_unused_address_is_closed(health: CircuitBreakers) -> None:
    assert health.admits(HERE, 0.0)
    assert health.condition(HERE, 0.0).circuit is Circuit.CLOSED


def test_a_circuit_opens_after_enough_failures_in_a_row(health: CircuitBreakers) -> None:
    for _ in range(TRIP - 1):
        request(health, Sign.FAILED, 0.0)
    assert health.admits(HERE, 0.0)
    request(health, Sign.FAILED, 0.0)
    assert not health.admits(HERE, 0.0)
    assert health.condition(HERE, 0.25).retry_in == FIRST_PAUSE - 0.25


def test_an_answer_resets_the_count_of_failures(health: CircuitBreakers) -> None:
    for _ in range(10 * TRIP):
        request(health, Sign.FAILED, 0.0)
        request(health, Sign.ANSWERED, 0.0)
    assert health.admits(HERE, 0.0)


def test_broken_answers_count_as_failures(health: CircuitBreakers) -> None:
    for _ in range(TRIP):
        health.record_request(HERE, 0.0)
        health.record_sign(HERE, Sign.BEGUN, 0.0)
        health.record_sign(HERE, Sign.FAILED, 0.0)
    assert not health.admits(HERE, 0.0)


def test_a_trial_that_begins_to_answer_closes_the_circuit_until_it_breaks(
    health: CircuitBreakers,
) -> None:
    trip(health, 0.0)
    health.record_request(HERE, 1.0)
    health.record_sign(HERE, Sign.BEGUN, 1.5)
    assert health.admits(HERE, 1.5)
    health.record_sign(HERE, Sign.FAILED, 2.0)
    assert not health.admits(HERE, 2.0)


def test_outcomes_that_show_nothing_do_not_count(health: CircuitBreakers) -> None:
    for _ in range(10 * TRIP):
        request(health, Sign.NOTHING, 0.0)
    assert health.admits(HERE, 0.0)


def test_after_the_pause_one_trial_request_is_admitted(health: CircuitBreakers) -> None:
    trip(health, 0.0)
    assert not health.admits(HERE, FIRST_PAUSE - 0.01)
    assert health.admits(HERE, FIRST_PAUSE)
    health.record_request(HERE, FIRST_PAUSE)
    assert health.condition(HERE, FIRST_PAUSE).circuit is Circuit.TRYING
    assert not health.admits(HERE, FIRST_PAUSE + 100)
    health.record_sign(HERE, Sign.ANSWERED, FIRST_PAUSE + 1)
    assert health.admits(HERE, FIRST_PAUSE + 1)


def test_a_trial_whose_caller_left_passes_to_the_next_request(health: CircuitBreakers) -> None:
    trip(health, 0.0)
    health.record_request(HERE, 1.0)
    health.record_sign(HERE, Sign.NOTHING, 1.5)
    assert health.admits(HERE, 1.5)


def test_pauses_between_failed_trials_grow_up_to_a_bound_and_success_resets_them(
    health: CircuitBreakers,
) -> None:
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


def test_a_late_answer_closes_an_open_circuit_at_once(health: CircuitBreakers) -> None:
    health.record_request(HERE, 0.0)
    trip(health, 1.0)
    health.record_sign(HERE, Sign.ANSWERED, 1.5)
    assert health.admits(HERE, 1.5)


def test_memory_is_bounded(health: CircuitBreakers) -> None:
    trip(health, 0.0)
    for number in range(MAX_ADDRESSES):
        health.record_sign(f"http://127.0.0.1:{number}/x", Sign.FAILED, 0.0)
    assert health.admits(HERE, 0.0)


signs = st.lists(st.tuples(st.sampled_from(Sign), st.floats(0, 5)), max_size=60)


@given(signs)
def test_an_open_circuit_admits_a_trial_within_the_longest_pause(
    steps: list[tuple[Sign, float]],
) -> None:
    health, now = CircuitBreakers(lambda: 0.999), 0.0
    for sign, wait in steps:
        now += wait
        request(health, sign, now)
    assert health.admits(HERE, now + 1.25 * LONGEST_PAUSE)


def test_only_the_worker_that_asked_is_paused_and_for_as_long_as_it_asked() -> None:
    pauses = RetryAfter()
    pauses.record("it", 7.0, 100.0)
    assert pauses.seconds_left("it", 101.0) == 6.0
    assert pauses.seconds_left("another", 101.0) == 0.0
    assert pauses.seconds_left("it", 107.0) == 0.0


def test_the_latest_pause_counts() -> None:
    pauses = RetryAfter()
    pauses.record("it", 30.0, 0.0)
    pauses.record("it", 2.0, 1.0)
    assert pauses.seconds_left("it", 1.0) == 2.0


def test_a_pause_is_bounded() -> None:
    pauses = RetryAfter()
    pauses.record("it", 3600.0, 0.0)
    assert pauses.seconds_left("it", 0.0) == LONGEST_RETRY_AFTER


def test_the_number_of_remembered_pauses_is_bounded() -> None:
    pauses = RetryAfter()
    for n in range(MAX_WAITING_ADDRESSES + 5):
        pauses.record(str(n), 60.0, 0.0)
    assert len(pauses.paused_until) == MAX_WAITING_ADDRESSES
    assert pauses.seconds_left("0", 0.0) == 0.0
