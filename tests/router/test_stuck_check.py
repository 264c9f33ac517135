"""Laws of asking silent workers: each once at one time, and those that stopped until they live."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from router.state.stuck import SURE, Silence
from router.stuck_check import GRAIN, Vigil
from router.workers import Worker
from tests.router.world import own, until

MINE = own("http://127.0.0.1:1")
API = "http://127.0.0.1:1"


class Party:
    """A vigil over one worker, which answers when `lives` is set; time is what the test says."""

    def __init__(self) -> None:
        self.silence = Silence()
        self.waiting = self.silence.began(API, 0.0)
        self.lives = False
        self.asked = 0
        self.now = 0.0
        self.tasks: list[asyncio.Task[None]] = []
        self.vigil = Vigil(
            self.silence,
            {"openai_http": self},
            lambda: self.now,
            self,
        )

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        self.tasks.append(asyncio.ensure_future(work))

    async def alive(self, worker: Worker) -> bool:
        assert worker.api == API
        self.asked += 1
        await asyncio.sleep(0)
        return self.lives

    async def look(self, now: float) -> None:
        self.now = now
        self.vigil.look(MINE)
        self.vigil.look(MINE)
        if self.tasks:
            await asyncio.wait(self.tasks)


@pytest.fixture
async def party() -> Party:
    return Party()


async def test_nobody_is_asked_before_it_is_time_and_then_once(party: Party) -> None:
    await party.look(0.1)
    assert party.asked == 0
    await party.look(1.0)
    assert party.asked == 1


async def test_one_that_stopped_is_asked_on_though_nobody_waits_until_it_lives(
    party: Party,
) -> None:
    await party.look(SURE)
    assert party.silence.silent(API)
    party.waiting.left()
    party.now = SURE + 100
    await until(lambda: party.asked == 2, within=4 * GRAIN)
    assert party.silence.silent(API)
    party.lives = True
    party.now = SURE + 200
    await until(lambda: not party.silence.silent(API), within=4 * GRAIN)
    # Then nobody looks any more.
    await until(lambda: party.vigil._timer is None, within=4 * GRAIN)
