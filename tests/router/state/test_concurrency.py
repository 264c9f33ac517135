"""Laws of learnt concurrency limits."""

import pytest

from registry.records import PeerId, Service
from router.state.concurrency import FIRST_PAUSE, LONGEST_PAUSE, MAX_BOUNDS, BoundedWorkers, Limits
from router.workers import Worker, Workers
from router.world import LoneWorld

SERVICE = Service("p", "m")


class SlottedWorker:
    """A worker that refuses requests beyond its slots, and a router that always has one more for it."""

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self.limits = Limits()
        self.refusals: list[float] = []

    def press(self, begin: float, seconds: int) -> None:
        for now in range(int(begin), int(begin) + seconds):
            bound = self.limits.limit_of(SERVICE)
            if not bound or bound > self.slots:
                for under_way in range(bound or 3 * self.slots, self.slots, -1):
                    self.limits.record_refusal(SERVICE, under_way, now)
                    self.refusals.append(now)
            for _ in range(self.slots):
                self.limits.record_answer(
                    SERVICE, min(self.limits.limit_of(SERVICE), self.slots), now
                )


def test_a_worker_that_refuses_the_fifth_request_takes_four() -> None:
    limits = Limits()
    for under_way in (20, 19, 8, 5):
        limits.record_refusal(SERVICE, under_way, 0.0)
    assert limits.limit_of(SERVICE) == 4


def test_a_worker_that_never_refuses_has_no_limit() -> None:
    limits = Limits()
    for number in range(1_000):
        assert not limits.record_answer(SERVICE, number, number)
    assert limits.limit_of(SERVICE) == 0


def test_the_refusal_of_a_single_request_sets_no_limit() -> None:
    limits = Limits()
    limits.record_refusal(SERVICE, 1, 0.0)
    assert limits.limit_of(SERVICE) == 0


def test_the_limit_is_raised_after_a_round_of_answers_at_the_limit_and_a_pause() -> None:
    limits = Limits()
    limits.record_refusal(SERVICE, 3, 0.0)
    assert not any(limits.record_answer(SERVICE, 1, FIRST_PAUSE + n) for n in range(9))
    assert not limits.record_answer(SERVICE, 2, FIRST_PAUSE)
    assert limits.record_answer(SERVICE, 2, FIRST_PAUSE)
    assert limits.limit_of(SERVICE) == 3


def test_under_pressure_the_limit_is_found_and_refusals_become_rare() -> None:
    worker = SlottedWorker(4)
    worker.press(0, 600)
    assert worker.limits.limit_of(SERVICE) in (4, 5)
    late = [now for now in worker.refusals if now >= 300]
    assert len(late) <= 300 / LONGEST_PAUSE + 1


def test_the_limit_follows_a_worker_that_gets_more_slots() -> None:
    worker = SlottedWorker(2)
    worker.press(0, 600)
    worker.slots = 8
    worker.press(600, 180)
    assert worker.limits.limit_of(SERVICE) in (8, 9)


@pytest.mark.parametrize("refused", [3, 30])
def test_a_limit_stated_by_the_worker_is_not_raised(refused: int) -> None:
    limits = Limits()
    limits.record_refusal(SERVICE, refused, 0.0)
    limits.record_stated(SERVICE, 6, 1.0)
    assert not any(limits.record_answer(SERVICE, 6, 1_000.0) for _ in range(100))
    assert limits.limit_of(SERVICE) == 6


def test_limits_are_learnt_only_without_a_registered_capacity_and_the_table_is_cached() -> None:
    limits = Limits()
    table = Workers.of(
        [Worker(SERVICE, "http://a"), Worker(Service("p", "n"), "http://b", capacity=9)]
    )
    workers = BoundedWorkers(LoneWorld(PeerId("own"), table), limits)
    assert workers() is table
    for service in (SERVICE, Service("p", "n")):
        limits.record_refusal(service, 5, 0.0)
    assert [worker.capacity for worker in workers()] == [4, 9]
    assert [workers.should_learn_limit(worker) for worker in workers()] == [True, False]
    assert workers() is workers()


def test_memory_is_bounded() -> None:
    limits = Limits()
    for number in range(MAX_BOUNDS + 10):
        limits.record_refusal(Service("p", str(number)), 2, 0.0)
    assert len(limits._bounds) == MAX_BOUNDS
