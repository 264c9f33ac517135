"""Keeps the background alive: a task that fails is logged and started again, and never takes the others down."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

log = logging.getLogger("modelvine.tasks")

_FIRST_PAUSE, _LONGEST_PAUSE = 0.2, 10.0


async def supervise(
    name: str, run: Callable[[], Awaitable[None]], *, first_pause: float = _FIRST_PAUSE
) -> None:
    """Run until it returns; after a failure wait `first_pause` seconds, longer each time, and run again."""
    pause = first_pause
    while True:
        try:
            await run()
        except Exception:
            log.exception("%s failed and starts again in %.1f s", name, pause)
        else:
            return
        await asyncio.sleep(pause)
        pause = min(pause * 2, _LONGEST_PAUSE)
