"""Laws of waiting for a slot: in order, none is lost, and one stays taken while its worker works for a caller who left."""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from registry.records import Service
from router.errors import NobodyServes, NoCapacity, RouterError
from router.select.candidates import Candidate
from router.slot_wait import MAX_NOTES, LingeringSlots
from router.workers import Workers
from tests.router.test_dispatch import World
from tests.router.world import MODEL, QUICK, chat, links, own, until
from tests.workers.openai_worker import OpenAIWorker, running

SLOTS = 2
SERVICE = Service("p", MODEL)


@pytest.fixture
async def world(worker: OpenAIWorker) -> AsyncIterator[World]:
    async with links(QUICK.model_copy(update={"queue": 20})) as own_links:
        made = World(own_links)
        made.serve(own(worker.url, capacity=SLOTS))
        yield made
        assert not made.router.in_flight


def taken(world: World) -> int:
    return sum(world.router.in_flight.values())


async def queued(world: World, count: int) -> None:
    worker = next(iter(world.workers))
    await until(lambda: world.router.load_of(worker).queued == count)


async def test_more_requests_than_slots_are_all_answered_within_the_slots(
    world: World, worker: OpenAIWorker
) -> None:
    worker.fail(delay_first=0.02)
    most = 0

    async def ask() -> None:
        nonlocal most
        async with world.router.answer(chat()):
            most = max(most, taken(world))

    await asyncio.gather(*(ask() for _ in range(12)))
    assert most == SLOTS
    assert len(worker.received) == 12


async def test_callers_that_leave_the_queue_or_their_slot_lose_no_slot(
    world: World, worker: OpenAIWorker
) -> None:
    worker.fail(delay_first=0.03)
    asking = [asyncio.ensure_future(world.ask(chat())) for _ in range(16)]
    await queued(world, 14)
    for task in asking[::2]:
        task.cancel()
    await asyncio.wait(asking)
    assert all(task.cancelled() or task.result()[1] == 1 for task in asking)
    assert sum(not task.cancelled() for task in asking) == 8


async def test_a_full_queue_refuses_at_once_and_says_when_to_retry(
    world: World, worker: OpenAIWorker
) -> None:
    worker.fail(hang=True)
    asking = [asyncio.ensure_future(world.ask(chat())) for _ in range(SLOTS + 20)]
    await queued(world, 20)
    with pytest.raises(NoCapacity, match="20 requests wait") as refused:
        await world.ask(chat())
    assert refused.value.retry_after >= 1.0
    for task in asking:
        task.cancel()
    await asyncio.wait(asking)


async def test_another_caller_displaces_the_last_request_of_a_crowd(
    world: World, worker: OpenAIWorker
) -> None:
    worker.fail(hang=True)
    crowd = replace(chat(), caller="crowd")
    asking = [asyncio.ensure_future(world.ask(crowd)) for _ in range(SLOTS + 20)]
    await queued(world, 20)
    other = asyncio.ensure_future(world.ask(replace(chat(), caller="other")))
    await until(asking[-1].done)
    with pytest.raises(NoCapacity):
        asking[-1].result()
    assert not other.done()
    for task in (*asking, other):
        task.cancel()
    await asyncio.wait([*asking, other])


async def test_a_request_with_alternatives_does_not_wait(
    world: World, worker: OpenAIWorker
) -> None:
    worker.fail(hang=True)
    asking = [asyncio.ensure_future(world.ask(chat())) for _ in range(SLOTS)]
    await until(lambda: taken(world) == SLOTS)
    with pytest.raises(NoCapacity):
        await world.ask(replace(chat(), waits=False))
    for task in asking:
        task.cancel()
    await asyncio.wait(asking)


