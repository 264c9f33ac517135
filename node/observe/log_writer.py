"""Writer of log lines that does not block: a separate thread writes them in batches.

A line waits `PAUSE` seconds at most, and a warning not at all; the end of the process waits for all lines. While they cannot be
written (a full disk, a stopped terminal), they wait in a bounded buffer. Lines beyond its size are dropped and counted.

The last lines are also kept in memory for operators: a node cannot read back what it has written to standard error.
"""

import os
import threading
import time
from collections import deque
from collections.abc import Callable
from itertools import count
from typing import NamedTuple, Protocol, TextIO

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
            LogLine(logged_at, level, logger, message, process, number)
            for logged_at, level, logger, message, number in lines
            if logged_at >= time
        )


PAUSE = 0.1
"""Seconds that a line may wait for further lines, so that they are written together."""

MAX_WAITING = 4 * 1024 * 1024
"""Characters that may wait to be written; a line beyond them is dropped."""

FLUSH_WITHIN = 2.0
"""Seconds that the end of the process waits for lines to be written."""

IDLE = 1.0
"""Seconds after which an idle thread wakes to check for lines that are due by the clock."""

_AT_ONCE = 4096  # POSIX: a write of at most PIPE_BUF bytes is not mixed with other processes' writes to the same pipe
_AGAIN = 0.05


class LineSource(Protocol):
    """Source of lines that fall due by the clock. The thread that writes calls it."""

    def due(self) -> list[str]:
        """Return the lines that are due by the clock."""

    def lost(self, count: int) -> str:
        """Return the line that tells how many lines were dropped."""


class LogWriter:
    """Writer of lines, and of those from `source`, with `write`, which may be slow and may raise `OSError`."""

    def __init__(self, write: Callable[[str], object], source: LineSource) -> None:
        self._write = write
        self._source = source
        self._reset()
        os.register_at_fork(after_in_child=self._reset)

    def _reset(self) -> None:
        """Set or reset the state: in a forked process the lines belong to its parent, and the thread does not exist."""
        self._lock = threading.Lock()
        self._waiting: deque[str] = deque()
        self._size = self._left_out = 0
        self._writer: threading.Thread | None = None
        self._idle = threading.Event()
        self._sleep = threading.Lock()
        """Held while the thread shall sleep; not an `Event`, which is written in Python and takes more."""
        self._sleep.acquire()
        self._asleep = True
        """Whether the thread waits for a first line, and nobody has woken it."""
        self._is_hurried = False
        """Whether the waiting lines shall not wait for further ones."""

    def add(self, line: str, *, hurry: bool = False) -> None:
        """Take a line, and return at once, whether or not it will be written.

        It takes no lock: appending is one step of the interpreter, and if two threads add to the size at the same time, the
        thread that writes corrects it.
        """
        size = self._size + len(line)
        if size > MAX_WAITING:
            with self._lock:
                self._left_out += 1
            return
        self._size = size + 1
        self._waiting.append(line)
        if hurry:
            self._is_hurried = True
        if self._asleep or hurry:
            self._asleep = False
            self._wake()

    def _wake(self) -> None:
        """Wake the thread; start it if it does not run yet."""
        with self._lock:
            if self._writer is None:
                self._writer = threading.Thread(target=self._run, name="log", daemon=True)
                self._writer.start()
            if self._sleep.locked():
                self._sleep.release()

    def flush(self) -> None:
        """Wait until every line is written or has failed, `FLUSH_WITHIN` seconds at most."""
        if self._writer is not None:
            self._idle.clear()
            self._is_hurried = True
            self._wake()
            self._idle.wait(FLUSH_WITHIN)

    def _run(self) -> None:
        while True:
            self._asleep = True
            # A line that was added before that woke nobody.
            woken = len(self._waiting) > 0 or self._sleep.acquire(timeout=IDLE)
            self._asleep = False
            if woken and not self._is_hurried:
                self._sleep.acquire(timeout=PAUSE)
            self._is_hurried = False
            for line in self._source.due():
                self.add(line)
            self._write_all()

    def _write_all(self) -> None:
        waiting, lines = self._waiting, []
        while waiting:
            lines.append(waiting.popleft())
        with self._lock:
            left_out, self._left_out = self._left_out, 0
        if left_out and self._write_batch([self._source.lost(left_out)]):
            left_out = 0
        left_out += sum(len(batch) for batch in batches(lines) if not self._write_batch(batch))
        if left_out:
            with self._lock:
                self._left_out += left_out
        # Taken lines count towards the size until they are written, as later lines wait behind them.
        self._size = sum(len(line) + 1 for line in tuple(waiting))
        if not waiting and not self._idle.is_set():
            self._idle.set()

    def _write_batch(self, batch: list[str]) -> bool:
        while True:
            try:
                self._write("\n".join([*batch, ""]))
            except BlockingIOError:
                time.sleep(_AGAIN)
            except (OSError, ValueError):  # a full disk, a closed pipe; a closed stream
                return False
            else:
                return True


def batches(lines: list[str]) -> list[list[str]]:
    """Group lines into writes that are not mixed with other processes' lines; a longer line gets its own group."""
    groups: list[list[str]] = []
    room = 0
    for line in lines:
        size = (len(line) if line.isascii() else len(line.encode(errors="replace"))) + 1
        if size > room:
            groups.append([])
            room = _AT_ONCE
        groups[-1].append(line)
        room -= size
    return groups


def writing_to(stream: TextIO) -> Callable[[str], object]:
    """Return the function that writes to a stream.

    Where the stream is a file, it bypasses Python's buffers, which keep what could not be written.
    """
    try:
        number = stream.fileno()
    except OSError:
        return stream.write

    def write(text: str) -> None:
        remaining = text.encode(errors="replace")
        while remaining:
            remaining = remaining[os.write(number, remaining) :]

    return write
