"""Laws of pausing requests to a worker for as long as it asked."""

from router.state.circuit import LONGEST_RETRY_AFTER, MAX_WAITING_ADDRESSES, RetryAfter


def test_only_the_worker_that_asked_is_paused_and_for_as_long_as_it_asked() -> None:
    said = RetryAfter()
    said.told("it", 7.0, 100.0)
    assert said.left("it", 101.0) == 6.0
    assert said.left("another", 101.0) == 0.0
    assert said.left("it", 107.0) == 0.0


def test_the_latest_pause_counts() -> None:
    said = RetryAfter()
    said.told("it", 30.0, 0.0)
    said.told("it", 2.0, 1.0)
    assert said.left("it", 1.0) == 2.0


def test_a_pause_is_bounded() -> None:
    said = RetryAfter()
    said.told("it", 3600.0, 0.0)
    assert said.left("it", 0.0) == LONGEST_RETRY_AFTER


def test_the_number_of_remembered_pauses_is_bounded() -> None:
    said = RetryAfter()
    for n in range(MAX_WAITING_ADDRESSES + 5):
        said.told(str(n), 60.0, 0.0)
    assert len(said.told_by) == MAX_WAITING_ADDRESSES
    assert said.left("0", 0.0) == 0.0
