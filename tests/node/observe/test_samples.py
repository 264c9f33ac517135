"""Samples of the event loop's lag, of queues, and of refusals."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.auth.usage_history import BUCKET, UsageHistory
from node.observe import samples
from node.observe.recent import RecentRequests
from node.observe.samples import (
    FRESH,
    LAG_PERIOD,
    LINES,
    QUIET,
    WANTED,
    WINDOW,
    LoopLag,
    QueueSamples,
    Refusals,
    WindowMaximum,
)
from registry.records import Load, PeerId, Service
from router.state.remote_load import Report, Reports
from tests.node.auth.test_usage_history import Time, row


def test_nothing_was_late_before_anything_was_measured():
    assert WindowMaximum().worst(0.0) == 0.0


def test_a_wake_ahead_of_time_is_not_late():
    maximum = WindowMaximum()
    maximum.note(-0.001, 1.0)
    assert maximum.worst(1.0) == 0.0


@given(st.lists(st.tuples(st.integers(0, 30), st.floats(0, 10)), min_size=1))
def test_the_worst_of_the_last_minute_is_told(steps):
    maximum, now, all_of_it = WindowMaximum(), 0, []
    for wait, late in steps:
        now += wait
        maximum.note(late, now)
        all_of_it.append((now, late))
        assert maximum.worst(now) == max(
            late for moment, late in all_of_it if moment > now - WINDOW
        )
    assert maximum.worst(now + WINDOW) == 0.0


def test_the_number_of_remembered_values_is_bounded():
    maximum = WindowMaximum()
    for n in range(10_000):
        maximum.note(1.0 / (n + 1), n * LAG_PERIOD)
    assert len(maximum._worst) <= WINDOW / LAG_PERIOD + 1


class Ended(Exception):
    """The clock has no more values."""


async def test_a_loop_that_was_blocked_is_noticed():
    times = iter((0.0, 5.0))

    def clock() -> float:
        for moment in times:
            return moment
        raise Ended

    loop_lag = LoopLag()
    with pytest.raises(Ended):
        await loop_lag.watch(clock, iter((1.0, 1.5, 1.5)).__next__)
    assert loop_lag.lag.worst(5.0) == pytest.approx(5.0 - LAG_PERIOD)
    assert loop_lag.busy.worst(5.0) == pytest.approx(0.5)


OWN, OTHER = PeerId("own"), PeerId("other")
TINY, LARGE = Service("p", "tiny"), Service("p", "large")


class Workers:
    def __init__(self):
        self.loads = {}

    def busy_loads(self):
        return dict(self.loads)


class Scene:
    def __init__(self):
        self.time = Time()
        self.history, self.workers, self.reports = UsageHistory(self.time), Workers(), Reports()
        self.recent = RecentRequests(self.time)
        self.samples = QueueSamples(
            self.history,
            self.recent,
            own_peer=OWN,
            busy=self.workers,
            reports=self.reports,
            now=self.time,
        )

    def hear(self, service, queued):
        self.reports.record(OTHER, service, Report(Load(1, queued), 0, self.time.now))


def test_the_longest_queue_of_each_bucket_is_kept():
    scene = Scene()
    for queued in (2, 5, 0):
        scene.workers.loads = {TINY: Load(1, queued)}
        scene.samples.sample()
    scene.time.now += BUCKET
    scene.workers.loads = {TINY: Load(1, 3)}
    scene.samples.sample()
    assert [bucket.queued for bucket in scene.history.buckets("tiny", OWN)[-2:]] == [5, 3]
    assert scene.history.total("tiny", OWN).queued == 5
    assert scene.history.total("tiny", OWN).requests == 0


def test_a_report_of_another_node_counts_while_fresh_and_only_for_models_asked_here():
    scene = Scene()
    scene.history.add(row("tiny", OTHER))
    scene.hear(TINY, 4)
    scene.hear(LARGE, 9)
    scene.samples.sample()
    assert scene.history.total("tiny", OTHER).queued == 4
    assert scene.history.pairs() == [("tiny", OTHER)]
    scene.hear(TINY, 8)
    scene.time.now += FRESH + 1
    scene.samples.sample()
    assert scene.history.total("tiny", OTHER).queued == 4


def test_refusals_are_counted_once():
    scene = Scene()
    scene.recent.refused["tiny", OTHER] += 2
    scene.samples.sample()
    scene.samples.sample()
    assert scene.history.total("tiny", OTHER).refused == 2
    assert scene.history.buckets("tiny", OTHER)[-1].refused == 2


def test_a_model_name_that_a_caller_made_up_is_not_kept():
    scene = Scene()
    scene.workers.loads = {TINY: Load(1, 0)}
    scene.recent.refused["tiny", OWN] += 1
    scene.recent.refused["made up", OWN] += 1
    scene.samples.sample()
    assert scene.history.pairs() == [("tiny", OWN)]


def test_nothing_is_said_while_nothing_is_refused():
    assert not [*Refusals().due({"frames_in": 9, "frames_bad": 0}, 0.0)]


@pytest.mark.parametrize("event", LINES)
def test_the_first_refusal_is_logged_at_once_and_the_rest_together_later(event):
    refusals, quiet = Refusals(), WANTED.get(event, QUIET)
    assert [*refusals.due({event: 1}, 10.0)] == [(LINES[event], 1)]
    assert not [*refusals.due({event: 500}, 11.0)]
    assert not [*refusals.due({event: 900}, 9.9 + quiet)]
    assert [*refusals.due({event: 1_000}, 10.0 + quiet)] == [(LINES[event], 999)]
    assert not [*refusals.due({event: 1_000}, 10.0 + 9 * quiet)]


def test_what_a_retired_node_tries_again_and_again_is_one_line_an_hour():
    refusals = Refusals()
    lines = [
        line
        for minute in range(120)
        for line in refusals.due({"kept_out": 20 * (minute + 1)}, 60.0 * minute)
    ]
    assert [count for _, count in lines] == [20, 1_200]


def test_each_event_has_a_line_of_its_own():
    refusals = Refusals()
    assert len([*refusals.due(dict.fromkeys(LINES, 3), 0.0)]) == len(LINES)


@pytest.mark.parametrize("line", LINES.values())
def test_a_line_takes_one_number(line):
    assert line % 7


async def test_a_due_line_is_written_as_a_warning(caplog, monkeypatch):
    monkeypatch.setattr(samples, "REFUSAL_PERIOD", 0)
    moments = iter((0.0, 1.0, QUIET))
    counts = iter({"frames_bad": n} for n in (3, 8, 10, 10))

    def clock():
        for moment in moments:
            return moment
        raise Ended

    with pytest.raises(Ended):
        await Refusals().watch(lambda: next(counts), dict, clock)
    lines = [record.getMessage() for record in caplog.records]
    assert lines == [LINES["frames_bad"] % 3, LINES["frames_bad"] % 7]
    assert {record.levelname for record in caplog.records} == {"WARNING"}


async def test_the_line_about_peers_that_are_not_admitted_names_them_and_says_why(
    caplog, monkeypatch
):
    monkeypatch.setattr(samples, "REFUSAL_PERIOD", 0)
    moments = iter((0.0,))

    def clock():
        for moment in moments:
            return moment
        raise Ended

    kept_out = {"12D3KooWa": "in registry.deny", "12D3KooWb": "not in registry.allow"}
    with pytest.raises(Ended):
        await Refusals().watch(lambda: {"kept_out": 7}, lambda: kept_out, clock)
    assert [record.getMessage() for record in caplog.records] == [
        "kept out 7 frames, records and questions of nodes that are not admitted: "
        "12D3KooWa (in registry.deny), 12D3KooWb (not in registry.allow)"
    ]
