"""The thread that runs trio: what crosses between it and asyncio, and how it comes back after a death."""

import asyncio
import errno
import threading
from collections.abc import Callable

import pytest
import trio

from registry.errors import MeshDown
from registry.mesh.libp2p.thread import AsyncioCallFailed, TrioThread
from tests.registry.mesh.worlds import until


class Runs:
    """A thread under test, with what its supervisor reported."""

    def __init__(self) -> None:
        self.heard: list[str] = []
        self.fail_next = False
        self.thread: TrioThread[str] = TrioThread(self)

    def came_up(self, _: str) -> None:
        self.heard.append("up")

    def went_down(self) -> None:
        self.heard.append("down")

    async def run(self, ready: Callable[[str], object]) -> None:
        if self.fail_next:
            raise OSError("the port is taken")
        self.bomb = trio.Event()
        ready("place")
        await self.bomb.wait()
        raise RuntimeError("a fault of the library")


async def test_results_and_exceptions_of_a_call_cross_from_trio_to_asyncio() -> None:
    runs = Runs()
    await runs.thread.start(timeout=5)

    async def double(number: int) -> int:
        await trio.lowlevel.checkpoint()
        return 2 * number

    async def fail() -> None:
        raise KeyError("from trio")

    assert await runs.thread.call(double, 21) == 42
    with pytest.raises(KeyError, match="from trio"):
        await runs.thread.call(fail)
    await runs.thread.stop(timeout=5)


async def test_a_cancelled_call_is_cancelled_in_trio() -> None:
    runs = Runs()
    await runs.thread.start(timeout=5)
    begun, ended = threading.Event(), threading.Event()

    async def linger() -> None:
        begun.set()
        try:
            await trio.sleep_forever()
        finally:
            ended.set()

    async with asyncio.TaskGroup() as tasks:
        calling = tasks.create_task(runs.thread.call(linger))
        await until(begun.is_set)
        calling.cancel()
    await until(ended.is_set)
    await runs.thread.stop(timeout=5)


async def test_a_visit_from_trio_to_asyncio_returns_raises_and_is_cancelled() -> None:
    runs = Runs()
    await runs.thread.start(timeout=5)
    cancelled = asyncio.Event()

    async def greet(name: str) -> str:
        return f"hello {name}"

    async def fail() -> None:
        raise ValueError("ours")

    async def linger() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    async def visit_briefly() -> None:
        with trio.move_on_after(0.05):
            await runs.thread.call_asyncio(linger)

    assert await runs.thread.call(runs.thread.call_asyncio, greet, "you") == "hello you"
    with pytest.raises(AsyncioCallFailed):
        await runs.thread.call(runs.thread.call_asyncio, fail)
    await runs.thread.call(visit_briefly)
    async with asyncio.timeout(5):
        await cancelled.wait()
    await runs.thread.stop(timeout=5)


async def test_a_death_of_the_run_fails_its_calls_and_a_new_run_begins() -> None:
    runs = Runs()
    await runs.thread.start(timeout=5)
    calling = asyncio.gather(runs.thread.call(trio.sleep_forever), return_exceptions=True)
    await asyncio.sleep(0)
    runs.thread.post(runs.bomb.set)
    assert [type(outcome) for outcome in await calling] == [MeshDown]
    await until(lambda: runs.heard == ["up", "down", "up"])
    await runs.thread.call(trio.sleep, 0)
    await runs.thread.stop(timeout=5)
    assert runs.heard == ["up", "down", "up", "down"]
    with pytest.raises(MeshDown):
        await runs.thread.call(trio.sleep, 0)


async def test_a_run_that_cannot_begin_says_why_and_is_not_tried_again() -> None:
    threads = threading.active_count()
    runs = Runs()
    runs.fail_next = True
    with pytest.raises(MeshDown, match="the port is taken"):
        await runs.thread.start(timeout=5)
    await runs.thread.stop(timeout=5)
    assert threading.active_count() == threads
    assert runs.heard == []


class Closing:
    """The token of a run that is ending: what would wake it is closed, but the run does not say so yet."""

    def run_sync_soon(self, *_: object) -> None:
        raise OSError(errno.EBADF, "Bad file descriptor")


async def test_a_run_that_is_ending_just_now_is_down(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = Runs()
    await runs.thread.start(timeout=5)
    with monkeypatch.context() as moment:
        moment.setattr(runs.thread, "_token", Closing())
        with pytest.raises(MeshDown):
            await runs.thread.call(trio.sleep, 0)
        runs.thread.post(runs.bomb.set)
    assert not runs.bomb.is_set()
    await runs.thread.call(trio.sleep, 0)
    await runs.thread.stop(timeout=5)
