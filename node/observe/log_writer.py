"""Writer of log lines that holds nobody up: a thread of their own writes them, many at once.

A line waits `PAUSE` seconds at most, a warning not at all, and the end of the process for all of them. Where nobody takes them (a
full disk, a terminal that was stopped) they wait in a bounded buffer; beyond it they are left out, and counted.
"""

import os
import threading
import time
from collections.abc import Callable
from typing import TextIO

PAUSE = 0.1
"""Seconds that a line may wait for others, so that they are written together."""

MAX_WAITING = 4 * 1024 * 1024
"""Characters that may wait to be written; a line beyond them is left out."""

FLUSH_WITHIN = 2.0
"""Seconds that the end of the process waits for lines to be taken."""

IDLE = 1.0
"""Seconds after which the thread looks up though there is nothing to write, for what is due by the clock."""

_AT_ONCE = 4096  # POSIX: what has at most PIPE_BUF bytes is not mixed with what others write to the same pipe
_AGAIN = 0.05


class Lines:
    """Lines on their way to `write`, which may be slow and may raise `OSError`.

    `due` is asked for more lines now and then, `lost` for the one that says how many were left out.
    """

    def __init__(
        self,
        write: Callable[[str], object],
        *,
        due: Callable[[], list[str]],
        lost: Callable[[int], str],
    ) -> None:
        self._write = write
        self._due = due
        self._lost = lost
        self._lock = threading.Lock()
        self._waiting: list[str] = []
        self._size = 0
        self._left_out = 0
        self._writer: threading.Thread | None = None
        self._some, self._hurry, self._idle = (threading.Event() for _ in range(3))
        os.register_at_fork(after_in_child=self._forget)

    def add(self, line: str, *, hurry: bool = False) -> None:
        """Take a line, and return at once whatever becomes of it."""
        with self._lock:
            size = self._size + len(line)
            if size > MAX_WAITING:
                self._left_out += 1
                return
            waiting = self._waiting
            if not waiting:
                self._wake()
            waiting.append(line)
            self._size = size + 1
        if hurry:
            self._hurry.set()

    def _wake(self) -> None:
        """Have the thread write what is about to come."""
        if self._writer is None:
            self._writer = threading.Thread(target=self._run, name="log", daemon=True)
            self._writer.start()
        self._some.set()

    def flush(self) -> None:
        """Wait until everything was taken or failed, `FLUSH_WITHIN` seconds at most."""
        if self._writer is not None:
            self._idle.clear()
            self._some.set()
            self._hurry.set()
            self._idle.wait(FLUSH_WITHIN)

    def _forget(self) -> None:
        """Begin anew in a forked process: the lines are its parent's, and the thread is not there."""
        self._lock = threading.Lock()
        self._waiting, self._size, self._left_out, self._writer = [], 0, 0, None
        self._some, self._hurry, self._idle = (threading.Event() for _ in range(3))

    def _run(self) -> None:
        while True:
            if self._some.wait(IDLE):
                self._hurry.wait(PAUSE)
            self._some.clear()
            self._hurry.clear()
            for line in self._due():
                self.add(line)
            self._empty()

    def _empty(self) -> None:
        with self._lock:
            lines, self._waiting = self._waiting, []
            left_out, self._left_out = self._left_out, 0
        if left_out and self._put([self._lost(left_out)]):
            left_out = 0
        left_out += sum(len(batch) for batch in batches(lines) if not self._put(batch))
        with self._lock:
            self._left_out += left_out
            # What waited counts until it is written: whatever comes meanwhile waits behind it.
            self._size = sum(len(line) + 1 for line in self._waiting)
            if not self._waiting:
                self._idle.set()

    def _put(self, batch: list[str]) -> bool:
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
    """Group lines so that what is written at once is not mixed with other processes' lines, longer ones alone."""
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
    """Return how to write to a stream: where it is a file past Python's buffers, which keep what could not be written."""
    try:
        number = stream.fileno()
    except OSError:
        return stream.write

    def write(text: str) -> None:
        left = text.encode(errors="replace")
        while left:
            left = left[os.write(number, left) :]

    return write
