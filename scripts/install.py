"""Installer of one lock file with pip, hash-checked, with the progress in one line.

usage: .venv/bin/python scripts/install.py LOCK [PIP-OPTION…]

pip prints six lines per package, and nothing at all for half a minute while it unpacks. This prints one line that is redrawn on a
terminal, a line every few seconds elsewhere, and the end of pip's own output if it fails.
"""

import os
import subprocess
import sys
import time
from collections import deque
from pathlib import Path

KEPT_LINES = 40
SECONDS_BETWEEN_LINES = 5.0
MAKE_VARIABLES = ("MAKEFLAGS", "MFLAGS", "MAKELEVEL")


def _environment() -> dict[str, str]:
    # Some packages are built with make, which the flags of the calling make would break.
    return {name: value for name, value in os.environ.items() if name not in MAKE_VARIABLES}


class Progress:
    """Progress line of a long step."""

    def __init__(self, title: str, total: int) -> None:
        self.title = title
        self.total = total
        self.seen = 0
        self.began = self.shown = time.monotonic()
        self.terminal = sys.stdout.isatty()

    def show(self, doing: str, *, force: bool = False) -> None:
        """Show what is being done now."""
        now = time.monotonic()
        text = f"{self.title}: {self.seen}/{self.total} {doing}"
        if self.terminal:
            print(f"\r\033[K{text[:100]}", end="", flush=True)
        elif force or now - self.shown >= SECONDS_BETWEEN_LINES:
            print(text, flush=True)
        else:
            return
        self.shown = now

    def finish(self, outcome: str) -> None:
        """Show how the step ended."""
        start = "\r\033[K" if self.terminal else ""
        print(
            f"{start}{self.title}: {outcome} in {time.monotonic() - self.began:.0f} s", flush=True
        )


def follow(line: str, progress: Progress) -> None:
    """Update the progress from one line of pip's output."""
    match line.split():
        case ["Collecting" | "Processing", name, *_] | [
            "Requirement",
            "already",
            "satisfied:",
            name,
            *_,
        ]:
            progress.seen += 1
            progress.show(name.rpartition("/")[2].partition("-")[0])
        case ["Building", "wheel", "for", name, *_]:
            progress.show(f"building {name}")
        case ["Installing", "collected", *_]:
            progress.show("unpacking", force=True)


def main() -> int:
    """Install; return pip's exit status."""
    lock = Path(sys.argv[1])
    total = sum(
        "==" in line and not line.startswith(("#", " ")) for line in lock.read_text().splitlines()
    )
    progress = Progress(lock.name, total)
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install"]
    # A lock file lists all dependencies, but of libp2p's requirements only those that a node uses.
    command += ["--progress-bar=off", "--require-hashes", "--no-deps", "-r", str(lock)]
    command += sys.argv[2:]
    last: deque[str] = deque(maxlen=KEPT_LINES)
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=_environment()
    ) as pip:
        for line in pip.stdout or ():
            last.append(line)
            follow(line, progress)
    if pip.returncode:
        progress.finish("failed")
        sys.stdout.writelines(last)
    else:
        progress.finish(f"{total} package{'s' if total != 1 else ''}")
    return pip.returncode


if __name__ == "__main__":
    sys.exit(main())
