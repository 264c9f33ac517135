"""Laws of observed times: reports are believed until most of the last answers contradict them."""

from hypothesis import given
from hypothesis import strategies as st

from registry.records import Load
from router.state.estimator import JUDGED
from router.state.observed_time import NETWORK_SECONDS, TOLERATED, ObservedTime, seconds_by_report
from router.state.remote_load import Reported
from router.state.service_time import ServiceTime

IDLE = Reported(Load(0, slots=1_000), ours=0, age=0.0)
QUICK = ServiceTime(0.01)
ENOUGH = JUDGED // 2 + 1


def answer(observed: ObservedTime, seconds: float, time: ServiceTime | None = QUICK) -> None:
    observed.take(seconds, kilobytes=1, tokens=0, ours=1, time=time, report=IDLE)


def test_reports_are_contradicted_by_most_of_the_last_answers_and_then_not_used() -> None:
    observed = ObservedTime()
    for _ in range(ENOUGH - 1):
        answer(observed, 5.0)
    assert observed.choose_figures(IDLE, QUICK) == (IDLE, QUICK)
    answer(observed, 5.0)
    report, time = observed.choose_figures(IDLE, QUICK)
    assert report is None
    assert time is not None
    assert time.alone(kilobytes=1, tokens=0) > 4


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
    assert time.alone(kilobytes=1, tokens=0) > 4


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
        observed.take(
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
