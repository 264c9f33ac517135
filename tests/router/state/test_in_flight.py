"""Laws of requests in flight: exact counts, their average, and bounded memory."""

from hypothesis import given
from hypothesis import strategies as st

from registry.records import Load, PeerId, Service
from router.state.in_flight import (
    MAX_REPLICAS,
    WINDOW,
    InFlight,
    LocalLoads,
    Occupancy,
    ReplicaKey,
    Tally,
)
from router.workers import Worker, Workers

HERE = PeerId("here"), Service("p", "llama")


def other(number: int) -> ReplicaKey:
    return PeerId("here"), Service("p", f"m{number}")


def test_an_occupancy_gives_the_average_number_in_flight() -> None:
    crowd = Occupancy()
    crowd.change(1, 0.0)
    crowd.change(1, 2.0)
    crowd.change(-1, 3.0)
    assert crowd.seconds_until(4.0) / 4.0 == 5 / 4
    crowd.change(-1, 4.0)
    assert crowd.seconds_until(9.0) == crowd.seconds


def test_a_replica_without_requests_is_not_listed() -> None:
    flying = InFlight()
    assert (flying[HERE], HERE in flying, len(flying), flying.total()) == (0, False, 0, 0)
    flying.occupancies[HERE].change(2, 0.0)
    assert (flying[HERE], HERE in flying, flying.total()) == (2, True, 2)
    assert flying == {HERE: 2}
    flying.occupancies[HERE].change(-2, 1.0)
    assert not flying
    assert flying == {}
    assert HERE not in flying


def test_looking_up_a_replica_does_not_add_it() -> None:
    flying = InFlight()
    assert flying[HERE] == flying.get(other(1)) == 0
    assert not flying.occupancies


def test_idle_replicas_are_evicted_and_busy_ones_are_kept_however_many() -> None:
    flying = InFlight()
    busy = flying.occupancies[HERE]
    busy.change(1, 0.0)
    for number in range(MAX_REPLICAS):
        flying.occupancies[other(number)].change(1, 0.0)
        flying.occupancies[other(number)].change(-1, 0.0)
    assert len(flying.occupancies) <= MAX_REPLICAS
    assert flying.occupancies[HERE] is busy
    for number in range(MAX_REPLICAS + 1):
        flying.occupancies[other(number)].change(1, 0.0)
    assert flying.total() == MAX_REPLICAS + 2


LLAMA, QWEN = Service("p", "llama"), Service("p", "qwen")
WORKERS = Workers.of([Worker(LLAMA, "http://w", capacity=8), Worker(QWEN, "http://v")])


def test_workers_without_requests_are_not_listed() -> None:
    local_loads = LocalLoads()
    local_loads.tallies[LLAMA].first_byte_seconds = 0.5
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
    tally.count_chunks([b"data: a\n\ndata: b\n\n"])
    tally.count_chunks([b"data: c\r\n\r\n"])
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
    tally.first_byte_seconds, tally.rate = 0.5, 40.0
    assert local_loads.load(LLAMA, in_flight=1, queued=0, slots=8) == Load(1, 0, 8, 40.0, 0.5)
    assert local_loads.load(LLAMA, in_flight=0, queued=0, slots=8) == Load(0, 0, 8, 0.0, 0.5)


def test_workers_that_are_gone_are_forgotten() -> None:
    local_loads = LocalLoads()
    for number in range(100):
        local_loads.tallies[Service("p", f"gone-{number}")].first_byte_seconds = 1.0
    local_loads.tallies[LLAMA].first_byte_seconds = 0.5
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
    chunks = [b"data: %d" % number + end for number in range(events)]
    cut = data.draw(st.integers(1, events))
    tally = Tally()
    count = tally.count_first_bytes(comment + b"".join(chunks[:cut]))
    count += sum(tally.count_chunks([event]) for event in chunks[cut:])
    assert count == tally.events == events - 1
