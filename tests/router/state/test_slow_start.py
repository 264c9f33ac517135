"""Laws of slow start."""

import math

from registry.records import PeerId, Service
from router.state.slow_start import ENOUGH, MAX_NODES, MAX_REPLICAS, RISE, Warming

NODE = PeerId("n")
SERVICE = Service("p", "m")


def test_a_new_replica_may_have_one_request_and_one_more_for_each_answer() -> None:
    warming = Warming()
    assert warming.allowance(NODE, SERVICE, 0.0) == 1
    warming.began(NODE, SERVICE, 0.0)
    for answered in range(5):
        assert warming.allowance(NODE, SERVICE, 0.0) == 1 + answered
        warming.answered(NODE, SERVICE)


def test_after_enough_answers_the_allowance_is_unlimited() -> None:
    warming = Warming()
    warming.began(NODE, SERVICE, 0.0)
    for _ in range(ENOUGH - 1):
        assert warming.newcomers
        warming.answered(NODE, SERVICE)
    assert not warming.newcomers
    assert math.isinf(warming.allowance(NODE, SERVICE, 0.0))
    warming.answered(NODE, SERVICE)
    assert math.isinf(warming.allowance(NODE, SERVICE, 0.0))


def test_the_allowance_of_a_slow_replica_grows_with_time() -> None:
    warming = Warming()
    warming.began(NODE, SERVICE, 100.0)
    warming.began(NODE, SERVICE, 100.0 + RISE)
    assert warming.allowance(NODE, SERVICE, 100.0 + 3 * RISE) == 4
    assert math.isinf(warming.allowance(NODE, SERVICE, 100.0 + ENOUGH * RISE))


def test_a_replica_that_was_lost_is_new_when_it_is_back() -> None:
    warming = Warming()
    now = 0.0
    for forget in (lambda: warming.lost(NODE, SERVICE), lambda: warming.forget(NODE)):
        warming.began(NODE, SERVICE, now)
        assert warming.allowance(NODE, SERVICE, now) == 1
        now += 1e6
        assert math.isinf(warming.allowance(NODE, SERVICE, now))
        forget()


def test_an_answer_of_an_unknown_replica_changes_nothing() -> None:
    warming = Warming()
    warming.answered(NODE, SERVICE)
    warming.lost(NODE, SERVICE)
    assert warming.allowance(NODE, SERVICE, 0.0) == 1


def test_memory_is_bounded() -> None:
    warming = Warming()
    for number in range(MAX_NODES + 10):
        warming.began(PeerId(str(number)), SERVICE, 0.0)
    for number in range(MAX_REPLICAS + 10):
        warming.began(NODE, Service("p", str(number)), 0.0)
    assert len(warming._seen) == MAX_NODES
    assert len(warming._seen[NODE]) == MAX_REPLICAS
    assert len(warming.newcomers) == MAX_NODES - 1 + MAX_REPLICAS
    for node in [*warming._seen]:
        warming.forget(node)
    assert not warming.newcomers
