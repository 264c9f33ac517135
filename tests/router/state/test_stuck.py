"""Laws of silence: a busy worker does not count as dead, and a dead one is noticed soon."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.state.stuck import (
    ASK_AGAIN,
    LEARN_AFTER,
    LEARN_AGAIN,
    LONGEST_PAUSE,
    MAX_WORKERS,
    PATIENCE,
    SURE,
    AskedWorker,
    Silence,
)

HERE = "http://127.0.0.1:8080"


@pytest.fixture
def silence() -> Silence:
    return Silence()


def answer(silence: Silence, now: float, *, first_byte: float) -> None:
    silence.began(HERE, now).answered(first_byte, now + first_byte)


def ask(silence: Silence, now: float, *, answered: bool) -> None:
    assert silence.wants_asking(HERE, now)
    silence.asked(HERE, now, answered=answered)


def test_a_worker_without_requests_is_not_probed(silence: Silence) -> None:
    answer(silence, 0.0, first_byte=0.1)
    assert not silence.wants_asking(HERE, 1e6)
    assert not silence.silent(HERE)


def test_a_worker_that_answers_probes_while_busy_is_silent_when_it_stops(
    silence: Silence,
) -> None:
    silence.began(HERE, 0.0)
    ask(silence, LEARN_AFTER, answered=True)
    assert not silence.wants_asking(HERE, PATIENCE - 0.1)
    ask(silence, PATIENCE, answered=False)
    assert silence.silent(HERE)


def test_a_worker_that_never_answered_probes_while_busy_is_given_more_time(
    silence: Silence,
) -> None:
    silence.began(HERE, 0.0)
    ask(silence, LEARN_AFTER, answered=False)
    ask(silence, PATIENCE, answered=False)
    assert not silence.silent(HERE)
    ask(silence, SURE, answered=False)
    assert silence.silent(HERE)


def test_the_usual_first_byte_decides_how_long_is_too_long(silence: Silence) -> None:
    answer(silence, 0.0, first_byte=3.0)
    silence.began(HERE, 10.0)
    ask(silence, 11.0, answered=True)
    assert not silence.wants_asking(HERE, 21.9)
    ask(silence, 22.0, answered=False)
    assert silence.silent(HERE)


def test_a_slow_worker_that_answers_probes_is_never_silent(silence: Silence) -> None:
    silence.began(HERE, 0.0)
    for second in range(1, 600):
        if silence.wants_asking(HERE, float(second)):
            silence.asked(HERE, float(second), answered=True)
        assert not silence.silent(HERE)


def test_first_bytes_of_other_requests_show_that_the_worker_works(silence: Silence) -> None:
    answer(silence, 0.0, first_byte=0.1)
    silence.began(HERE, 1.0)
    for second in range(2, 60):
        answer(silence, float(second), first_byte=0.1)
        silence.wants_asking(HERE, second + 0.9)
        silence.asked(HERE, second + 1.9, answered=False)
    assert not silence.silent(HERE)


def test_one_probe_runs_at_a_time_and_not_too_often(silence: Silence) -> None:
    silence.began(HERE, 0.0)
    assert silence.wants_asking(HERE, 3.0)
    assert not silence.wants_asking(HERE, 100.0)
    silence.asked(HERE, 100.0, answered=True)
    answer(silence, 100.0, first_byte=0.0)
    assert not silence.wants_asking(HERE, 100.0 + LEARN_AFTER)


def test_probes_of_a_silent_worker_grow_rarer_and_an_answer_brings_it_back(
    silence: Silence,
) -> None:
    asked = silence.began(HERE, 0.0)
    ask(silence, SURE, answered=False)
    asked.left()
    now, pauses = SURE, []
    for _ in range(4):
        before = now
        while not silence.wants_asking(HERE, now):
            now += 0.25
        pauses.append(now - before)
        silence.asked(HERE, now, answered=False)
    assert pauses == [ASK_AGAIN, 2.0, LONGEST_PAUSE, LONGEST_PAUSE]
    ask(silence, now + LONGEST_PAUSE, answered=True)
    assert not silence.silent(HERE)


def test_a_late_first_byte_brings_a_silent_worker_back(silence: Silence) -> None:
    asked = silence.began(HERE, 0.0)
    ask(silence, SURE, answered=False)
    asked.answered(7.0, 7.0)
    assert not silence.silent(HERE)


def test_whether_a_worker_answers_probes_while_busy_is_tested_rarely(silence: Silence) -> None:
    asked = silence.began(HERE, 0.0)
    ask(silence, LEARN_AFTER, answered=False)
    asked.answered(0.6, 0.6)
    asked = silence.began(HERE, 10.0)
    assert not silence.wants_asking(HERE, 10.0 + LEARN_AFTER)
    asked.answered(0.6, 10.6)
    silence.began(HERE, LEARN_AGAIN)
    assert silence.wants_asking(HERE, LEARN_AGAIN + LEARN_AFTER)


def test_memory_is_bounded_and_a_worker_with_requests_is_kept(silence: Silence) -> None:
    asked = silence.began(HERE, 0.0)
    for number in range(3 * MAX_WORKERS):
        address = f"http://127.0.0.1:1/{number}"
        silence.began(address, 0.0).answered(0.1, 0.1)
    assert len(silence._workers) <= MAX_WORKERS
    assert silence.began(HERE, 1.0) is asked


steps = st.lists(
    st.tuples(st.sampled_from(["began", "ended", "ask"]), st.booleans(), st.floats(0, 3)),
    max_size=60,
)


@given(steps)
def test_only_an_unanswered_probe_makes_a_worker_silent(
    taken: list[tuple[str, bool, float]],
) -> None:
    silence, now = Silence(), 0.0
    waiting: list[AskedWorker] = []
    for what, well, wait in taken:
        now += wait
        before = silence.silent(HERE)
        if what == "began":
            waiting.append(silence.began(HERE, now))
        elif what == "ended" and waiting:
            asked = waiting.pop()
            asked.answered(wait, now) if well else asked.left()
        elif what == "ask" and silence.wants_asking(HERE, now):
            silence.asked(HERE, now, answered=well)
            assert not (well and silence.silent(HERE))
            continue
        assert silence.silent(HERE) <= before
