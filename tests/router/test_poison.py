"""Laws of requests that kill their workers: sent once to each worker, counted, and to two workers at most."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from router.errors import PoisonousRequest, WorkerDied
from router.select.candidates import Candidate
from router.settings import RouterSettings
from tests.router.test_dispatch import World, several
from tests.router.world import MODEL, QUICK, chat, links, own
from tests.workers.openai_worker import OpenAIWorker


@asynccontextmanager
async def router(settings: RouterSettings = QUICK) -> AsyncIterator[World]:
    async with links(settings) as own_links:
        made = World(own_links)
        yield made
        assert not made.router.in_flight


def named(worker: OpenAIWorker, model: str) -> Candidate:
    candidate = own(worker.url, cid=model)
    assert candidate.worker is not None
    service = replace(candidate.service, model=model)
    return replace(candidate, service=service, worker=replace(candidate.worker, service=service))


async def doomed(world: World, *workers: OpenAIWorker, kept: bool = True) -> None:
    """Have each worker answer once, on a connection that is kept, and die of the next request."""
    world.serve(*(own(worker.url, cid=str(n)) for n, worker in enumerate(workers)))
    if kept:
        await world.settle()
    for worker in workers:
        worker.received.clear()
        worker.fail(die_before_headers=True)


@pytest.mark.parametrize("kept", [True, False], ids=["kept connection", "new connection"])
async def test_a_request_is_not_sent_again_to_a_worker_that_died_of_it(kept: bool) -> None:
    async with router() as world, several(1) as (worker,):
        await doomed(world, worker, kept=kept)
        with pytest.raises(WorkerDied) as died:
            await world.ask(chat())
    assert len(worker.received) == 1
    assert (died.value.attempts, died.value.deaths) == (1, 1)


@pytest.mark.parametrize("stream", [True, False])
async def test_a_request_whose_worker_died_is_answered_by_another_and_both_are_counted(
    stream: bool,
) -> None:
    async with router() as world, several(2) as (first, second):
        await doomed(world, first, second)
        second.fail()
        first.fail(**({"die_after": 0} if stream else {"die_before_headers": True}))
        body, attempts = await world.ask(chat(stream=stream))
    assert b'"llama"' in body
    assert attempts == 2
    assert (len(first.received), len(second.received)) == (1, 1)


async def test_a_request_that_two_workers_died_of_is_not_sent_to_a_third() -> None:
    async with router() as world, several(3) as workers:
        await doomed(world, *workers)
        with pytest.raises(PoisonousRequest, match="two workers") as error:
            await world.ask(chat())
        assert [len(worker.received) for worker in workers] == [1, 1, 0]
        assert error.value.attempts == 2
        # At another node one worker has died of it already.
        with pytest.raises(PoisonousRequest) as error:
            await world.ask(replace(chat(), deaths=1))
        assert sum(len(worker.received) for worker in workers) == 3
        assert error.value.attempts == 1


async def test_a_request_that_two_workers_died_of_is_not_tried_under_another_name() -> None:
    async with router() as world, several(3) as workers:
        await doomed(world, *workers)
        one, two, three = workers
        world.serve(named(one, MODEL), named(two, "other"), named(three, "third"))
        with pytest.raises(PoisonousRequest):
            await world.ask(replace(chat(), fallbacks=("other", "third")))
    assert [len(worker.received) for worker in workers] == [1, 1, 0]


async def test_a_hedged_request_that_two_workers_died_of_is_not_sent_to_a_third() -> None:
    hedging = QUICK.model_copy(update={"hedge": True})
    async with router(hedging) as world, several(3) as workers:
        await doomed(world, *workers)
        for worker in workers:
            worker.fail()
        for _ in range(30):
            await world.ask(chat())
            world.now += 0.1
        for worker in workers:
            worker.received.clear()
            worker.fail(die_before_headers=True, delay_headers=0.5)
        with pytest.raises(PoisonousRequest):
            await world.ask(chat())
    assert sum(len(worker.received) for worker in workers) == 2


async def test_a_worker_that_died_of_a_request_is_not_waited_for_while_its_slot_is_taken() -> None:
    async with router() as world, several(1) as (worker,):
        await doomed(world, worker)
        worker.fail(die_before_headers=True, delay_headers=0.2)
        world.serve(own(worker.url, capacity=1))
        both = await asyncio.gather(*(world.ask(chat()) for _ in "ab"), return_exceptions=True)
    assert [type(error) for error in both] == [WorkerDied, WorkerDied]
    assert len(worker.received) == 2
