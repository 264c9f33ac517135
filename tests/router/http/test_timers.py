"""Laws of timers that share one timer of the event loop."""

import asyncio

import pytest

from router.http.errors import WaitEnded
from router.http.timers import GRAIN, SHORT, Deadlines, Timers


class Wait:
    """A wait that records when it fired, and then calls `then`."""

    def __init__(self, then=lambda: None) -> None:
        self.fired: list[float] = []
        self._then = then

    def fire(self) -> None:
        self.fired.append(asyncio.get_running_loop().time())
        self._then()


def test_a_long_wait_fires_once_within_two_grains_and_a_short_one_precisely():
    async def wait():
        timers, long, short = Timers(), Wait(), Wait()
        timers.start(long, SHORT)
        timers.start(short, 0.05)
        await asyncio.sleep(4 * SHORT)
        return long.fired, short.fired, timers

    (long,), short, timers = run(wait())
    assert SHORT <= long <= SHORT + 2 * GRAIN
    assert short == [0.05]
    assert not timers.waiting()
    assert timers._timer is None


def test_a_stopped_wait_does_not_fire_even_if_one_due_at_the_same_time_stops_it():
    async def wait():
        timers = Timers()
        last, early, short = Wait(), Wait(), Wait()
        first = Wait(lambda: timers.stop(last, slot))
        timers.start(first, SHORT)
        slot = timers.start(last, SHORT)
        timers.stop(early, timers.start(early, SHORT))
        timers.stop(short, timers.start(short, 0.05))
        await asyncio.sleep(2 * SHORT)
        return first, last, early, short, timers

    first, *others, timers = run(wait())
    assert len(first.fired) == 1
    assert [other.fired for other in others] == [[], [], []]
    assert not timers.waiting()


def test_a_wait_that_restarts_when_it_fires_fires_again():
    async def wait():
        timers = Timers()
        again = Wait(lambda: timers.start(again, SHORT))
        timers.start(again, SHORT)
        await asyncio.sleep(3.5 * SHORT)
        return again.fired

    assert len(run(wait())) == 3


def test_a_wait_that_raises_does_not_affect_others():
    def fail():
        raise KeyError

    async def wait():
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)
        timers, failing, other, later = Timers(), Wait(fail), Wait(), Wait()
        for timed in (failing, other):
            timers.start(timed, SHORT)
        timers.start(later, 2 * SHORT)
        await asyncio.sleep(4 * SHORT)
        return failing, other, later

    assert [len(waited.fired) for waited in run(wait())] == [1, 1, 1]


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

        tasks = [asyncio.ensure_future(body()) for _ in range(3)]
        await asyncio.sleep(0)
        began = loop.time()
        deadlines.end_waits()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        assert {type(outcome) for outcome in outcomes} == {WaitEnded}
        assert loop.time() - began < LONG / 2
        assert not deadlines.timers.waiting()

    run(given_up())
