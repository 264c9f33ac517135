"""Laws of whom a request is put to, and of the slot that it holds by then."""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import pytest

from router import policies
from router.choice import Choosing
from router.errors import NobodyServes, NoCapacity, UnknownModel, WorkerFailed
from router.ledger import Ledger
from router.requests import Kind
from router.select.candidates import Candidate, Reason
from router.state.circuit import TRIP
from router.workers import Workers
from router.world import LoneWorld
from tests.router.world import OWN, QUICK, chat, own

NARROW = own("http://127.0.0.1:1", cid="1", capacity=1)
OTHER = own("http://127.0.0.1:2", cid="2")


@dataclass
class Scene:
    """A choice among this machine's workers."""

    world: LoneWorld = field(
        default_factory=lambda: LoneWorld(OWN.peer, Workers.of([NARROW.worker]))  # type: ignore[list-item]
    )

    def __post_init__(self) -> None:
        self.ledger = Ledger(self.world, QUICK, now=lambda: 0.0, random=lambda: 0.5)
        self.choosing = Choosing(
            self.ledger, world=self.world, policy=policies.load("p2c"), random=lambda: 0.5
        )

    def serve(self, *candidates: Candidate) -> None:
        self.world.workers = Workers.of(c.worker for c in candidates if c.worker is not None)


@pytest.fixture
def scene() -> Iterator[Scene]:
    made = Scene()
    yield made
    assert not made.ledger.in_flight


async def test_who_has_a_slot_is_chosen_and_none_is_taken_for_it_yet(scene: Scene) -> None:
    [chosen], holds_slot = await scene.choosing.ordered(chat())
    assert (chosen.service, holds_slot) == (NARROW.service, False)
    assert scene.choosing.explain(chat()).ordered == (chosen,)


async def test_who_waited_for_a_slot_holds_it(scene: Scene) -> None:
    scene.ledger.began(NARROW, holds_slot=False)
    waiting = asyncio.ensure_future(scene.choosing.ordered(chat()))
    await asyncio.sleep(0)
    assert [e.reason for e in scene.choosing.explain(chat()).excluded] == [Reason.FULL]
    scene.ledger.release(NARROW.service)
    [chosen], holds_slot = await waiting
    assert (chosen.service, holds_slot) == (NARROW.service, True)
    assert scene.ledger.in_flight == {NARROW.key: 1}
    scene.ledger.release(NARROW.service)


async def test_a_worker_that_is_unregistered_meanwhile_is_nobody(scene: Scene) -> None:
    scene.ledger.began(NARROW, holds_slot=False)
    waiting = asyncio.ensure_future(scene.choosing.ordered(chat()))
    await asyncio.sleep(0)
    scene.serve()
    scene.ledger.release(NARROW.service)
    with pytest.raises(NobodyServes, match="unregistered"):
        await waiting


async def test_a_slot_of_one_that_is_well_is_waited_for_rather_than_one_that_failed_is_asked(
    scene: Scene,
) -> None:
    scene.serve(NARROW, OTHER)
    for _ in range(TRIP):
        crowd = scene.ledger.began(OTHER, holds_slot=False)
        scene.ledger.ended(chat(), OTHER, None, WorkerFailed("no"), 0.1, crowd)
    scene.ledger.began(NARROW, holds_slot=False)
    with pytest.raises(NoCapacity):
        await scene.choosing.ordered(replace(chat(), waits=False))
    scene.ledger.release(NARROW.service)


async def test_a_name_that_nobody_offers_is_unknown(scene: Scene) -> None:
    with pytest.raises(UnknownModel):
        await scene.choosing.ordered(chat("llamma"))


async def test_a_slot_of_a_quick_worker_is_waited_for_rather_than_a_slow_one_is_asked(
    scene: Scene,
) -> None:
    scene.serve(NARROW, OTHER)
    for candidate, seconds in ((NARROW, 0.5), (OTHER, 8.0)):
        times = scene.ledger.times.estimator(candidate.service, Kind.CHAT, shares=False)
        times.take(seconds, kilobytes=0, tokens=0, concurrency=1)
    scene.ledger.waiting.took(chat().model, 0.5)
    scene.ledger.began(NARROW, holds_slot=False)
    waiting = asyncio.ensure_future(scene.choosing.ordered(chat()))
    await asyncio.sleep(0)
    scene.ledger.release(NARROW.service)
    [chosen], holds_slot = await waiting
    assert (chosen.service, holds_slot) == (NARROW.service, True)
    # With a long queue before it, the slow one would be sooner done.
    scene.ledger.waiting.took(chat().model, 500.0)
    [chosen], holds_slot = await scene.choosing.ordered(chat())
    assert (chosen.service, holds_slot) == (OTHER.service, False)
    scene.ledger.release(NARROW.service)
