"""Laws of deadlines that share a timer."""

import asyncio

import pytest

from router.http.deadlines import Deadlines
from router.http.errors import WaitEnded
from router.http.timers import GRAIN

LONG = 8 * GRAIN


class Clock(asyncio.SelectorEventLoop):
    """An event loop whose time stands still, and jumps to the next timer when nothing else is ready."""

    now = 0.0

    def time(self) -> float:
        return self.now

    def _run_once(self) -> None:
        if not self._ready and self._scheduled:
            self.now = max(self.now, self._scheduled[0].when())
        super()._run_once()


def run(work):
    with asyncio.Runner(loop_factory=Clock) as runner:
        return runner.run(work)


def test_a_body_that_takes_longer_is_cancelled_with_a_timeout():
    async def slow():
        loop = asyncio.get_running_loop()
        began = loop.time()
        with pytest.raises(TimeoutError):
            async with Deadlines().within(LONG):
                await asyncio.sleep(1000)
        return loop.time() - began

    assert LONG <= run(slow()) <= LONG + 2 * GRAIN


def test_a_body_that_ends_in_time_is_left_alone():
    async def quick():
        deadlines = Deadlines()
        async with deadlines.within(LONG):
            await asyncio.sleep(LONG / 2)
        await asyncio.sleep(LONG * 2)
        return deadlines

    deadlines = run(quick())
    assert not deadlines.timers.waiting()
    assert deadlines.timers._timer is None


def test_cancelling_the_task_raises_no_timeout():
    async def cancelled():
        async def body():
            async with Deadlines().within(LONG):
                await asyncio.sleep(1000)

        task = asyncio.ensure_future(body())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    run(cancelled())


def test_an_exception_of_the_body_passes_through():
    async def failing():
        with pytest.raises(KeyError):
            async with Deadlines().within(LONG):
                raise KeyError

    run(failing())


def test_an_inner_deadline_does_not_end_the_outer_body():
    async def nested():
        deadlines = Deadlines()
        async with deadlines.within(LONG * 10):
            with pytest.raises(TimeoutError):
                async with deadlines.within(LONG):
                    await asyncio.sleep(1000)
            await asyncio.sleep(0)
            return asyncio.current_task().cancelling()

    assert run(nested()) == 0


def test_a_short_deadline_is_precise():
    async def short():
        loop = asyncio.get_running_loop()
        began = loop.time()
        with pytest.raises(TimeoutError):
            async with Deadlines().within(0.05):
                await asyncio.sleep(1000)
        return loop.time() - began

    assert 0.05 <= run(short()) < 0.06 + GRAIN / 2


def test_an_infinite_deadline_never_expires():
    async def endless():
        async with Deadlines().within(float("inf")):
            await asyncio.sleep(100_000)

    run(endless())


def test_giving_up_ends_every_wait_at_once_with_given_up():
    async def given_up():
        deadlines = Deadlines()
        loop = asyncio.get_running_loop()

        async def body():
            async with deadlines.within(LONG):
                await asyncio.sleep(1000)

        waits = [asyncio.ensure_future(body()) for _ in range(3)]
        await asyncio.sleep(0)
        began = loop.time()
        deadlines.give_up()
        outcomes = await asyncio.gather(*waits, return_exceptions=True)
        assert {type(outcome) for outcome in outcomes} == {WaitEnded}
        assert loop.time() - began < LONG / 2
        assert not deadlines.timers.waiting()

    run(given_up())
