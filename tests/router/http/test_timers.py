"""Laws of timers that share one timer of the event loop."""

import asyncio

from router.http.timers import GRAIN, SHORT, Timers
from tests.router.http.test_deadlines import run


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