async def test_a_request_with_alternatives_waits_if_that_is_sooner(
    world: World, worker: OpenAIWorker
) -> None:
    worker.fail(delay_first=0.1)
    # The worker's usual time is unknown yet, so one second is expected.
    patient, impatient = (replace(chat(), waits=False, patience=p) for p in (1.0, 0.2))
    asking = [asyncio.ensure_future(world.ask(chat())) for _ in range(SLOTS)]
    await until(lambda: taken(world) == SLOTS)
    with pytest.raises(NoCapacity):
        await world.ask(impatient)
    await world.ask(patient)
    await asyncio.gather(*asking)


async def test_a_wait_for_a_slot_times_out(world: World, worker: OpenAIWorker) -> None:
    worker.fail(hang=True)
    asking = [asyncio.ensure_future(world.ask(chat())) for _ in range(SLOTS)]
    await until(lambda: taken(world) == SLOTS)
    with pytest.raises(NoCapacity, match="within 1 s"):
        await world.ask(chat())
    assert taken(world) == SLOTS
    for task in asking:
        task.cancel()
    await asyncio.wait(asking)


async def test_requests_waiting_for_a_model_that_is_unregistered_fail(
    world: World, worker: OpenAIWorker
) -> None:
    worker.fail(delay_first=0.1)
    asking = [asyncio.ensure_future(world.ask(chat())) for _ in range(SLOTS + 2)]
    await queued(world, 2)
    world.workers = Workers()
    ends = await asyncio.gather(*asking, return_exceptions=True)
    assert [type(end) for end in ends[SLOTS:]] == [NobodyServes] * 2
    assert "unregistered" in str(ends[-1])


async def test_a_waiting_request_takes_a_slot_of_any_worker_of_the_model(
    worker: OpenAIWorker,
) -> None:
    async with running() as second, links() as own_links:
        made = World(own_links)
        candidates: list[Candidate] = [own(worker.url, cid="1", capacity=1)]
        candidates.append(own(second.url, cid="2", capacity=1))
        made.serve(*candidates)
        worker.fail(hang=True)
        second.fail(delay_first=0.02)
        asking = [asyncio.ensure_future(made.ask(chat())) for _ in range(6)]
        await until(lambda: sum(task.done() for task in asking) == 5)
        assert len(worker.received) == 1
        for task in asking:
            task.cancel()
        with suppress(asyncio.CancelledError, RouterError):
            await asyncio.gather(*asking)
        assert not made.router.in_flight


async def test_a_second_attempt_beyond_the_slots_does_not_raise_their_number() -> None:
    async with running() as bad, running() as good, links() as own_links:
        made = World(own_links)
        made.serve(own(bad.url, cid="1"), own(good.url, cid="2", capacity=1))
        bad.fail(status=500, delay_first=0.05)
        good.fail(delay_first=0.15)
        # Each request goes to the first worker, and then to the second regardless of its slots.
        crowd = [asyncio.ensure_future(made.ask(chat())) for _ in range(2)]
        await until(lambda: len(good.received) == 2)
        made.workers = Workers.of(w for w in made.workers if w.capacity)
        late = [asyncio.ensure_future(made.ask(chat())) for _ in range(4)]
        await asyncio.wait(crowd)
        most = 0
        while not all(task.done() for task in late):
            most = max(most, taken(made))
            await asyncio.sleep(0.005)
        assert most == 1
        assert all(task.result()[1] == 1 for task in late)
        assert not made.router.in_flight


async def test_the_retry_time_is_learnt_from_answers_under_the_requested_name(
    world: World, worker: OpenAIWorker
) -> None:
    for _ in range(3):
        asking = asyncio.ensure_future(world.ask(chat(f"p/{MODEL}")))
        async with world.router.answer(chat(f"p/{MODEL}")):
            world.now += 20
        await asking
    worker.fail(hang=True)
    busy = [asyncio.ensure_future(world.ask(chat())) for _ in range(SLOTS)]
    await until(lambda: taken(world) == SLOTS)
    with pytest.raises(NoCapacity) as refused:
        await world.ask(replace(chat(f"p/{MODEL}"), waits=False))
    assert refused.value.retry_after > 2
    for task in busy:
        task.cancel()
    await asyncio.wait(busy)


