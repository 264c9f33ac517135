"""Run a node as if it had been there for long: `python -m bench.idle.seasoned MODULE …`.

What it says again and again, it says first after any part of its interval. Else nobody would say anything for minutes
after all have started, and then everybody would.
"""

import random
import runpy
import sys
from collections.abc import Callable
from typing import Any

from registry import own_record

_STARTING = 30.0
"""Seconds in which a node says what it says first, and again when the first connection stands."""


def season(turn: Any) -> None:
    """Let what was said last in a node's first seconds be said again after any part of its interval."""
    taken: Callable[[Any, float, float], None] = turn.taken
    began: list[float] = []

    def taken_seasoned(self: Any, now: float, jitter: float) -> None:
        taken(self, now, jitter)
        began.append(now)
        del began[1:]
        if now - began[0] < _STARTING:
            self.spread = random.random()

    turn.taken = taken_seasoned


if __name__ == "__main__":
    _, module, *arguments = sys.argv
    season(own_record._Turn)  # noqa: SLF001
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
