"""Laws of hedging, asking a second worker when the first is slow: real workers, real cancellations."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from router.errors import WorkerFailed
from router.hedge import FEWEST, SHORTEST_WAIT
from router.requests import Kind
from tests.router.test_dispatch import World, several
from tests.router.world import QUICK, chat, links, own, until
from tests.workers.openai_worker import OpenAIWorker

Scene = tuple[World, OpenAIWorker, OpenAIWorker]
HEDGING = QUICK.model_copy(update={"hedge": True})


@pytest.fixture(params=[HEDGING])
async def scene(request: pytest.FixtureRequest) -> AsyncIterator[Scene]:
    """Two workers that are known to answer quickly; the first is tried first."""
    async with links(request.param) as ours, several(2) as (first, second):
        world = World(ours)
        world.serve(own(first.url, cid="1"), own(second.url, cid="2"))
        for _ in range(FEWEST):
            await world.ask(chat())
        assert (len(first.received), len(second.received)) == (FEWEST, 0)
        yield world, first, second
        assert not world.router.in_flight


async def test_the_second_worker_may_overtake_the_first_which_is_cancelled_at_once(
    scene: Scene,
) -> None:
    world, first, second = scene
    first.fail(hang=True)
    clock = asyncio.get_running_loop().time
    began = clock()
    _, attempts = await world.ask(chat())
    assert SHORTEST_WAIT <= clock() - began < 1.0
    assert (attempts, second.served) == (2, 1)
    await until(lambda: first.hung_up == 1, within=0.5)
    assert world.router.events["hedged"] == world.router.events["hedges_won"] == 1
    # Nothing was learnt about the cancelled worker.
    assert [outcome.candidate.service.cid for outcome in world.outcomes[FEWEST:]] == ["2"]


async def test_the_first_worker_may_still_win_and_then_the_second_is_cancelled(
    scene: Scene,
) -> None:
    world, first, second = scene
    first.fail(delay_headers=0.3)
    second.fail(hang=True)
    _, attempts = await world.ask(chat())
    assert attempts == 1
    await until(lambda: second.hung_up == 1, within=0.5)
    assert (world.router.events["hedged"], world.router.events["hedges_won"]) == (1, 0)


async def test_failed_attempts_are_retried_as_without_hedging(scene: Scene) -> None:
    world, first, second = scene
    first.fail(status=500)
    assert (await world.ask(chat()))[1] == 2
    first.fail(status=500, delay_headers=0.2)
    second.fail(status=500, delay_headers=0.2)
    with pytest.raises(WorkerFailed):
        await world.ask(chat())
    first.fail(hang=True)
    second.fail(status=500)
    asking = asyncio.ensure_future(world.ask(chat()))
    await until(lambda: first.faults.hang and len(second.received) > 2)
    assert not asking.done()
    asking.cancel()
    await asyncio.wait([asking])


async def test_a_caller_that_leaves_frees_both_workers(scene: Scene) -> None:
    world, first, second = scene
    first.fail(hang=True)
    second.fail(hang=True)
    asking = asyncio.ensure_future(world.ask(chat()))
    await until(lambda: len(second.received) == 1)
    assert world.router.in_flight.total() == 2
    asking.cancel()
    await asyncio.wait([asking])
    await until(lambda: first.hung_up == second.hung_up == 1, within=0.5)


async def test_streams_and_kinds_whose_usual_time_is_unknown_are_not_hedged(
    scene: Scene,
) -> None:
    world, first, second = scene
    first.fail(delay_headers=0.3, delay_first=0.3)
    await world.ask(chat(stream=True))
    await world.ask(replace(chat(), kind=Kind.EMBEDDING))
    assert second.received == []


async def test_a_busy_worker_is_not_used_for_hedging(scene: Scene) -> None:
    world, first, second = scene
    first.fail(delay_headers=0.3)
    [busy] = [c for c in world.router.explain(chat()).ordered if c.service.cid == "2"]
    world.router.in_flight.occupancies[busy.key].change(1, now=0.0)
    await world.ask(chat())
    world.router.in_flight.occupancies[busy.key].change(-1, now=0.0)
    assert second.received == []


@pytest.mark.parametrize("scene", [QUICK], indirect=True)
async def test_requests_are_not_hedged_unless_the_setting_is_on(scene: Scene) -> None:
    world, first, second = scene
    first.fail(delay_headers=0.3)
    await world.ask(chat())
    assert second.received == []


async def test_hedges_are_bounded_by_the_retry_budget(scene: Scene) -> None:
    world, first, second = scene
    first.fail(delay_headers=0.1)
    second.fail(delay_headers=1.0)
    for _ in range(40):
        await world.ask(chat())
    # The share of 60 requests would be 12, so the reserve counts.
    assert world.router.events["hedged"] == 30
