"""Laws of hedging: when a second worker is asked, by the usual time of answers; real workers, real cancellations."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.errors import WorkerFailed
from router.hedge import FEWEST, MAX_MODELS, SAMPLES, SHORTEST_WAIT, LatencyQuantiles
from router.requests import Kind
from tests.router.test_dispatch import World, several
from tests.router.world import QUICK, chat, links, own, until
from tests.workers.openai_worker import OpenAIWorker

Scene = tuple[World, OpenAIWorker, OpenAIWorker]
HEDGING = QUICK.model_copy(update={"hedge": True})


@pytest.fixture(params=[HEDGING])
async def scene(request: pytest.FixtureRequest) -> AsyncIterator[Scene]:
    """Two workers that are known to answer quickly; the first is tried first."""
    async with links(request.param) as own_links, several(2) as (first, second):
        world = World(own_links)
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


def told(
    usual: LatencyQuantiles, *seconds: float, model: str = "m", kind: Kind = Kind.CHAT
) -> float | None:
    for value in seconds:
        usual.record(model, kind, value)
    return usual.slow_latency(model, kind)


def test_few_answers_give_no_usual_time() -> None:
    usual = LatencyQuantiles()
    assert told(usual, *[1.0] * (FEWEST - 1)) is None
    assert told(usual, 1.0) == 1.0


def test_the_usual_time_is_the_95th_percentile() -> None:
    assert told(LatencyQuantiles(), *map(float, range(100))) == 95.0


def test_each_model_and_kind_has_its_own_usual_time() -> None:
    usual = LatencyQuantiles()
    told(usual, *[9.0] * SAMPLES)
    assert told(usual, *[1.0] * SAMPLES, kind=Kind.EMBEDDING) == 1.0
    assert told(usual, model="another") is None


def test_the_number_of_remembered_models_is_bounded() -> None:
    usual = LatencyQuantiles()
    for n in range(MAX_MODELS + 5):
        told(usual, 1.0, model=str(n))
    assert len(usual._latencies) == MAX_MODELS


@given(st.lists(st.floats(0, 100), min_size=FEWEST, max_size=3 * SAMPLES))
def test_only_the_latest_answers_count(seconds: list[float]) -> None:
    last = sorted(seconds[-SAMPLES:])
    assert told(LatencyQuantiles(), *seconds) == last[len(last) * 19 // 20]