async def test_background_requests_leave_a_slot_free_after_recent_other_requests(
    world: World, worker: OpenAIWorker
) -> None:
    lines = [replace(chat(), background=True) for _ in range(6)]
    worker.fail(delay_first=0.1)
    # There are no other requests: the background ones get all slots.
    asking = [asyncio.ensure_future(world.ask(line)) for line in lines[:2]]
    await until(lambda: taken(world) == SLOTS)
    await asyncio.gather(*asking)
    # After another request, one slot is kept free.
    await world.ask(chat())
    asking = [asyncio.ensure_future(world.ask(line)) for line in lines[2:]]
    await until(lambda: taken(world) == 1)
    await world.ask(replace(chat(), waits=False))
    await asyncio.gather(*asking)


async def test_other_waiting_requests_come_before_background_requests(
    world: World, worker: OpenAIWorker
) -> None:
    worker.fail(delay_first=0.03)
    order: list[bool] = []

    async def ask(*, background: bool) -> None:
        await world.ask(replace(chat(), background=background))
        order.append(background)

    lines = [asyncio.ensure_future(ask(background=True)) for _ in range(8)]
    await until(lambda: taken(world) == SLOTS)
    foreground = [asyncio.ensure_future(ask(background=False)) for _ in range(4)]
    await asyncio.gather(*lines, *foreground)
    assert not any(order[SLOTS : SLOTS + 4])


ONE, OTHER = Service("p", "one"), Service("p", "other")


class LingeringWorld:
    """Records the spawned tasks and the released slots."""

    def __init__(self, longest: float = 60.0) -> None:
        self.tasks: list[asyncio.Task[None]] = []
        self.released: list[Service] = []
        self.lingering = LingeringSlots(self, longest)

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        self.tasks.append(asyncio.ensure_future(work))

    def release(self, service: Service) -> None:
        self.released.append(service)

    def ended(self, service: Service) -> bool:
        return self.lingering.keep_slot(service, self)


async def test_a_slot_without_a_note_is_free_at_once() -> None:
    world = LingeringWorld()
    assert not world.ended(ONE)
    world.lingering.note_cancelled(OTHER, asyncio.Event().wait)
    assert not world.ended(ONE)


async def test_a_noted_slot_is_released_when_its_worker_is_free() -> None:
    world, free = LingeringWorld(), asyncio.Event()
    world.lingering.note_cancelled(ONE, free.wait)
    assert world.ended(ONE)
    assert not world.ended(ONE)
    await asyncio.sleep(0)
    assert (world.released, world.lingering.kept_count) == ([], 1)
    free.set()
    await world.tasks[0]
    assert (world.released, world.lingering.kept_count) == ([ONE], 0)


async def test_a_slot_is_released_after_the_longest_time() -> None:
    world = LingeringWorld(longest=0.01)
    world.lingering.note_cancelled(ONE, asyncio.Event().wait)
    assert world.ended(ONE)
    await world.tasks[0]
    assert world.released == [ONE]


async def test_cancelling_the_task_releases_the_slot() -> None:
    world = LingeringWorld()
    world.lingering.note_cancelled(ONE, asyncio.Event().wait)
    world.ended(ONE)
    await asyncio.sleep(0)
    world.tasks[0].cancel()
    with pytest.raises(asyncio.CancelledError):
        await world.tasks[0]
    assert world.released == [ONE]


async def test_unused_notes_are_bounded() -> None:
    world = LingeringWorld()
    for _ in range(MAX_NOTES + 1):
        world.lingering.note_cancelled(ONE, asyncio.Event().wait)
    kept = [world.ended(ONE) for _ in range(MAX_NOTES + 1)]
    assert kept == [True] * MAX_NOTES + [False]
    for task in world.tasks:
        task.cancel()
    await asyncio.wait(world.tasks)
