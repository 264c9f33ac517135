"""Laws of probing silent workers: one probe per worker at a time, and repeated until a stopped one answers."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from router.state.stuck import SURE, StuckWorkers
from router.stuck_check import GRAIN, StuckCheck
from router.workers import Worker
from tests.router.world import own, until

MINE = own("http://127.0.0.1:1")
API = "http://127.0.0.1:1"


class Party:
    """A stuck_check over one worker, which answers if `lives` is set; the test sets the time."""

    def __init__(self) -> None:
        self.stuck = StuckWorkers()
        self.waiting = self.stuck.record_request(API, 0.0)
        self.lives = False
        self.asked = 0
        self.now = 0.0
        self.tasks: list[asyncio.Task[None]] = []
        self.stuck_check = StuckCheck(
            self.stuck,
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
        self.stuck_check.probe_if_due(MINE)
        self.stuck_check.probe_if_due(MINE)
        if self.tasks:
            await asyncio.wait(self.tasks)


@pytest.fixture
async def party() -> Party:
    return Party()


async def test_a_worker_is_probed_once_and_not_before_it_is_time(party: Party) -> None:
    await party.look(0.1)
    assert party.asked == 0
    await party.look(1.0)
    assert party.asked == 1


async def test_a_stopped_worker_is_probed_without_waiting_requests_until_it_answers(
    party: Party,
) -> None:
    await party.look(SURE)
    assert party.stuck.is_silent(API)
    party.waiting.record_no_answer()
    party.now = SURE + 100
    await until(lambda: party.asked == 2, within=4 * GRAIN)
    assert party.stuck.is_silent(API)
    party.lives = True
    party.now = SURE + 200
    await until(lambda: not party.stuck.is_silent(API), within=4 * GRAIN)
    # After that the timer is stopped.
    await until(lambda: party.stuck_check._timer is None, within=4 * GRAIN)
