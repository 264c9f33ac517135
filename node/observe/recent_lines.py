"""Recent lines of a process's log, kept in memory for operators. Bounded; a line costs one append.

Standard error belongs to the program that runs the node; the node cannot read back what it has written there.
"""

import os
from collections import deque
from itertools import count
from typing import NamedTuple

MAX_LINES = 1_000
"""Lines that a process keeps; a new line evicts the oldest."""

MAX_CHARACTERS = 1_024
"""Characters of one line that are kept; all lines at full length take 1 MB or little more."""


class LogLine(NamedTuple):
    """One line. `time` is Unix time; `number` counts the lines of one process, whose id is `process`."""

    time: float
    level: str
    logger: str
    message: str
    process: int
    number: int


class RecentLines:
    """The last lines of one process. Any thread may add one."""

    def __init__(self) -> None:
        self._lines: deque[tuple[float, str, str, str, int]] = deque(maxlen=MAX_LINES)
        self._numbers = count(1)

    def add(self, time: float, level: str, logger: str, message: str) -> None:
        """Add a line."""
        self._lines.append((time, level, logger, message[:MAX_CHARACTERS], next(self._numbers)))

    def since(self, time: float) -> tuple[LogLine, ...]:
        """Return the lines that are no older than `time`, in the order of their arrival."""
        process = os.getpid()
        # A single step of the interpreter: no other thread adds a line meanwhile.
        lines = tuple(self._lines)
        return tuple(
            LogLine(at, level, logger, message, process, number)
            for at, level, logger, message, number in lines
            if at >= time
        )
