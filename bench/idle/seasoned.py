"""Run a node as if it had been there for long: `python -m bench.idle.seasoned MODULE …`.

What it says again and again, it says first after any part of its interval. Else nobody would say anything for minutes
after all have started, and then everybody would.
"""

import random
import runpy
import sys
from collections.abc import Callable
from typing import Any

from registry import voice


def season(turn: Any) -> None:
    """Let the first wait of each turn end anywhere in its interval."""
    taken: Callable[[Any, float, float], None] = turn.taken

    def taken_first(self: Any, now: float, jitter: float) -> None:
        first = abs(self.last) == float("inf")
        taken(self, now, jitter)
        if first:
            self.spread = random.random()

    turn.taken = taken_first


if __name__ == "__main__":
    _, module, *arguments = sys.argv
    season(voice._Turn)  # noqa: SLF001
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
