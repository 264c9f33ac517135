"""Recent lines of a process's log, kept in memory for operators. Bounded; a line costs one append.

Standard error belongs to whatever runs a node: a node cannot read again what went there.
"""

import os
from collections import deque
from itertools import count

from node.observe.log_line import LogLine

MAX_LINES = 1_000
"""Lines that a process keeps; the oldest goes when one comes."""

MAX_CHARACTERS = 1_024
"""Characters of one line that are kept: with all at full length, 1 MB or little more."""


class RecentLines:
    """The last lines of one process. Any thread may add one."""

    def __init__(self) -> None:
        self._lines: deque[tuple[float, str, str, str, int]] = deque(maxlen=MAX_LINES)
        self._numbers = count(1)

    def add(self, time: float, level: str, logger: str, message: str) -> None:
        """Take in a line."""
        self._lines.append((time, level, logger, message[:MAX_CHARACTERS], next(self._numbers)))

    def since(self, time: float) -> tuple[LogLine, ...]:
        """Return the lines that are no older than `time`, in the order in which they came."""
        process = os.getpid()
        # One step for the interpreter: no other thread adds a line meanwhile.
        lines = tuple(self._lines)
        return tuple(
            LogLine(at, level, logger, message, process, number)
            for at, level, logger, message, number in lines
            if at >= time
        )
