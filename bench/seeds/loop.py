"""Event loop in virtual time: when nothing is ready, the clock jumps to the next timer. No thread, no socket, no waiting.

Each callback belongs to the process in whose context it was made, so that a process can stand still or be gone.
"""

import asyncio
import heapq
import selectors
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar
from typing import Any

BEGINNING = 1_000.0
"""Virtual seconds on the clock at the start: no rule of a node may need the time to be small."""


class SeedProcess:
    """One run of a program on a machine: a node, a worker, a caller. What it plans is held while it stands still."""

    def __init__(self, name: str, host: int) -> None:
        self.name = name
        self.host = host
        self.frozen = 0
        """For how many reasons it stands still."""
        self.gone = False
        """Whether it was killed: it reaches nothing any more."""
        self.over = False
        """Whether nothing of it runs any more, not even what a cancelled task does at its end."""
        self.held: list[_Step | _Timer] = []


PROCESS: ContextVar[SeedProcess | None] = ContextVar("PROCESS", default=None)
"""The process that runs now."""


class Stuck(Exception):
    """Nothing is ready and nothing is planned: the simulation would wait for ever."""


class _Step(asyncio.Handle):
    __slots__ = ()

    def _run(self) -> None:
        if not _keep_back(self):
            super()._run()


class _Timer(asyncio.TimerHandle):
    __slots__ = ()

    def _run(self) -> None:
        if not _keep_back(self):
            super()._run()


def _keep_back(call: _Step | _Timer) -> bool:
    process = call._context.get(PROCESS)  # noqa: SLF001 (the class is a Handle)
    if process is None or not (process.frozen or process.over):
        return False
    if process.frozen and not process.over:
        process.held.append(call)
    return True


class VirtualTask(asyncio.Task[Any]):
    """A task that sets hold in the order in which tasks were made, wherever they lie in memory."""

    def __init__(self, work: Coroutine[Any, Any, Any], *, number: int, **given: Any) -> None:
        self.number = number
        self.process = PROCESS.get()
        super().__init__(work, **given)
        # A process that is gone leaves tasks behind that nobody ends.
        self._log_destroy_pending = False

    def __hash__(self) -> int:
        """Return its number."""
        return self.number

    def __eq__(self, other: object) -> bool:
        """Be itself alone."""
        return self is other


class _Jump(selectors.DefaultSelector):  # type: ignore[misc, valid-type]
    """Waits for nothing: what would be waited for is added to the clock."""

    now = BEGINNING

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None:
            raise Stuck
        self.now += max(timeout, 0.0)
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """The loop; a subclass of it connects its processes."""

    def __init__(self) -> None:
        self._jump = _Jump()
        self._tasks = 0
        super().__init__(self._jump)
        self.set_task_factory(self._task)

    def time(self) -> float:
        """Return the virtual time."""
        return self._jump.now

    def call_at(
        self, when: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """Plan a call."""
        self._check_closed()
        timer = _Timer(when, callback, args, self, context)
        heapq.heappush(self._scheduled, timer)
        timer._scheduled = True  # noqa: SLF001 (as the base class does)
        return timer

    def run_in_executor(  # type: ignore[override]
        self, executor: object, func: Callable[..., Any], *args: Any
    ) -> "asyncio.Future[Any]":
        """Run it here and now: there are no threads."""
        del executor
        future = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:  # noqa: BLE001 (whoever asked for it gets it)
            future.set_exception(error)
        return future

    def freeze(self, process: SeedProcess) -> None:
        """Let a process stand still: what falls due meanwhile waits."""
        process.frozen += 1

    def thaw(self, process: SeedProcess) -> None:
        """Take one reason away; without any it goes on with all that waits, in its order."""
        process.frozen = max(0, process.frozen - 1)
        if process.frozen:
            return
        held, process.held = process.held, []
        self._ready.extend(call for call in held if not call.cancelled())

    def tasks_of(self, process: SeedProcess) -> list[VirtualTask]:
        """Return a process's unfinished tasks, oldest first."""
        tasks = [t for t in asyncio.all_tasks(self) if isinstance(t, VirtualTask)]
        return sorted((t for t in tasks if t.process is process), key=lambda task: task.number)

    def _call_soon(
        self, callback: Callable[..., Any], args: tuple[Any, ...], context: Context | None
    ) -> asyncio.Handle:
        step = _Step(callback, args, self, context)
        self._ready.append(step)
        return step

    def _task(
        self, loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, Any], **given: Any
    ) -> VirtualTask:
        self._tasks += 1
        return VirtualTask(work, number=self._tasks, loop=loop, **given)
