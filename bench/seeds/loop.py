"""Event loop in virtual time: if nothing is ready, the clock jumps to the next timer. No thread, no socket, no waiting.

Each callback belongs to the process in whose context it was created, so that a process can be frozen or killed.
"""

import asyncio
import heapq
import selectors
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar
from typing import Any

BEGINNING = 1_000.0
"""Virtual seconds on the clock at the start, as no rule of a node may rely on a small time."""


class SeedProcess:
    """One run of a program on a machine: a node, a worker or a caller. Its due callbacks are held while it is frozen."""

    def __init__(self, name: str, host: int) -> None:
        self.name = name
        self.host = host
        self.frozen = 0
        """Number of reasons for which it is frozen."""
        self.gone = False
        """Whether it was killed, and cannot reach anything any more."""
        self.over = False
        """Whether none of its code runs any more, not even the clean-up of cancelled tasks."""
        self.held: list[_Step | _Timer] = []


PROCESS: ContextVar[SeedProcess | None] = ContextVar("PROCESS", default=None)
"""The process that runs now."""


class Stuck(Exception):
    """Nothing is ready and nothing is planned, so the simulation would wait for ever."""


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
    """Task with a hash by its number, so that the order of sets does not depend on memory addresses."""

    def __init__(self, work: Coroutine[Any, Any, Any], *, number: int, **options: Any) -> None:
        self.number = number
        self.process = PROCESS.get()
        super().__init__(work, **options)
        # A killed process leaves unfinished tasks behind.
        self._log_destroy_pending = False

    def __hash__(self) -> int:
        """Return its number."""
        return self.number

    def __eq__(self, other: object) -> bool:
        """Return whether it is the same object."""
        return self is other


class _Jump(selectors.DefaultSelector):  # type: ignore[misc, valid-type]
    """Selector that does not wait: it adds the timeout to the clock."""

    now = BEGINNING

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None:
            raise Stuck
        self.now += max(timeout, 0.0)
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """Event loop in virtual time; its subclass `Wires` connects the processes."""

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
        """Schedule a call."""
        self._check_closed()
        timer = _Timer(when, callback, args, self, context)
        heapq.heappush(self._scheduled, timer)
        timer._scheduled = True  # noqa: SLF001 (as the base class does)
        return timer

    def run_in_executor(  # type: ignore[override]
        self, executor: object, func: Callable[..., Any], *args: Any
    ) -> "asyncio.Future[Any]":
        """Run the function at once, as there are no threads."""
        del executor
        future = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:  # noqa: BLE001 (the awaiting task gets it)
            future.set_exception(error)
        return future

    def freeze(self, process: SeedProcess) -> None:
        """Freeze a process: callbacks that fall due meanwhile are held."""
        process.frozen += 1

    def thaw(self, process: SeedProcess) -> None:
        """Remove one reason; without any, the process continues with the held callbacks, in their order."""
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
        self, loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, Any], **options: Any
    ) -> VirtualTask:
        self._tasks += 1
        return VirtualTask(work, number=self._tasks, loop=loop, **options)
