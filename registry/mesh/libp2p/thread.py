"""Thread in which trio runs beside asyncio; the two communicate only through this module.

`call` crosses from asyncio to trio, `call_asyncio` from trio to asyncio; cancellation and exceptions cross both ways.
When the trio run dies, its calls fail with `MeshDown` and it is restarted, after a longer delay each time.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any, Generic, Protocol, TypeVar

import trio

from registry.errors import MeshDown
from registry.task_group import BackgroundTasks

_log = logging.getLogger("modelvine.mesh")
_Result = TypeVar("_Result")
_Server = TypeVar("_Server")

FIRST_DELAY = 0.2
LAST_DELAY = 5.0
"""Seconds before a dead run is restarted: the first time, and at most. The delay doubles in between."""

STEADY = 30.0
"""Seconds of uptime after which the next restart uses the first delay again."""


class AsyncioCallFailed(Exception):
    """Work on the asyncio side raised or was cancelled; its owner has logged why."""


class Supervised(Protocol[_Server]):
    """What runs in the thread. The object that serves its calls is another one after each restart."""

    async def run(self, ready: Callable[[_Server], object]) -> None:
        """Start in trio, call `ready` with the object that serves calls, and continue until cancelled."""

    def came_up(self, server: _Server) -> None:
        """Take the object that serves calls; called on the asyncio side."""

    def went_down(self) -> None:
        """Give that object up, after each death; called on the asyncio side."""


def living_tasks() -> int:
    """Return the number of live tasks; call this from trio."""
    return trio.lowlevel.current_statistics().tasks_living


class TrioThread(Generic[_Server]):
    """A supervised trio run."""

    def __init__(self, supervised: Supervised[_Server]) -> None:
        self._supervised = supervised
        self._tasks = BackgroundTasks()
        self._calls: set[asyncio.Future[Any]] = set()
        self._stopping = threading.Event()
        self._server: _Server | None = None
        self._token: trio.lowlevel.TrioToken | None = None
        self._nursery: trio.Nursery | None = None
        self._thread: threading.Thread | None = None

    async def start(self, *, timeout: float) -> None:
        """Start the thread and return once the run is ready; raise `MeshDown` when it could not begin."""
        self._loop = asyncio.get_running_loop()
        self._begun: asyncio.Future[None] = self._loop.create_future()
        self._ended = asyncio.Event()
        self._thread = threading.Thread(target=self._supervise, name="mesh", daemon=True)
        self._thread.start()
        try:
            async with asyncio.timeout(timeout):
                await self._begun
        except TimeoutError as error:
            await self.stop(timeout=timeout)
            raise MeshDown(f"the mesh did not start within {timeout} s") from error

    async def stop(self, *, timeout: float) -> None:
        """End the run, its thread and the work for peers, in that order, within about `timeout` seconds."""
        self._stopping.set()
        if self._thread is None:
            return
        self._post(self._cancel)
        try:
            async with asyncio.timeout(timeout):
                await self._ended.wait()
            self._thread.join(timeout)
        except TimeoutError:
            # The thread is a daemon, so even a stuck one cannot keep the process alive.
            _log.error("the mesh's thread did not end within %s s", timeout)
        self._fail_calls()
        await self._tasks.cancel_all()

    async def call(self, work: Callable[..., Awaitable[_Result]], *args: object) -> _Result:
        """Run `work(*args)` in trio and return what it returns; raise `MeshDown` when the run is dead."""
        answer: asyncio.Future[_Result] = self._loop.create_future()
        scope = trio.CancelScope()

        async def run() -> None:
            try:
                with scope:
                    self._settle(answer, await work(*args))
            except Exception as error:  # noqa: BLE001 (it crosses to the caller, who names what it can act on)
                self._settle(answer, error)

        self._calls.add(answer)
        answer.add_done_callback(self._calls.discard)
        try:
            if self._server is None or not self._post(self._begin, run):
                raise MeshDown("the mesh is down")
            return await answer
        finally:
            if not answer.done() or answer.cancelled():
                self._post(scope.cancel)
            answer.cancel()

    def post(self, work: Callable[..., object], *args: object) -> None:
        """Run a synchronous `work(*args)` in trio soon, if the run is up; it must not raise."""
        self._post(work, *args)

    async def call_asyncio(
        self, work: Callable[..., Coroutine[Any, Any, _Result]], *args: object
    ) -> _Result:
        """Run `work(*args)` on the asyncio side, called from trio; raise `AsyncioCallFailed` when it fails there."""
        back, token = trio.Event(), trio.lowlevel.current_trio_token()
        tasks: list[asyncio.Task[_Result]] = []

        def ended(_: object) -> None:
            with suppress(trio.RunFinishedError):
                token.run_sync_soon(back.set)

        def begin() -> None:
            tasks.append(self._tasks.spawn(work(*args)))
            tasks[0].add_done_callback(ended)

        def cancel() -> None:
            for task in tasks:
                task.cancel()

        if self._stopping.is_set() or not self.post_asyncio(begin):
            raise AsyncioCallFailed
        try:
            await back.wait()
        except trio.Cancelled:
            self.post_asyncio(cancel)
            raise
        (task,) = tasks
        if task.cancelled() or task.exception() is not None:
            raise AsyncioCallFailed
        return task.result()

    def post_asyncio(self, work: Callable[..., object], *args: object) -> bool:
        """Run a synchronous `work(*args)` on the asyncio side, called from trio; return whether its loop is open."""
        try:
            self._loop.call_soon_threadsafe(work, *args)
        except RuntimeError:  # the loop is closed
            return False
        return True

    def _supervise(self) -> None:
        delay = FIRST_DELAY
        while not self._stopping.is_set():
            began = time.monotonic()
            # A new thread for each run: an error in trio's own core leaves its thread unable to run trio again.
            thread = threading.Thread(target=self._live, name="libp2p", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:
                # The system allows no more threads.
                self._report(error)
            else:
                thread.join()
            self._token = self._nursery = None
            self.post_asyncio(self._died)
            if time.monotonic() - began > STEADY:
                delay = FIRST_DELAY
            self._stopping.wait(delay)
            delay = min(2 * delay, LAST_DELAY)
        self.post_asyncio(self._ended.set)

    def _live(self) -> None:
        try:
            trio.run(self._root)
        except BaseException as error:  # noqa: BLE001 (the supervisor: whatever kills the run, it comes back)
            self._report(error)

    def _report(self, error: BaseException) -> None:
        if self._begun.done() and not self._stopping.is_set():
            _log.warning("the mesh failed, and restarts: %r", first_error(error))
            _log.debug("the mesh failed", exc_info=error)
        self.post_asyncio(self._refuse_start, error)

    def _refuse_start(self, error: BaseException) -> None:
        if not self._begun.done():
            self._stopping.set()
            failure = MeshDown(f"the mesh could not start: {first_error(error)}")
            failure.__cause__ = error
            self._begun.set_exception(failure)

    async def _root(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            if self._stopping.is_set():
                return
            await self._supervised.run(lambda server: self.post_asyncio(self._ready, server))
            nursery.cancel_scope.cancel()

    def _ready(self, server: _Server) -> None:
        self._server = server
        self._supervised.came_up(server)
        if not self._begun.done():
            self._begun.set_result(None)

    def _died(self) -> None:
        self._fail_calls()
        if self._server is not None:
            self._server = None
            self._supervised.went_down()

    def _fail_calls(self) -> None:
        for answer in tuple(self._calls):
            if not answer.done():
                answer.set_exception(MeshDown("the mesh went down"))

    def _begin(self, run: Callable[[], Coroutine[Any, Any, None]]) -> None:
        # A closed nursery raises, and an exception here would kill the run; `_died` answers the caller.
        with suppress(RuntimeError):
            if self._nursery is not None:
                self._nursery.start_soon(run)

    def _cancel(self) -> None:
        if self._nursery is not None:
            self._nursery.cancel_scope.cancel()

    def _settle(self, answer: "asyncio.Future[_Result]", outcome: _Result | Exception) -> None:
        self.post_asyncio(_settle, answer, outcome)

    def _post(self, work: Callable[..., object], *args: object) -> bool:
        try:
            if self._token is None:
                return False
            self._token.run_sync_soon(work, *args)
        except (trio.RunFinishedError, OSError):
            # A run that is ending has already closed the socket that wakes it.
            return False
        return True


def _settle(answer: "asyncio.Future[Any]", outcome: object) -> None:
    if answer.done():
        return
    if isinstance(outcome, Exception):
        answer.set_exception(outcome)
    else:
        answer.set_result(outcome)


def first_error(error: BaseException) -> BaseException:
    """Return the first plain error inside nested groups."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
