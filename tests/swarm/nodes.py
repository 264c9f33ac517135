"""Nodes as real processes on free ports of loopback, each ended by its own pid whatever happens."""

import json
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from node.demo.play import STOP_WITHIN, Actor, ProcessGroup

Settings = Mapping[str, Mapping[str, object]]
"""Section → name → value, as in `modelvine.toml`."""

_STAND_IN = "tests.swarm.worker_process"


@dataclass(frozen=True, slots=True)
class Start:
    """How a node is started, so that it can be started again."""

    name: str
    settings: Settings = field(default_factory=dict)
    module: str = "node"
    listen: str = "/ip4/127.0.0.1/tcp/0"


@dataclass(frozen=True, slots=True)
class Node:
    """One running node."""

    start: Start
    actor: Actor
    folder: Path

    @property
    def name(self) -> str:
        """What the test calls it."""
        return self.start.name

    @property
    def http(self) -> str:
        """Where clients reach it, without a path."""
        return self.actor.fields["http"]

    @property
    def p2p(self) -> str:
        """Where other nodes dial it."""
        return self.actor.fields["p2p"]

    @property
    def peer(self) -> str:
        """Its peer id."""
        return self.p2p.rpartition("/")[2]

    @property
    def log(self) -> str:
        """Everything it has written to standard error, over all its runs."""
        return self.actor.log.read_text(errors="replace")

    @property
    def running(self) -> bool:
        """Whether its process lives."""
        return self.actor.process.poll() is None


class Swarm:
    """Starts nodes and workers in one folder, and ends all of them when it is left."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._stages = ExitStack()
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        # All at once: one after the other, each would take its time to shut down.
        for process in self._processes:
            if process.poll() is None:
                process.terminate()
        self._stages.close()

    def start(self, start: Start | str, *, known: Sequence[Node] = ()) -> Node:
        """Run a node that dials the nodes it is given; the same name again finds the same files."""
        start = Start(start) if isinstance(start, str) else start
        return self._start(self._stage(), start, known)

    def start_all(self, *starts: Start | str) -> list[Node]:
        """Run several nodes that know the first one, as many at a time as there is a processor for."""
        first = self.start(starts[0])
        rest = [Start(s) if isinstance(s, str) else s for s in starts[1:]]
        stages = [self._stage() for _ in rest]
        with ThreadPoolExecutor(max_workers=2) as pool:
            others = pool.map(lambda pair: self._start(pair[0], pair[1], [first]), zip(stages, rest, strict=True))  # fmt: skip
            return [first, *others]

    def again(self, node: Node, *, known: Sequence[Node] = ()) -> Node:
        """Start a node that has ended, with the files it left."""
        assert not node.running
        return self.start(node.start, known=known)

    def kill(self, actor: Actor) -> None:
        """End a process as a power cut would."""
        actor.process.kill()
        actor.process.wait(STOP_WITHIN)

    def ask_to_stop(self, node: Node) -> None:
        """Send SIGTERM and return at once."""
        node.actor.process.send_signal(signal.SIGTERM)

    def stop(self, node: Node) -> int:
        """Send SIGTERM and return the exit code."""
        self.ask_to_stop(node)
        return node.actor.process.wait(STOP_WITHIN)

    def start_worker(self, name: str, *arguments: str, module: str = _STAND_IN) -> Actor:
        """Run a worker in a process of its own."""
        return self.start_program(name, *python("-m", module, *arguments))

    def start_program(self, name: str, *command: str) -> Actor:
        """Run any program as a worker; like ours it prints a line when it is ready."""
        actor = self._stage().run(name, *command)
        self._processes.append(actor.process)
        return actor

    def _stage(self) -> ProcessGroup:
        return self._stages.enter_context(ProcessGroup(self.folder))

    def _start(self, stage: ProcessGroup, start: Start, known: Sequence[Node]) -> Node:
        folder = self.folder / start.name
        written = self.folder / f"{start.name}.toml"
        written.write_text(_toml(start.settings))
        addresses = ("--http", "127.0.0.1:0", "--listen", start.listen)
        files = ("--config", str(written), "--data-dir", str(folder))
        dialled = [argument for node in known for argument in ("--bootstrap", node.p2p)]
        actor = stage.start(start.name, start.module, "up", *addresses, *files, *dialled)
        self._processes.append(actor.process)
        return Node(start, actor, folder)


def python(*arguments: str) -> list[str]:
    """Return the command that runs our own Python with these arguments."""
    return [sys.executable, *arguments]


def _toml(settings: Settings) -> str:
    """Write settings as TOML, which for strings, numbers, booleans and lists of them is JSON."""
    lines: list[str] = []
    for section, values in settings.items():
        lines += [f"[{section}]", *(f"{name} = {json.dumps(v)}" for name, v in values.items())]
    return "\n".join(lines) + "\n"
