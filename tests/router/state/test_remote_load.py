"""Load reports of other nodes: ageing, the node's own share in them, bounds, and parsing."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from registry.records import Load, PeerId, Service
from registry.wire import MAX_COUNT, MAX_FIGURE
from router.state.remote_load import (
    HALF_LIFE,
    LOAD_INTERVAL,
    MAX_NODES,
    MAX_REPLICAS,
    MAX_REPORT_TIMES,
    MISSED,
    SERVICE_TIME_INTERVAL,
    Report,
    Reported,
    Reports,
    ReportTimes,
    format_load,
    parse_load,
)

FAR, OTHER = PeerId("far"), PeerId("other")
LLAMA = Service("p", "llama")


def said(in_flight: int, *, ours: int = 0, at: float = 0.0) -> Report:
    return Report(Load(in_flight), ours, at)


def test_a_report_has_the_age_of_its_arrival() -> None:
    reports = Reports()
    reports.record(FAR, LLAMA, said(3, at=10.0))
    assert reports.newest(FAR, LLAMA, 12.5) == Reported(Load(3), 0, 2.5)
    assert reports.newest(OTHER, LLAMA, 12.5) is None
    assert reports.newest(FAR, Service("p", "qwen"), 12.5) is None


def test_the_newest_report_counts() -> None:
    reports = Reports()
    reports.record(FAR, LLAMA, said(3))
    reports.record(FAR, LLAMA, said(1, at=1.0))
    assert [*reports.of_node(FAR, 1.0)] == [(LLAMA, Reported(Load(1), 0, 0.0))]


def test_the_reports_of_a_lost_node_are_dropped() -> None:
    reports = Reports()
    reports.record(FAR, LLAMA, said(3))
    reports.forget(FAR)
    reports.forget(OTHER)
    assert reports.newest(FAR, LLAMA, 0.0) is None
    assert [*reports.of_node(FAR, 0.0)] == []


def test_the_load_shown_follows_the_nodes_own_requests() -> None:
    report = Reported(Load(3, 2, 4, 9.0, 0.5), ours=2, age=1.0)
    assert report.current_load(2, 5.0) == Load(4, 1, 4, 9.0, 0.5)
    assert report.current_load(0, 5.0) == Load(3, 0, 4, 9.0, 0.5)
    assert Reported(Load(1), ours=1, age=1.0).current_load(0, 5.0) == Load()


def test_load_that_is_not_repeated_has_ended() -> None:
    report = Load(3, 0, 4, 9.0, 0.5)
    assert Reported(report, ours=0, age=5.0 * MISSED).current_load(0, 5.0) == report
    assert Reported(report, ours=0, age=5.1 * MISSED).current_load(1, 5.0) == Load(
        1, 0, 4, 0.0, 0.5
    )


def test_the_nodes_own_requests_are_not_counted_twice() -> None:
    assert Reported(Load(5), ours=2, age=0.0).requests_of_others == 3
    assert Reported(Load(5), ours=5, age=0.0).requests_of_others == 0
    assert Reported(Load(5), ours=7, age=0.0).requests_of_others == 0


def test_queued_requests_count_like_those_in_flight() -> None:
    assert Reported(Load(5, queued=4), ours=2, age=0.0).requests_of_others == 7


def test_a_report_counts_half_after_its_half_life_and_nothing_in_the_end() -> None:
    assert Reported(Load(8), 0, HALF_LIFE).requests_of_others == 4
    assert Reported(Load(MAX_COUNT), 0, 1e9).requests_of_others == 0


@given(st.integers(0, MAX_COUNT), st.integers(0, 99), st.floats(0, 1e6), st.floats(0, 1e6))
def test_a_report_never_gains_weight_with_age(
    in_flight: int, ours: int, age: float, more: float
) -> None:
    young, old = (Reported(Load(in_flight), ours, a).requests_of_others for a in (age, age + more))
    assert 0 <= old <= young <= in_flight


def test_the_node_and_replica_heard_longest_ago_are_evicted() -> None:
    reports = Reports()
    for number in range(MAX_NODES):
        reports.record(PeerId(f"n{number}"), LLAMA, said(1))
    reports.record(PeerId("n0"), LLAMA, said(2))
    reports.record(FAR, LLAMA, said(3))
    assert reports.newest(PeerId("n0"), LLAMA, 0.0)
    assert reports.newest(PeerId("n1"), LLAMA, 0.0) is None
    for number in range(MAX_REPLICAS):
        reports.record(FAR, Service("p", f"m{number}"), said(1))
    assert reports.newest(FAR, LLAMA, 0.0) is None
    assert len([*reports.of_node(FAR, 0.0)]) == MAX_REPLICAS


counts = st.integers(0, MAX_COUNT)
figures = st.floats(0, MAX_FIGURE)


@given(st.builds(Load, counts, counts, counts, figures, st.none() | figures))
def test_a_load_is_read_as_it_was_written(load: Load) -> None:
    back = parse_load(format_load(load))
    assert back is not None
    same = (load.in_flight, load.queued, load.slots)
    assert (back.in_flight, back.queued, back.slots) == same
    assert back.rate == pytest.approx(load.rate, abs=0.051)
    assert (back.first is None) is (load.first is None)


def test_the_written_form_of_a_load() -> None:
    assert format_load(Load(3, 0, 8, 41.24, 0.35)) == (
        "in_flight=3;queued=0;slots=8;rate=41.2;first=0.350"
    )
    beyond = format_load(Load(10**9, 10**9, 10**9, 1e30, 1e30))
    assert parse_load(beyond) == Load(*[MAX_COUNT] * 3, MAX_FIGURE, MAX_FIGURE)


GOOD = "in_flight=3;queued=0;slots=8;rate=41.2"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "in_flight=3",
        "in_flight=3;queued=0;slots=8",
        f"{GOOD};",
        f"{GOOD};first=",
        f"{GOOD};first=-1",
        f"{GOOD};first=nan",
        f"{GOOD};first=1e3",
        f"{GOOD};first=0.35;first=0.35",
        f"{GOOD};more=1",
        f" {GOOD}",
        f"{GOOD}\n",
        GOOD.replace("3", "-3"),
        GOOD.replace("3", "\N{FULLWIDTH DIGIT THREE}"),
        GOOD.replace("3", "65536"),
        GOOD.replace("3", "9" * 5_000),
        GOOD.replace("41.2", "inf"),
        GOOD.replace("41.2", "9999999"),
        GOOD.replace("41.2", "41.2345"),
        GOOD.replace(";", ","),
        GOOD * 2_000,
    ],
    ids=lambda text: repr(text[:50]),
)
def test_a_text_of_another_form_is_no_load(text: str) -> None:
    assert parse_load(text) is None


@given(st.text(max_size=120))
def test_arbitrary_text_is_no_load(text: str) -> None:
    assert parse_load(text) is None


def test_reporting_a_worker_to_a_node_is_due_again_after_some_time() -> None:
    report_times = ReportTimes()
    assert report_times.is_due("a", "http://w", "chat/completions", 5.0)
    assert not report_times.is_due("a", "http://w", "chat/completions", 5.0 + LOAD_INTERVAL / 2)
    for other in (("b", "http://w", "embeddings"), ("a", "http://v", "embeddings")):
        assert report_times.is_due(*other, 5.0)
    assert report_times.is_due("a", "http://w", "chat/completions", 5.0 + 1.1 * LOAD_INTERVAL)
    assert not report_times.is_due(
        "a", "http://w", "chat/completions", 5.1, pause=SERVICE_TIME_INTERVAL
    )


def test_reports_are_due_again_once_too_many_are_remembered() -> None:
    report_times = ReportTimes()
    assert all(
        report_times.is_due("a", f"http://{n}", "embeddings", 5.0) for n in range(MAX_REPORT_TIMES)
    )
    assert not report_times.is_due("a", "http://1", "embeddings", 5.0)
    assert report_times.is_due("a", "http://one-more", "embeddings", 5.0)
    assert report_times.is_due("a", "http://1", "embeddings", 5.0)
