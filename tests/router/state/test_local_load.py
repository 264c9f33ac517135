"""Measurement of load: events counted over a sliding window, with time as a number."""

from hypothesis import given
from hypothesis import strategies as st

from registry.records import Load, Service
from router.state.local_load import WINDOW, LocalLoads, Tally
from router.workers import Worker, Workers

LLAMA, QWEN = Service("p", "llama"), Service("p", "qwen")
WORKERS = Workers.of([Worker(LLAMA, "http://w", capacity=8), Worker(QWEN, "http://v")])


def test_workers_without_requests_are_not_listed() -> None:
    local_loads = LocalLoads()
    local_loads.tallies[LLAMA].first = 0.5
    assert local_loads.loads(WORKERS, {}, {}, 1.0) == {}


def test_a_worker_that_has_not_answered_yet_has_no_latency() -> None:
    expected = {LLAMA: Load(2, slots=8), QWEN: Load(1)}
    assert LocalLoads().loads(WORKERS, {LLAMA: 2, QWEN: 1}, {}, 1.0) == expected


def test_the_rate_is_that_of_the_window() -> None:
    tally = Tally()
    for tick in range(40):
        tally.sample(tick / 4)
        tally.events += 10
    assert 39 < tally.rate < 41
    for tick in range(40, 40 + 4 * int(WINDOW) + 2):
        tally.sample(tick / 4)
    assert tally.rate == 0.0


def test_events_before_a_long_pause_do_not_count() -> None:
    tally = Tally()
    tally.sample(0.0)
    tally.events += 100
    tally.sample(1.0)
    assert tally.rate == 100.0
    tally.sample(60.0)
    assert tally.rate == 0.0


def test_sampling_twice_at_once_changes_nothing() -> None:
    tally = Tally()
    tally.sample(0.0)
    tally.events += 10
    tally.sample(0.0)
    tally.sample(1.0)
    tally.sample(1.001)
    assert tally.rate == 10.0


def test_events_are_counted_by_their_ends_and_a_chunk_is_at_least_one() -> None:
    tally = Tally()
    tally.streamed([b"data: a\n\ndata: b\n\n"])
    tally.streamed([b"data: c\r\n\r\n"])
    assert tally.events == 3


@given(st.lists(st.tuples(st.floats(0.0, 10.0), st.integers(0, 1000)), max_size=60))
def test_a_rate_is_finite_and_not_negative_whatever_the_clock_does(
    steps: list[tuple[float, int]],
) -> None:
    tally, now = Tally(), 0.0
    for step, events in steps:
        now += step
        tally.events += events
        tally.sample(now)
        assert 0.0 <= tally.rate < float("inf")


def test_an_idle_worker_streams_nothing_and_keeps_its_latency() -> None:
    local_loads = LocalLoads()
    tally = local_loads.tallies[LLAMA]
    tally.first, tally.rate = 0.5, 40.0
    assert local_loads.load(LLAMA, in_flight=1, queued=0, slots=8) == Load(1, 0, 8, 40.0, 0.5)
    assert local_loads.load(LLAMA, in_flight=0, queued=0, slots=8) == Load(0, 0, 8, 0.0, 0.5)


def test_workers_that_are_gone_are_forgotten() -> None:
    local_loads = LocalLoads()
    for number in range(100):
        local_loads.tallies[Service("p", f"gone-{number}")].first = 1.0
    local_loads.tallies[LLAMA].first = 0.5
    gone = Service("p", "gone-1")
    assert local_loads.loads(WORKERS, {gone: 3, LLAMA: 1}, {}, 1.0) == {
        LLAMA: Load(1, slots=8, first=0.5)
    }
    assert local_loads.load(gone, in_flight=0, queued=0, slots=0).first is None


@given(
    st.integers(1, 20),
    st.sampled_from([b"", b": alive\n\n"]),
    st.sampled_from([b"\n\n", b"\r\n\r\n"]),
    st.data(),
)
def test_a_stream_counts_the_same_however_its_events_arrive(
    events: int, comment: bytes, end: bytes, data: st.DataObject
) -> None:
    said = [b"data: %d" % number + end for number in range(events)]
    at = data.draw(st.integers(1, events))
    tally = Tally()
    found = tally.opened(comment + b"".join(said[:at]))
    found += sum(tally.streamed([event]) for event in said[at:])
    assert found == tally.events == events - 1
