"""Wall clock of a simulated machine: a process with a clock of its own, which jumps when it is told to.

To change Python's own time would not be enough: OpenSSL asks libc, too. `python -m tests.lab.clock LIBRARY FILE MODULE
ARGUMENTS` runs a module by such a clock; the process stays the one that was started.
"""

import os
import shutil
import struct
import subprocess
import sys
from pathlib import Path

HOUR = 3600
"""Seconds."""

_SOURCE = Path(__file__).with_suffix(".c")


def compiler() -> str | None:
    """Return the C compiler of this machine."""
    return shutil.which("cc")


class Clock:
    """A wall clock that is ahead of the real one by whole seconds, or behind."""

    def __init__(self, folder: Path, name: str, *, ahead: int = 0) -> None:
        self._file = folder / f"{name}.clock"
        self._file.write_bytes(struct.pack("=q", ahead))
        self._library = folder / "clock.so"
        if not self._library.exists():
            output = ("-o", str(self._library))
            subprocess.run(["cc", "-shared", "-fPIC", "-O1", *output, str(_SOURCE)], check=True)

    def jump(self, ahead: int) -> None:
        """Set the clock `ahead` seconds ahead of the real one from now on."""
        with self._file.open("r+b") as file:
            file.write(struct.pack("=q", ahead))

    def command(self, *module: str) -> tuple[str, ...]:
        """Return the arguments to Python that run a module by this clock."""
        return ("tests.lab.clock", str(self._library), str(self._file), *module)


if __name__ == "__main__":
    _, library, file, *module = sys.argv
    environment = {**os.environ, "LD_PRELOAD": library, "LAB_CLOCK": file}
    os.execve(sys.executable, [sys.executable, "-m", *module], environment)
