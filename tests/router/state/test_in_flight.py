"""Laws of requests in flight: exact counts, their average, and bounded memory."""

from registry.records import PeerId, Service
from router.state.in_flight import MAX_REPLICAS, InFlight, Occupancy, ReplicaKey

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
