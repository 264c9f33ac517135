"""Background tasks of one owner: starts them, logs their errors, and ends them together.

A `TaskGroup` lives inside one `async with`; a mesh lives between two calls, `start` and `stop`.
"""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, TypeVar

from registry.errors import LimitReached, MeshError

_log = logging.getLogger("modelvine.tasks")
_Result = TypeVar("_Result")


class BackgroundTasks:
    """Tasks of one owner; a failing task does not affect the others."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    def spawn(self, work: Coroutine[Any, Any, _Result]) -> "asyncio.Task[_Result]":
        """Run `work` until it ends or `cancel_all` cancels it; what it raises is logged here."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._on_done)
        return task

    async def cancel_all(self) -> None:
        """Cancel every task and return when all have ended."""
        while self._tasks:
            for task in self._tasks:
                task.cancel()
            await asyncio.wait(self._tasks)

    def _on_done(self, task: "asyncio.Task[Any]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            # A peer that left is no news, and a refused question was counted. The text of an error may quote what a peer
            # sent, so only its type is logged.
            level = (
                logging.DEBUG if isinstance(error, MeshError | LimitReached) else logging.WARNING
            )
            _log.log(level, "a background task failed: %s", type(error).__name__)
            _log.debug("a background task failed", exc_info=error)
