"""Laws of the discovery of slots."""

from collections.abc import Coroutine
from typing import Any

from registry.records import Service
from router.slot_discovery import AGAIN, MAX_WORKERS, SlotDiscovery
from router.workers import Worker


class World:
    def __init__(self, slots: int) -> None:
        self.now = 0.0
        self.told = slots
        self.heard: list[int] = []
        self.work: list[Coroutine[Any, Any, None]] = []
        self.discovery = SlotDiscovery(
            {"openai_http": self},
            self,
            lambda: self.now,
            self,
        )

    async def slots(self, _: Worker) -> int:
        return self.told

    def said(self, service: Service, slots: int, now: float) -> None:
        self.heard.append(slots)

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        self.work.append(work)

    async def ask(self, worker: Worker) -> list[int]:
        self.discovery.ask(worker)
        while self.work:
            await self.work.pop()
        heard, self.heard = self.heard, []
        return heard


def worker(number: int = 0) -> Worker:
    return Worker(Service("p", str(number)), "http://w")


async def test_a_worker_is_asked_once_per_interval_and_its_answer_is_recorded() -> None:
    world = World(4)
    assert await world.ask(worker()) == [4]
    assert await world.ask(worker()) == []
    world.now = AGAIN
    assert await world.ask(worker()) == [4]


async def test_an_unknown_number_of_slots_is_not_recorded() -> None:
    assert await World(0).ask(worker()) == []


async def test_memory_is_bounded() -> None:
    world = World(1)
    for number in range(MAX_WORKERS + 10):
        await world.ask(worker(number))
    assert len(world.discovery._asked) == MAX_WORKERS
