"""Laws of the queue: bounded, in order, and fair between callers."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from registry.records import Service
from router.errors import NoCapacity
from router.state.queue import LONGEST_RETRY, MAX_CALLERS, MAX_MODELS, Queues, Ticket

WORKER = Service("p", "llama")
ONLY = frozenset({WORKER})


def queues(places: int = 100) -> Queues:
    return Queues(places=places)


def join(queue: Queues, caller: str, model: str = "llama") -> Ticket:
    return queue.join(model, caller, ONLY, slots=1).ticket


def test_requests_of_one_caller_are_served_in_order() -> None:
    queue = queues()
    tickets = [join(queue, "ann") for _ in range(5)]
    assert [queue.pop_next(WORKER) for _ in range(6)] == [*tickets, None]


def test_a_single_request_does_not_wait_behind_many_of_another_caller() -> None:
    queue = queues()
    for _ in range(50):
        join(queue, "hog")
    assert queue.pop_next(WORKER)
    late = join(queue, "ann")
    assert late in (queue.pop_next(WORKER), queue.pop_next(WORKER))


def test_a_slot_goes_only_to_a_request_that_its_worker_can_answer() -> None:
    queue = queues()
    other = Service("p", "qwen")
    ticket = queue.join("qwen", "ann", frozenset({other}), slots=1).ticket
    assert queue.pop_next(WORKER) is None
    assert queue.pop_next(other) is ticket


def test_a_request_that_left_gets_no_slot() -> None:
    queue = queues()
    gone, stays = join(queue, "ann"), join(queue, "ann")
    queue.leave(gone)
    queue.leave(gone)
    assert queue.pop_next(WORKER) is stays
    assert len(queue) == 0


def test_a_full_queue_refuses_and_says_when_to_retry() -> None:
    queue = queues(places=3)
    queue.record_slot_time("llama", 6.0)
    for _ in range(3):
        join(queue, "ann")
    with pytest.raises(NoCapacity) as refused:
        queue.join("llama", "ann", ONLY, slots=2)
    assert refused.value.retry_after == 12.0
    assert len(queue) == 3


def test_the_retry_time_is_bounded_on_both_sides() -> None:
    queue = queues()
    assert queue.refusal("llama", slots=8).retry_after == 1.0
    queue.record_slot_time("llama", 1e6)
    assert queue.refusal("llama", slots=1).retry_after == LONGEST_RETRY


def test_a_full_queue_of_one_caller_makes_room_for_another() -> None:
    queue = queues(places=4)
    hogs = [join(queue, "hog") for _ in range(4)]
    joined = queue.join("llama", "ann", ONLY, slots=1)
    assert joined.displaced is hogs[-1]
    assert len(queue) == 4
    # Half and half is fair: no request is displaced for one place more.
    assert queue.join("llama", "ann", ONLY, slots=1).displaced is hogs[-2]
    with pytest.raises(NoCapacity):
        queue.join("llama", "ann", ONLY, slots=1)


def test_models_do_not_fill_each_others_queues() -> None:
    queue = queues(places=1)
    join(queue, "ann", "llama")
    join(queue, "ann", "qwen")
    assert len(queue) == 2


def test_callers_that_come_and_go_leave_nothing_behind() -> None:
    queue = queues()
    for number in range(3 * MAX_CALLERS):
        queue.leave(join(queue, str(number)))
    assert len(queue._last_tags) == MAX_CALLERS


@given(st.lists(st.sampled_from("abcd"), min_size=40, max_size=80))
def test_waiting_callers_are_served_equally(order: list[str]) -> None:
    queue = queues()
    counts = Counter(order)
    for caller in order:
        join(queue, caller)
    served: Counter[str] = Counter()
    rounds = min(counts.values()) if len(counts) == 4 else 0
    for _ in range(rounds * 4):
        ticket = queue.pop_next(WORKER)
        assert ticket is not None
        served[ticket.caller] += 1
    assert not served or max(served.values()) - min(served.values()) <= 1


def test_the_number_of_remembered_usual_times_is_bounded() -> None:
    queue = queues()
    for number in range(2 * MAX_MODELS):
        queue.record_slot_time(str(number), 1.0)
    assert len(queue._usual_seconds) == MAX_MODELS


def test_the_expected_wait_counts_the_requests_ahead() -> None:
    queue = queues()
    assert queue.expected_wait("llama", slots=4) == 0.25
    queue.record_slot_time("llama", 6.0)
    join(queue, "ann")
    assert queue.expected_wait("llama", slots=4) == 3.0


def background(queue: Queues, caller: str = "batch") -> Ticket:
    return queue.join("llama", caller, ONLY, slots=1, background=True).ticket


def test_background_requests_come_after_all_others_and_in_order() -> None:
    queue = queues()
    first, second = background(queue), background(queue)
    ann, bob = join(queue, "ann"), join(queue, "bob")
    assert [queue.pop_next(WORKER) for _ in range(4)] == [ann, bob, first, second]


def test_a_slot_that_is_kept_free_goes_to_no_background_request() -> None:
    queue = queues()
    waiter = background(queue)
    assert queue.pop_next(WORKER, background=False) is None
    ann = join(queue, "ann")
    assert queue.pop_next(WORKER, background=False) is ann
    assert queue.pop_next(WORKER) is waiter


def test_in_a_full_queue_background_requests_are_displaced_and_displace_no_other() -> None:
    queue = queues(places=3)
    early, late = background(queue), background(queue)
    join(queue, "ann")
    joined = queue.join("llama", "ann", ONLY, slots=1)
    assert joined.displaced is late
    with pytest.raises(NoCapacity):
        background(queue, "another")
    assert queue.join("llama", "ann", ONLY, slots=1).displaced is early


def test_background_requests_lengthen_only_the_wait_of_background_requests() -> None:
    queue = queues()
    queue.record_slot_time("llama", 2.0)
    for _ in range(9):
        background(queue)
    assert queue.expected_wait("llama", slots=1, background=False) == 2.0
    assert queue.expected_wait("llama", slots=1) == 20.0
