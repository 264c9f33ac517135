"""A slot stays taken while its worker works on a request whose caller has left."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from registry.records import Service
from router.slot_wait import MAX_NOTES, LingeringSlots

ONE, OTHER = Service("p", "one"), Service("p", "other")


class World:
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
        return self.lingering.keeps(service, self)


async def test_a_slot_without_a_note_is_free_at_once() -> None:
    world = World()
    assert not world.ended(ONE)
    world.lingering.note(OTHER, asyncio.Event().wait)
    assert not world.ended(ONE)


async def test_a_noted_slot_is_released_when_its_worker_is_free() -> None:
    world, free = World(), asyncio.Event()
    world.lingering.note(ONE, free.wait)
    assert world.ended(ONE)
    assert not world.ended(ONE)
    await asyncio.sleep(0)
    assert (world.released, world.lingering.kept) == ([], 1)
    free.set()
    await world.tasks[0]
    assert (world.released, world.lingering.kept) == ([ONE], 0)


async def test_a_slot_is_released_after_the_longest_time() -> None:
    world = World(longest=0.01)
    world.lingering.note(ONE, asyncio.Event().wait)
    assert world.ended(ONE)
    await world.tasks[0]
    assert world.released == [ONE]


async def test_cancelling_the_task_releases_the_slot() -> None:
    world = World()
    world.lingering.note(ONE, asyncio.Event().wait)
    world.ended(ONE)
    await asyncio.sleep(0)
    world.tasks[0].cancel()
    with pytest.raises(asyncio.CancelledError):
        await world.tasks[0]
    assert world.released == [ONE]


async def test_unused_notes_are_bounded() -> None:
    world = World()
    for _ in range(MAX_NOTES + 1):
        world.lingering.note(ONE, asyncio.Event().wait)
    kept = [world.ended(ONE) for _ in range(MAX_NOTES + 1)]
    assert kept == [True] * MAX_NOTES + [False]
    for task in world.tasks:
        task.cancel()
    await asyncio.wait(world.tasks)
