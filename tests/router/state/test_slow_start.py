"""Laws of slow start."""

import math

from registry.records import PeerId, Service
from router.state.slow_start import ENOUGH, MAX_NODES, MAX_REPLICAS, RISE, SlowStart

NODE = PeerId("n")
SERVICE = Service("p", "m")


def test_a_new_replica_may_have_one_request_and_one_more_for_each_answer() -> None:
    slow_start = SlowStart()
    assert slow_start.allowance(NODE, SERVICE, 0.0) == 1
    slow_start.record_request(NODE, SERVICE, 0.0)
    for answered in range(5):
        assert slow_start.allowance(NODE, SERVICE, 0.0) == 1 + answered
        slow_start.record_answer(NODE, SERVICE)


def test_after_enough_answers_the_allowance_is_unlimited() -> None:
    slow_start = SlowStart()
    slow_start.record_request(NODE, SERVICE, 0.0)
    for _ in range(ENOUGH - 1):
        assert slow_start.newcomers
        slow_start.record_answer(NODE, SERVICE)
    assert not slow_start.newcomers
    assert math.isinf(slow_start.allowance(NODE, SERVICE, 0.0))
    slow_start.record_answer(NODE, SERVICE)
    assert math.isinf(slow_start.allowance(NODE, SERVICE, 0.0))


def test_the_allowance_of_a_slow_replica_grows_with_time() -> None:
    slow_start = SlowStart()
    slow_start.record_request(NODE, SERVICE, 100.0)
    slow_start.record_request(NODE, SERVICE, 100.0 + RISE)
    assert slow_start.allowance(NODE, SERVICE, 100.0 + 3 * RISE) == 4
    assert math.isinf(slow_start.allowance(NODE, SERVICE, 100.0 + ENOUGH * RISE))


def test_a_replica_that_was_lost_is_new_when_it_is_back() -> None:
    slow_start = SlowStart()
    now = 0.0
    for forget in (
        lambda: slow_start.forget_replica(NODE, SERVICE),
        lambda: slow_start.forget(NODE),
    ):
        slow_start.record_request(NODE, SERVICE, now)
        assert slow_start.allowance(NODE, SERVICE, now) == 1
        now += 1e6
        assert math.isinf(slow_start.allowance(NODE, SERVICE, now))
        forget()


def test_an_answer_of_an_unknown_replica_changes_nothing() -> None:
    slow_start = SlowStart()
    slow_start.record_answer(NODE, SERVICE)
    slow_start.forget_replica(NODE, SERVICE)
    assert slow_start.allowance(NODE, SERVICE, 0.0) == 1


def test_memory_is_bounded() -> None:
    slow_start = SlowStart()
    for number in range(MAX_NODES + 10):
        slow_start.record_request(PeerId(str(number)), SERVICE, 0.0)
    for number in range(MAX_REPLICAS + 10):
        slow_start.record_request(NODE, Service("p", str(number)), 0.0)
    assert len(slow_start._replicas) == MAX_NODES
    assert len(slow_start._replicas[NODE]) == MAX_REPLICAS
    assert len(slow_start.newcomers) == MAX_NODES - 1 + MAX_REPLICAS
    for node in [*slow_start._replicas]:
        slow_start.forget(node)
    assert not slow_start.newcomers
