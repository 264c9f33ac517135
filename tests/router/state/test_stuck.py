"""Laws of silence: a busy worker does not count as dead, and a dead one is noticed soon."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.state.stuck import (
    LEARN_AFTER,
    LEARN_AGAIN,
    LONGEST_PAUSE,
    MAX_WORKERS,
    PATIENCE,
    PROBE_AGAIN,
    SURE,
    StuckWorkers,
    WorkerActivity,
)

HERE = "http://127.0.0.1:8080"


@pytest.fixture
def stuck() -> StuckWorkers:
    return StuckWorkers()


def answer(stuck: StuckWorkers, now: float, *, first_byte: float) -> None:
    stuck.record_request(HERE, now).record_first_byte(first_byte, now + first_byte)


def ask(stuck: StuckWorkers, now: float, *, answered: bool) -> None:
    assert stuck.claim_probe(HERE, now)
    stuck.record_probe(HERE, now, answered=answered)


def test_a_worker_without_requests_is_not_probed(stuck: StuckWorkers) -> None:
    answer(stuck, 0.0, first_byte=0.1)
    assert not stuck.claim_probe(HERE, 1e6)
    assert not stuck.is_silent(HERE)


def test_a_worker_that_answers_probes_while_busy_is_silent_when_it_stops(
    stuck: StuckWorkers,
) -> None:
    stuck.record_request(HERE, 0.0)
    ask(stuck, LEARN_AFTER, answered=True)
    assert not stuck.claim_probe(HERE, PATIENCE - 0.1)
    ask(stuck, PATIENCE, answered=False)
    assert stuck.is_silent(HERE)


def test_a_worker_that_never_answered_probes_while_busy_is_given_more_time(
    stuck: StuckWorkers,
) -> None:
    stuck.record_request(HERE, 0.0)
    ask(stuck, LEARN_AFTER, answered=False)
    ask(stuck, PATIENCE, answered=False)
    assert not stuck.is_silent(HERE)
    ask(stuck, SURE, answered=False)
    assert stuck.is_silent(HERE)


def test_the_usual_first_byte_decides_how_long_is_too_long(stuck: StuckWorkers) -> None:
    answer(stuck, 0.0, first_byte=3.0)
    stuck.record_request(HERE, 10.0)
    ask(stuck, 11.0, answered=True)
    assert not stuck.claim_probe(HERE, 21.9)
    ask(stuck, 22.0, answered=False)
    assert stuck.is_silent(HERE)


def test_a_slow_worker_that_answers_probes_is_never_silent(stuck: StuckWorkers) -> None:
    stuck.record_request(HERE, 0.0)
    for second in range(1, 600):
        if stuck.claim_probe(HERE, float(second)):
            stuck.record_probe(HERE, float(second), answered=True)
        assert not stuck.is_silent(HERE)


def test_first_bytes_of_other_requests_show_that_the_worker_works(stuck: StuckWorkers) -> None:
    answer(stuck, 0.0, first_byte=0.1)
    stuck.record_request(HERE, 1.0)
    for second in range(2, 60):
        answer(stuck, float(second), first_byte=0.1)
        stuck.claim_probe(HERE, second + 0.9)
        stuck.record_probe(HERE, second + 1.9, answered=False)
    assert not stuck.is_silent(HERE)


def test_one_probe_runs_at_a_time_and_not_too_often(stuck: StuckWorkers) -> None:
    stuck.record_request(HERE, 0.0)
    assert stuck.claim_probe(HERE, 3.0)
    assert not stuck.claim_probe(HERE, 100.0)
    stuck.record_probe(HERE, 100.0, answered=True)
    answer(stuck, 100.0, first_byte=0.0)
    assert not stuck.claim_probe(HERE, 100.0 + LEARN_AFTER)


def test_probes_of_a_silent_worker_grow_rarer_and_an_answer_brings_it_back(
    stuck: StuckWorkers,
) -> None:
    request = stuck.record_request(HERE, 0.0)
    ask(stuck, SURE, answered=False)
    request.record_no_answer()
    now, pauses = SURE, []
    for _ in range(4):
        before = now
        while not stuck.claim_probe(HERE, now):
            now += 0.25
        pauses.append(now - before)
        stuck.record_probe(HERE, now, answered=False)
    assert pauses == [PROBE_AGAIN, 2.0, LONGEST_PAUSE, LONGEST_PAUSE]
    ask(stuck, now + LONGEST_PAUSE, answered=True)
    assert not stuck.is_silent(HERE)


def test_a_late_first_byte_brings_a_silent_worker_back(stuck: StuckWorkers) -> None:
    request = stuck.record_request(HERE, 0.0)
    ask(stuck, SURE, answered=False)
    request.record_first_byte(7.0, 7.0)
    assert not stuck.is_silent(HERE)


def test_whether_a_worker_answers_probes_while_busy_is_tested_rarely(stuck: StuckWorkers) -> None:
    request = stuck.record_request(HERE, 0.0)
    ask(stuck, LEARN_AFTER, answered=False)
    request.record_first_byte(0.6, 0.6)
    request = stuck.record_request(HERE, 10.0)
    assert not stuck.claim_probe(HERE, 10.0 + LEARN_AFTER)
    request.record_first_byte(0.6, 10.6)
    stuck.record_request(HERE, LEARN_AGAIN)
    assert stuck.claim_probe(HERE, LEARN_AGAIN + LEARN_AFTER)


def test_memory_is_bounded_and_a_worker_with_requests_is_kept(stuck: StuckWorkers) -> None:
    request = stuck.record_request(HERE, 0.0)
    for number in range(3 * MAX_WORKERS):
        address = f"http://127.0.0.1:1/{number}"
        stuck.record_request(address, 0.0).record_first_byte(0.1, 0.1)
    assert len(stuck._workers) <= MAX_WORKERS
    assert stuck.record_request(HERE, 1.0) is request


steps = st.lists(
    st.tuples(st.sampled_from(["began", "ended", "ask"]), st.booleans(), st.floats(0, 3)),
    max_size=60,
)


@given(steps)
def test_only_an_unanswered_probe_makes_a_worker_silent(
    taken: list[tuple[str, bool, float]],
) -> None:
    stuck, now = StuckWorkers(), 0.0
    waiting: list[WorkerActivity] = []
    for event, well, wait in taken:
        now += wait
        before = stuck.is_silent(HERE)
        if event == "began":
            waiting.append(stuck.record_request(HERE, now))
        elif event == "ended" and waiting:
            request = waiting.pop()
            request.record_first_byte(wait, now) if well else request.record_no_answer()
        elif event == "ask" and stuck.claim_probe(HERE, now):
            stuck.record_probe(HERE, now, answered=well)
            assert not (well and stuck.is_silent(HERE))
            continue
        assert stuck.is_silent(HERE) <= before
