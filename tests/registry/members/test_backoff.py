"""Backoff: longer each time, bounded in time and in the number of entries, and over once there is an answer."""

from registry.members.backoff import REMEMBERED, Backoff


def test_the_pause_doubles_with_each_failure_up_to_a_bound() -> None:
    backoff = Backoff[str](first=5, longest=20)
    assert backoff.is_due("a", 0)
    for now, pause in ((0, 5), (100, 10), (200, 20), (300, 20)):
        backoff.note_failure("a", now)
        assert not backoff.is_due("a", now + pause - 1)
        assert backoff.is_due("a", now + pause)
        assert backoff.is_known("a")
    assert backoff.is_due("b", 0)


def test_an_answer_ends_the_backoff() -> None:
    backoff = Backoff[str](first=5, longest=20)
    backoff.note_failure("a", 0)
    backoff.note_failure("a", 1)
    backoff.forget("a")
    assert backoff.is_due("a", 1)
    assert not backoff.is_known("a")
    backoff.note_failure("a", 2)
    assert backoff.is_due("a", 7)


def test_many_addresses_evict_the_oldest_instead_of_growing_the_memory() -> None:
    backoff = Backoff[int](first=5, longest=20)
    for key in range(REMEMBERED + 10):
        backoff.note_failure(key, 0)
    assert not backoff.is_known(9)
    assert backoff.is_known(10)
