"""Output of the demo: steps with their time; colour and a moving line only where there is a terminal."""

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

_BOLD, _DIM, _GREEN, _RED, _PLAIN = "\033[1m", "\033[2m", "\033[32m", "\033[31m", "\033[0m"
_BACK_TO_START = "\r\033[K"


class Show:
    """Writes to one stream."""

    def __init__(self, out: TextIO = sys.stdout) -> None:
        self._out = out
        self._terminal = out.isatty()
        self._colour = self._terminal and "NO_COLOR" not in os.environ

    def heading(self, text: str) -> None:
        """Begin an act."""
        self._line("\n" + self._painted(text, _BOLD))

    def note(self, text: str) -> None:
        """Say something that is not a step."""
        self._line(self._painted(text, _DIM))

    def fact(self, text: str) -> None:
        """Say what was seen."""
        self._line("  " + self._painted(text, _GREEN))

    def failure(self, text: str) -> None:
        """Say what went wrong."""
        self._line(self._painted(text, _RED))

    def command(self, *words: str) -> None:
        """Show the command that is run, as a person would type it."""
        self._line(self._painted("$ modelvine " + " ".join(map(_quoted, words)), _BOLD))

    @contextmanager
    def step(self, text: str) -> Iterator[None]:
        """Show that something is under way, and how long it took."""
        if self._terminal:
            self._out.write(f"  … {text}")
            self._out.flush()
        begun = time.monotonic()
        yield
        took = time.monotonic() - begun
        start = _BACK_TO_START if self._terminal else ""
        done = self._painted("✓", _GREEN)
        self._line(f"{start}  {done} {text} {self._painted(f'({took:.1f} s)', _DIM)}")

    def _painted(self, text: str, paint: str) -> str:
        return f"{paint}{text}{_PLAIN}" if self._colour else text

    def _line(self, text: str) -> None:
        print(text, file=self._out, flush=True)


def _quoted(word: str) -> str:
    return f'"{word}"' if " " in word else word
