"""Laws of an estimator: what it learns from diverse answers, and how soon."""

import math
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from registry.records import Load
from router.state.estimator import (
    JUDGED,
    NETWORK_SECONDS,
    TOLERATED,
    Estimator,
    ObservedTime,
    seconds_by_report,
)
from router.state.remote_load import Reported
from router.state.service_time import (
    NOTHING_BEFORE,
    ReadPrefix,
    ServiceTime,
    format_service_time,
    parse_service_time,
)


class Machine:
    """Takes 0.5 s per answer, 0.1 s per kilobyte and 0.02 s per token, a third more or less at random."""

    def __init__(self, seed: int, *, sharing: float = 0.0, shares: bool = False) -> None:
        self.random = Random(seed)
        self.sharing = sharing
        self.slower = 1.0
        self.estimator = Estimator(shares=shares)

    def answer(self, times: int = 1, *, luck: float = 1.0) -> None:
        for _ in range(times):
            draw = self.random
            kilobytes, tokens = draw.lognormvariate(0, 1), draw.lognormvariate(4, 1)
            concurrency = draw.uniform(1, 8)
            seconds = (0.5 + 0.1 * kilobytes + 0.02 * tokens) * concurrency**self.sharing
            seconds *= self.slower * luck * draw.lognormvariate(-0.03, 0.25)
            self.estimator.record_answer(
                seconds, kilobytes=kilobytes, tokens=tokens, concurrency=concurrency
            )

    @property
    def time(self) -> ServiceTime:
        assert self.estimator.time is not None
        return self.estimator.time

    def off(self, *, kilobytes: float = 2, tokens: float = 80, concurrency: float = 4) -> float:
        """Return the ratio of the expected to the true time of such an answer."""
        expected = self.time.seconds_alone(kilobytes=kilobytes, tokens=tokens)
        true = (0.5 + 0.1 * kilobytes + 0.02 * tokens) * concurrency**self.sharing * self.slower
        return expected * concurrency**self.time.sharing / true


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("sharing", [0.0, 0.4, 1.0])
@pytest.mark.parametrize("shares", [False, True])
def test_the_effects_of_length_and_concurrency_are_separated(
    seed: int, *, sharing: float, shares: bool
) -> None:
    machine = Machine(seed, sharing=sharing, shares=shares)
    machine.answer(200)
    assert 0.75 < machine.off() < 1.35
    assert 0.65 < machine.off(tokens=400) < 1.5
    assert abs(machine.time.sharing - sharing) < 0.25
    assert 0.1 < machine.time.error < 0.4


def test_the_first_answer_gives_a_rough_estimate_with_a_large_error() -> None:
    machine = Machine(1)
    assert machine.estimator.time is None
    machine.answer()
    assert 0.3 < machine.off() < 3
    assert (machine.time.answers, machine.time.error) == (1, 1.0)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("slower", [8.0, 1 / 8])
def test_a_machine_that_is_another_one_now_is_known_after_ten_answers(
    seed: int, slower: float
) -> None:
    machine = Machine(seed)
    machine.answer(100)
    machine.slower = slower
    machine.answer(10)
    assert 0.6 < machine.off() < 1.7


def test_first_bytes_are_learnt_separately_and_slow_down_with_whole_answers() -> None:
    machine = Machine(1)
    machine.answer()
    assert machine.time.seconds_to_first_byte(kilobytes=10) is None
    for kilobytes in (1, 20, 5, 40, 10, 2, 30):
        machine.estimator.record_first_byte(
            0.1 + 0.02 * kilobytes, kilobytes=kilobytes, concurrency=1
        )
        machine.answer(10)
    first = machine.time.seconds_to_first_byte(kilobytes=10)
    assert first is not None
    assert 0.25 < first < 0.35
    machine.slower = 8
    machine.answer(10)
    slower = machine.time.seconds_to_first_byte(kilobytes=10)
    assert slower is not None
    assert slower > 4 * first


@pytest.mark.parametrize("seed", range(5))
def test_one_outlier_changes_little(seed: int) -> None:
    machine = Machine(seed)
    machine.answer(100)
    before = machine.off()
    machine.answer(luck=1_000.0)
    assert 0.8 < machine.off() / before < 1.3


def test_answers_without_tokens_are_learnt_by_length_alone() -> None:
    estimator, draw = Estimator(shares=False), Random(1)
    for _ in range(100):
        kilobytes = draw.uniform(1, 50)
        estimator.record_answer(
            0.2 + 0.03 * kilobytes, kilobytes=kilobytes, tokens=0, concurrency=1
        )
    assert estimator.time is not None
    assert math.isclose(estimator.time.seconds_alone(kilobytes=10, tokens=0), 0.5, rel_tol=0.02)
    assert estimator.time.token == 0


@given(
    st.lists(
        st.tuples(st.floats(0, 1e6), st.floats(0, 1e5), st.floats(0, 1e6), st.floats(1, 1e4)),
        min_size=1,
        max_size=40,
    )
)
def test_no_answers_lead_to_nonsense(
    answers: list[tuple[float, float, float, float]],
) -> None:
    estimator = Estimator(shares=True)
    for seconds, kilobytes, tokens, concurrency in answers:
        estimator.record_answer(
            seconds, kilobytes=kilobytes, tokens=tokens, concurrency=concurrency
        )
    time = estimator.time
    assert time is not None
    assert 0 <= time.sharing <= 1
    assert 0 < time.seconds_alone(kilobytes=1, tokens=1) < math.inf
    assert min(time.fixed, time.kilobyte, time.token, time.tokens, time.error) >= 0
    assert time.answers == len(answers)
    assert parse_service_time(format_service_time(time)) is not None


