"""Recording of a command as an animated SVG: its real output in a terminal of 100 columns, at its real pace.

usage: python scripts/recording.py FILE.svg COMMAND…

Waits longer than `LONGEST_WAIT` are shortened. The picture needs no script and no font of its own; if a reader prefers reduced
motion, or animation is off, it shows the last frame.
"""

import fcntl
import os
import pty
import re
import struct
import sys
import termios
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

COLUMNS, MOST_ROWS = 100, 200
LONGEST_WAIT = 1.5
"""Most seconds that a pause of the command lasts in the picture."""
STEP = 0.05
"""Seconds that a viewer cannot tell apart: output within one step appears at once."""
HOLD = 8.0
"""Seconds for which the last frame is shown before the animation restarts."""

CELL, LINE, MARGIN, FONT = 7.8, 18, 14, 13
STYLES = {"1": "b", "2": "d", "31": "r", "32": "g"}
_TOKEN = re.compile(r"\x1b\[([\d;?]*)([A-Za-z])|([\r\n])|([^\x1b\r\n]+)")


@dataclass(slots=True)
class Run:
    """Characters of one style that appear together; `until` is the time when the line was cleared, or `None`."""

    row: int
    column: int
    text: str
    style: str
    since: float
    until: float | None = None


@dataclass(slots=True)
class Screen:
    """Terminal emulator that supports lines, wrapping, colours and "clear the line"."""

    row: int = 0
    column: int = 0
    style: str = ""
    runs: list[Run] = field(default_factory=list)

    def write(self, text: str, now: float) -> None:
        """Process output that came at one time."""
        for code, letter, control, plain in _TOKEN.findall(text):
            if letter == "m":
                self.style = STYLES.get(code, "")
            elif letter == "K":
                self._clear(now)
            elif control == "\r":
                self.column = 0
            elif control == "\n":
                self.row += 1
            elif plain:
                self._print(plain, now)

    def _print(self, text: str, now: float) -> None:
        while text:
            if self.column >= COLUMNS:
                self.row, self.column = self.row + 1, 0
            part, text = text[: COLUMNS - self.column], text[COLUMNS - self.column :]
            last = self.runs[-1] if self.runs else None
            here = (self.row, self.column, self.style, now)
            if last and here == (
                last.row,
                last.column + len(last.text),
                last.style,
                last.since,
            ):
                last.text += part
            else:
                self.runs.append(Run(self.row, self.column, part, self.style, now))
            self.column += len(part)

    def _clear(self, now: float) -> None:
        for run in self.runs:
            if run.row == self.row and run.until is None and run.column >= self.column:
                run.until = now


def output_of(command: Sequence[str]) -> Iterator[tuple[float, str]]:
    """Run a command in a terminal; yield what it prints, with seconds since the start."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ["TERM"] = "xterm-256color"
        os.execvp(command[0], command)  # noqa: S606 - the caller's own command
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", MOST_ROWS, COLUMNS, 0, 0))
    begun, pending = time.monotonic(), b""
    while True:
        try:
            read = os.read(terminal, 65536)
        except OSError:  # Linux returns EIO once the last writer is gone.
            break
        pending += read
        text = pending.decode(errors="ignore")
        pending = pending[len(text.encode()) :]
        yield time.monotonic() - begun, text
    _, status = os.waitpid(pid, 0)
    if status:
        raise SystemExit(f"the command failed: {os.waitstatus_to_exitcode(status)}")


def paced(output: Iterator[tuple[float, str]]) -> Iterator[tuple[float, str]]:
    """Shorten long waits, and round times to steps."""
    before = now = 0.0
    for moment, text in output:
        now += min(moment - before, LONGEST_WAIT)
        before = moment
        yield round(now / STEP) * STEP, text


def svg(screen: Screen, ends: float) -> str:
    """Return the picture; `ends` is the time of the last output."""
    lasts = ends + HOLD
    # Output that was cleared within its own step was never visible.
    runs = [run for run in screen.runs if run.text.strip() and run.until != run.since]
    spans = sorted({(run.since, run.until or lasts) for run in runs})
    names = {span: f"t{number}" for number, span in enumerate(spans)}
    frames = [frame(names[span], *span, lasts) for span in spans]
    texts = [drawn(run, names[run.since, run.until or lasts]) for run in runs]
    width = round(COLUMNS * CELL + 2 * MARGIN)
    height = max(run.row for run in runs) * LINE + LINE + 2 * MARGIN
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" xml:space="preserve" width="{width}" height="{height}"',
            f'viewBox="0 0 {width} {height}">',
            "<style>",
            f"text{{font:{FONT}px ui-monospace,Menlo,Consolas,'DejaVu Sans Mono',monospace;white-space:pre;fill:#d5dae0}}",
            ".b{font-weight:bold;fill:#fff}.d{fill:#8b95a1}.g{fill:#7ec98f}.r{fill:#f08a80}.gone{opacity:0}",
            f"@media (prefers-reduced-motion:no-preference){{text{{animation:{lasts:.2f}s step-end infinite}}",
            *frames,
            "}",
            "</style>",
            f'<rect width="{width}" height="{height}" rx="8" fill="#14181d"/>',
            *texts,
            "</svg>\n",
        ]
    )


def frame(name: str, since: float, until: float, lasts: float) -> str:
    """Return the animation of a text that is visible from `since` to `until`."""
    start, end = 100 * since / lasts, 100 * until / lasts
    hidden = "" if until >= lasts else f"{end:.2f}%,100%{{opacity:0}}"
    return (
        f"@keyframes {name}{{0%{{opacity:0}}{start:.2f}%{{opacity:1}}{hidden or '100%{opacity:1}'}}}"
        f".{name}{{animation-name:{name}}}"
    )


def drawn(run: Run, name: str) -> str:
    """Return one run as a text of fixed width, so that columns align in any font."""
    text = run.text.rstrip()
    column = run.column + len(text) - len(text.lstrip())
    text = text.lstrip()
    style = " ".join(filter(None, (name, run.style, "gone" if run.until is not None else "")))
    x, y = MARGIN + column * CELL, MARGIN + run.row * LINE + FONT
    return (
        f'<text class="{style}" x="{x:.1f}" y="{y}" textLength="{len(text) * CELL:.1f}" '
        f'lengthAdjust="spacingAndGlyphs">{escape(text, quote=False)}</text>'
    )


def main() -> None:
    """Run the command, draw the picture, and write it."""
    file, *command = sys.argv[1:]
    screen, now = Screen(), 0.0
    screen.write("\x1b[1m$ " + " ".join(command) + "\x1b[0m\r\n", 0.0)
    for now, text in paced(output_of(command)):
        screen.write(text, now)
    picture = svg(screen, now)
    Path(file).write_text(picture)
    print(f"{file}: {len(picture):,} bytes, {now:.1f} s")


if __name__ == "__main__":
    main()
