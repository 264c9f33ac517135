"""Progress display of a batch: a line that is redrawn on a terminal, a line now and then elsewhere."""

import sys
from collections.abc import Mapping
from typing import TextIO

from node.config.sources import can_redraw
from registry.clock import Clock

EVERY = 10.0
"""Seconds between two lines without a terminal."""

_BAR = 30
_MINUTE, _HOUR = 60, 3_600


class Progress:
    """Progress of one batch, written to standard error."""

    def __init__(self, now: Clock, out: TextIO | None = None) -> None:
        self._now = now
        self._out = out or sys.stderr
        self._moving = can_redraw(self._out)
        self._first: tuple[float, int] | None = None
        self._written = -EVERY
        self._last_text = ""

    def seen(self, status: str, counts: Mapping[str, int]) -> None:
        """Show the batch's status and counts."""
        done, total = counts["completed"] + counts["failed"], counts["total"]
        now = self._now()
        if self._first is None and done:
            self._first = now, done
        self._show(line(status, counts, self._rate(now, done), total - done), now)

    def waits(self, reason: str) -> None:
        """Show that the batch's state is unknown now, and why."""
        self._show(f"waiting: {reason}", self._now())

    def end(self) -> None:
        """End the redrawn line, and leave it on the terminal."""
        if self._moving and self._last_text:
            self._out.write("\n")

    def _rate(self, now: float, done: int) -> float:
        if self._first is None or now <= self._first[0]:
            return 0.0
        return (done - self._first[1]) / (now - self._first[0])

    def _show(self, text: str, now: float) -> None:
        if self._moving:
            self._out.write(f"\r\033[K{text}")
        elif text != self._last_text and now - self._written >= EVERY:
            self._written = now
            self._out.write(f"{text}\n")
        self._last_text = text
        self._out.flush()


def line(status: str, counts: Mapping[str, int], rate: float, remaining: int) -> str:
    """Return one line: the progress, the lines a second, and the time left."""
    total = counts["total"]
    done = total - remaining
    if not total:
        return status
    filled = _BAR * done // total
    text = f"{status} [{'#' * filled}{'.' * (_BAR - filled)}] {done:,} of {total:,}"
    if counts["failed"]:
        text += f", {counts['failed']:,} refused"
    if rate > 0 and remaining:
        text += f", {rate:.1f} a second, {duration(remaining / rate)} left"
    return text


def duration(seconds: float) -> str:
    """Format a duration as `3h 20m`, `4m 10s` or `7s`."""
    whole_seconds = int(seconds)
    if whole_seconds >= _HOUR:
        return f"{whole_seconds // _HOUR}h {whole_seconds % _HOUR // _MINUTE}m"
    if whole_seconds >= _MINUTE:
        return f"{whole_seconds // _MINUTE}m {whole_seconds % _MINUTE}s"
    return f"{whole_seconds}s"
