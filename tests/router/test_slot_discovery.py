"""Laws of the discovery of slots."""

import asyncio

from registry.records import Service
from registry.task_group import BackgroundTasks
from router.slot_discovery import AGAIN, MAX_WORKERS, SlotDiscovery
from router.state.concurrency import Limits
from router.workers import Worker


class World:
    def __init__(self, slots: int) -> None:
        self.now = 0.0
        self.told = slots
        self.asked = 0
        self.limits, self.crew = Limits(), BackgroundTasks()
        self.discovery = SlotDiscovery(
            {"openai_http": self}, self.limits, lambda: self.now, self.crew
        )

    async def slots(self, _: Worker) -> int:
        self.asked += 1
        return self.told

    async def ask(self, worker: Worker) -> int:
        """Have a worker asked if it is time to; return the limit that is known then."""
        self.discovery.query_if_due(worker)
        for _ in range(3):
            await asyncio.sleep(0)
        return self.limits.limit_of(worker.service)


def worker(number: int = 0) -> Worker:
    return Worker(Service("p", str(number)), "http://w")


async def test_a_worker_is_asked_once_per_interval_and_its_answer_is_recorded() -> None:
    world = World(4)
    assert (await world.ask(worker()), world.asked) == (4, 1)
    world.told = 5
    assert (await world.ask(worker()), world.asked) == (4, 1)
    world.now = AGAIN
    assert (await world.ask(worker()), world.asked) == (5, 2)


async def test_an_unknown_number_of_slots_is_not_recorded() -> None:
    world = World(0)
    assert (await world.ask(worker()), world.limits.changes) == (0, 0)


async def test_memory_is_bounded() -> None:
    world = World(1)
    for number in range(MAX_WORKERS + 10):
        await world.ask(worker(number))
    assert len(world.discovery._queried_at) == MAX_WORKERS