class Cached:
    """Takes 0.1 s for each kilobyte that its cache does not hold; the cache holds prefixes for `forgets` seconds."""

    def __init__(self, forgets: float, *, tells: bool) -> None:
        self.random = Random(1)
        self.forgets = forgets
        self.tells = tells
        self.estimator = Estimator(shares=False)

    def answer(self, times: int) -> ServiceTime:
        for _ in range(times):
            draw = self.random
            kilobytes, age = draw.uniform(2, 20), draw.lognormvariate(2, 1.5)
            before = ReadPrefix(0.9 * kilobytes, age) if draw.random() < 0.8 else ReadPrefix()
            cached = before.kilobytes if age < self.forgets else 0.0
            seconds = (0.2 + 0.1 * (kilobytes - cached)) * draw.lognormvariate(-0.03, 0.25)
            self.estimator.record_answer(
                seconds,
                kilobytes=kilobytes,
                tokens=0.0,
                concurrency=1.0,
                before=before,
                cached=cached if self.tells else None,
            )
        assert self.estimator.time is not None
        return self.estimator.time


@pytest.mark.parametrize("tells", [True, False])
def test_the_lifetime_of_a_cache_is_learnt_from_gaps_between_turns(*, tells: bool) -> None:
    brief = Cached(3.0, tells=tells).answer(400)
    long = Cached(300.0, tells=tells).answer(400)
    assert 1 < brief.holds < 12
    assert long.holds > 60
    # Cached prefixes were not read, so they do not make prefill look quick.
    assert all(0.07 < time.kilobyte < 0.13 for time in (brief, long))


def test_a_machine_without_a_cache_is_recognised() -> None:
    assert Cached(0.0, tells=True).answer(100).holds < 2


amounts = st.floats(0.0, 1e9)


@given(
    st.lists(
        st.tuples(
            amounts,
            amounts,
            amounts,
            st.floats(1.0, 1e6),
            st.none() | st.builds(ReadPrefix, amounts, amounts, amounts),
            st.none() | amounts,
        ),
        min_size=1,
    )
)
def test_any_answers_can_be_learnt_from(
    answers: list[tuple[float, float, float, float, ReadPrefix | None, float | None]],
) -> None:
    estimator = Estimator(shares=True)
    for seconds, kilobytes, tokens, concurrency, before, cached in answers:
        estimator.record_answer(
            seconds,
            kilobytes=kilobytes,
            tokens=tokens,
            concurrency=concurrency,
            before=before or NOTHING_BEFORE,
            cached=cached,
        )
        estimator.record_first_byte(
            seconds,
            kilobytes=kilobytes,
            concurrency=concurrency,
            before=before or NOTHING_BEFORE,
        )
    assert estimator.time is not None
    assert math.isfinite(estimator.time.seconds_alone(kilobytes=1.0, tokens=1.0))


IDLE = Reported(Load(0, slots=1_000), ours=0, age=0.0)
QUICK = ServiceTime(0.01)
ENOUGH = JUDGED // 2 + 1


def answer(observed: ObservedTime, seconds: float, time: ServiceTime | None = QUICK) -> None:
    observed.record_answer(seconds, kilobytes=1, tokens=0, ours=1, time=time, report=IDLE)


def test_reports_are_contradicted_by_most_of_the_last_answers_and_then_not_used() -> None:
    observed = ObservedTime()
    for _ in range(ENOUGH - 1):
        answer(observed, 5.0)
    assert observed.choose_figures(IDLE, QUICK) == (IDLE, QUICK)
    answer(observed, 5.0)
    report, time = observed.choose_figures(IDLE, QUICK)
    assert report is None
    assert time is not None
    assert time.seconds_alone(kilobytes=1, tokens=0) > 4


def test_reports_are_believed_again_when_answers_agree_with_them() -> None:
    observed = ObservedTime()
    for _ in range(JUDGED):
        answer(observed, 5.0)
    for _ in range(ENOUGH):
        assert observed.contradicts
        answer(observed, 0.01)
    assert observed.choose_figures(IDLE, QUICK) == (IDLE, QUICK)


def test_a_replica_without_a_reported_time_has_the_observed_one() -> None:
    observed = ObservedTime()
    for _ in range(JUDGED):
        answer(observed, 5.0, time=None)
    report, time = observed.choose_figures(IDLE, None)
    assert (report, observed.contradicts) == (IDLE, False)
    assert time is not None
    assert time.seconds_alone(kilobytes=1, tokens=0) > 4


@given(
    st.floats(0.01, 100),
    st.integers(1, 50),
    st.integers(0, 50),
    st.integers(0, 16),
    st.floats(0, TOLERATED),
)
def test_an_honest_node_is_never_contradicted(
    fixed: float, ours: int, others: int, slots: int, luck: float
) -> None:
    time, report = ServiceTime(fixed, sharing=0.5), Reported(Load(others, slots=slots), 0, 0.0)
    observed = ObservedTime()
    seconds = seconds_by_report(time, report, ours, kilobytes=1, tokens=0)
    for _ in range(JUDGED):
        observed.record_answer(
            NETWORK_SECONDS + luck * seconds,
            kilobytes=1,
            tokens=0,
            ours=ours,
            time=time,
            report=report,
        )
    assert not observed.contradicts


def test_requests_beyond_the_reported_slots_wait_for_others() -> None:
    two = Reported(Load(4, slots=2), ours=0, age=0.0)
    assert seconds_by_report(ServiceTime(1.0), two, 2, kilobytes=0, tokens=0) == 3.0
    shared = ServiceTime(1.0, sharing=1.0)
    assert seconds_by_report(shared, None, 4, kilobytes=0, tokens=0) == 4.0
