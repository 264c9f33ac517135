"""Laws of lending slots: two routers of one node never exceed a worker's slots, and lose no slot."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, suppress
from dataclasses import replace

import pytest

from registry.records import Service
from router.errors import NobodyServes, NoCapacity, WorkerBusy, WorkerUnreachable
from router.requests import Pin, Request
from router.workers import Workers
from tests.router.test_dispatch import World
from tests.router.world import MODEL, QUICK, chat, links, own, until
from tests.workers.openai_worker import OpenAIWorker, running


class Pair:
    """The process that lends slots, and one that borrows; both know the same workers."""

    def __init__(self, lending: World, borrowing: World) -> None:
        self.lending, self.borrowing = lending, borrowing

    def serve(self, *candidates) -> None:
        for world in (self.lending, self.borrowing):
            world.serve(*candidates)


@pytest.fixture
async def pair() -> AsyncIterator[Pair]:
    async with AsyncExitStack() as closing:
        one, two = [await closing.enter_async_context(links(QUICK.model_copy(update={"queue": 60}))) for _ in "ab"]  # fmt: skip
        lending = World(one)
        pair = Pair(lending, World(two, lender=lending.router.lent_slots))
        yield pair
        assert not pair.lending.router.in_flight
        assert not pair.borrowing.router.in_flight


def at_work(worker: OpenAIWorker) -> int:
    return len(worker.received) - worker.served - worker.hung_up


async def ask_and_look(world: World, worker: OpenAIWorker, request: Request) -> int:
    """Send a request; return how many the worker had in flight when this one was answered."""
    async with world.router.answer(request):
        return at_work(worker)


async def test_requests_of_both_processes_are_answered_within_the_slots(
    pair: Pair, worker: OpenAIWorker
) -> None:
    pair.serve(own(worker.url, capacity=2))
    worker.fail(delay_first=0.01)
    worlds = [pair.lending, pair.borrowing] * 20
    seen = await asyncio.gather(*(ask_and_look(w, worker, chat()) for w in worlds))
    assert len(seen) == len(worker.received) == 40
    assert max(seen) <= 2


@pytest.mark.parametrize("capacity", [0, 2])
async def test_a_request_that_needs_no_slot_is_sent_at_once(
    pair: Pair, worker: OpenAIWorker, capacity: int
) -> None:
    pair.serve(own(worker.url, capacity=capacity))
    await pair.borrowing.settle()
    first = pair.borrowing.router.start(chat())
    assert (first is None) == (capacity > 0)
    async with pair.borrowing.router.answer(chat(), first) as routed:
        assert routed.attempts == 1


async def test_a_borrower_holds_requests_only_for_workers_that_have_answered_it(
    pair: Pair,
) -> None:
    async with running() as worker:
        pair.serve(own(worker.url), own("http://127.0.0.1:1", cid="2"))
        await pair.borrowing.ask(replace(chat(), pin=Pin(cid="")))
        with pytest.raises(WorkerUnreachable) as failed:
            await pair.borrowing.ask(replace(chat(), pin=Pin(cid="2")))
        assert not failed.value.hopeful
    with pytest.raises(WorkerUnreachable) as failed:
        await pair.borrowing.ask(replace(chat(), pin=Pin(cid="")))
    assert failed.value.hopeful


async def test_callers_that_leave_the_queue_or_their_slot_lose_no_slot(
    pair: Pair, worker: OpenAIWorker
) -> None:
    pair.serve(own(worker.url, capacity=1))
    worker.fail(delay_first=0.02)
    asking = [asyncio.ensure_future(pair.borrowing.ask(chat())) for _ in range(12)]
    await until(lambda: len(worker.received) == 1)
    for task in asking[::2]:
        task.cancel()
    await asyncio.wait(asking)
    assert sum(not task.cancelled() for task in asking) == 6
    assert (await pair.lending.ask(chat()))[1] == 1


async def test_a_borrower_goes_to_a_worker_with_a_free_slot_before_it_waits(
    pair: Pair, worker: OpenAIWorker
) -> None:
    async with running() as other:
        pair.serve(own(worker.url, cid="a", capacity=1), own(other.url, cid="b", capacity=1))
        async with pair.lending.router.answer(chat()) as first:
            assert first.candidate.service.cid == "a"
            async with pair.borrowing.router.answer(chat()) as second:
                assert second.candidate.service.cid == "b"
                with pytest.raises(NoCapacity):
                    await pair.borrowing.ask(chat())


async def test_a_second_attempt_borrows_a_slot_too(pair: Pair, worker: OpenAIWorker) -> None:
    async with running() as broken:
        broken.fail(status=500)
        pair.serve(own(broken.url, cid="a", capacity=1), own(worker.url, cid="b", capacity=1))
        assert (await pair.borrowing.ask(chat()))[1] == 2
        async with pair.lending.router.answer(chat()) as held:
            assert held.candidate.service.cid == "b"
            with pytest.raises(WorkerBusy):
                await pair.borrowing.ask(chat())
        assert len(worker.received) == 2


async def test_a_worker_without_a_limit_needs_no_lender(pair: Pair, worker: OpenAIWorker) -> None:
    pair.borrowing.serve(own(worker.url))
    # A slot could not be lent: the lender does not know the worker.
    assert (await pair.borrowing.ask(chat()))[1] == 1


async def test_waiting_for_a_worker_that_the_lender_does_not_know_fails(
    pair: Pair, worker: OpenAIWorker
) -> None:
    pair.borrowing.serve(own(worker.url, capacity=1))
    with pytest.raises(NobodyServes):
        await pair.borrowing.ask(chat())


async def test_slots_lent_count_as_load_of_the_worker(pair: Pair, worker: OpenAIWorker) -> None:
    pair.serve(own(worker.url, capacity=3))
    async with pair.borrowing.router.answer(chat()):
        assert pair.lending.router.busy_loads()[Service("p", MODEL)].in_flight == 1
    assert pair.lending.router.busy_loads() == {}


async def test_a_worker_whose_limit_shrinks_meanwhile_gets_all_its_slots_back(
    pair: Pair, worker: OpenAIWorker
) -> None:
    pair.serve(own(worker.url, capacity=3))
    async with AsyncExitStack() as answers:
        for world in (pair.borrowing, pair.borrowing, pair.lending):
            await answers.enter_async_context(world.router.answer(chat()))
        for world in (pair.lending, pair.borrowing):
            world.workers = Workers.of([own(worker.url, capacity=1).worker])
    assert (await pair.borrowing.ask(chat()))[1] == 1


async def test_a_borrower_learns_no_limit_since_it_sees_only_part_of_the_requests(
    pair: Pair, worker: OpenAIWorker
) -> None:
    pair.serve(own(worker.url))
    worker.fail(slots=2, delay_headers=0.1, properties=b'{"total_slots":2}')

    async def ask() -> None:
        with suppress(WorkerBusy):
            await pair.borrowing.ask(chat())

    await asyncio.gather(*(ask() for _ in range(8)))
    assert worker.refused
    assert pair.borrowing.router.explain(chat()).ordered[0].slots == 0
