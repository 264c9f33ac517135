"""Processes of the demo: one worker and its nodes, each ended by its own pid whatever happens."""

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from node.errors import NodeError

START_WITHIN = 60.0
STOP_WITHIN = 20.0


class StageError(NodeError):
    """A process of the demo did not do its part; the text says which, and shows the end of its log."""


@dataclass(frozen=True, slots=True)
class Actor:
    """One running process and what its ready line said."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path
    ready: str

    @property
    def fields(self) -> Mapping[str, str]:
        """The `key=value` words of the ready line."""
        words = (word.partition("=") for word in self.ready.split() if "=" in word)
        return {key: value for key, _, value in words}


class Stage:
    """Starts processes and ends every one of them when it is left."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> "Stage":
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        for process in reversed(self._processes):
            _end(process)

    def start(self, name: str, module: str, *arguments: str) -> Actor:
        """Run `python -m module` and wait for its ready line; raise `StageError`."""
        return self.run(name, sys.executable, "-m", module, *arguments)

    def run(self, name: str, *command: str) -> Actor:
        """Run a command and wait for its ready line; raise `StageError`."""
        log = self.directory / f"{name}.log"
        with log.open("ab") as errors:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
                # Ctrl-C is for the demo, which then ends its processes in order.
                start_new_session=True,
            )
        # Held from the first moment on, so that a failed start leaves nothing behind.
        self._processes.append(process)
        return Actor(name, process, log, _ready_line(name, process, log))

    def start_node(self, name: str, *, bootstrap: Sequence[str] = ()) -> Actor:
        """Run a node on free ports of the loopback interface, its files in a folder of its own name."""
        options = [option for address in bootstrap for option in ("--bootstrap", address)]
        place = ("--http", "127.0.0.1:0", "--listen", "/ip4/127.0.0.1/tcp/0")
        data = ("--data-dir", str(self.directory / name), "--name", name)
        return self.start(name, "node", "up", *place, *data, *options)

    def kill(self, actor: Actor) -> None:
        """End a process as a power cut would: SIGKILL, no farewell."""
        actor.process.kill()
        actor.process.wait(STOP_WITHIN)

    def stop(self, actor: Actor) -> int:
        """Ask a process to end and return its exit code; raise `StageError` when it does not."""
        actor.process.send_signal(signal.SIGTERM)
        try:
            return actor.process.wait(STOP_WITHIN)
        except subprocess.TimeoutExpired as error:
            raise StageError(f"{actor.name} did not stop within {STOP_WITHIN:g} s") from error


def _ready_line(name: str, process: subprocess.Popen[bytes], log: Path) -> str:
    deadline = time.monotonic() + START_WITHIN
    out = process.stdout
    assert out is not None  # noqa: S101  (asked for with PIPE)
    while time.monotonic() < deadline:
        if select.select([out], [], [], 0.1)[0]:
            line = out.readline().decode(errors="replace").strip()
            if line.startswith("ready"):
                return line
            if not line:
                break
    tail = "\n".join(log.read_text(errors="replace").splitlines()[-12:])
    raise StageError(f"{name} did not get ready; the end of {log}:\n{tail}")


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(STOP_WITHIN)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    if process.stdout:
        process.stdout.close()
