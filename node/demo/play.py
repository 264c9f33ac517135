"""Script of the demo: from `register` on one node to tokens from another, then a power cut.

Everything is done with commands that a person would type. They are printed before they run.

The output shows steps with their time; colour and a redrawn line are used only on a terminal. The processes, one worker and its
nodes, are each ended by their own pid, whatever happens.
"""

import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from node.config.sources import can_redraw
from node.errors import NodeError
from node.observe.logs import wants_colour
from node.runtime import ending_signals

_BOLD, _DIM, _GREEN, _RED, _PLAIN = "\033[1m", "\033[2m", "\033[32m", "\033[31m", "\033[0m"
_BACK_TO_START = "\r\033[K"


class DemoOutput:
    """Output of the demo, to one stream."""

    def __init__(self, out: TextIO = sys.stdout) -> None:
        self._out = out
        self._terminal = can_redraw(out)
        self._colour = wants_colour(out)

    def heading(self, text: str) -> None:
        """Print the heading of a part."""
        self._line("\n" + self._painted(text, _BOLD))

    def note(self, text: str) -> None:
        """Print a text that is not a step."""
        self._line(self._painted(text, _DIM))

    def fact(self, text: str) -> None:
        """Print an observation."""
        self._line("  " + self._painted(text, _GREEN))

    def failure(self, text: str) -> None:
        """Print an error."""
        self._line(self._painted(text, _RED))

    def command(self, *arguments: str) -> None:
        """Print a command as a person would type it."""
        self._line(self._painted("$ modelvine " + " ".join(map(_quoted, arguments)), _BOLD))

    @contextmanager
    def step(self, text: str) -> Iterator[None]:
        """Show that a step is in progress, and how long it took."""
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


def _quoted(argument: str) -> str:
    return f'"{argument}"' if " " in argument else argument


START_WITHIN = 60.0
STOP_WITHIN = 20.0


class StageError(NodeError):
    """A process of the demo failed; the text says which, and shows the end of its log."""


@dataclass(frozen=True, slots=True)
class Actor:
    """One running process and its ready line."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path
    ready: str

    @property
    def fields(self) -> Mapping[str, str]:
        """The `key=value` words of the ready line."""
        pairs = (word.partition("=") for word in self.ready.split() if "=" in word)
        return {key: value for key, _, value in pairs}


class ProcessGroup:
    """Context manager that starts processes and ends all of them on exit."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> "ProcessGroup":
        return self

    def __exit__(self, *_: object) -> None:
        for process in reversed(self._processes):
            _end(process)

    def start(self, name: str, module: str, *arguments: str) -> Actor:
        """Run `python -m module` and wait for its ready line; raise `StageError`."""
        return self.run(name, sys.executable, "-m", module, *arguments)

    def run(self, name: str, *command: str) -> Actor:
        """Run a command and wait for its ready line; raise `StageError`."""
        log = self.directory / f"{name}.log"
        with log.open("ab") as errors, _held_back():
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
                # Ctrl-C must reach only the demo, which then ends its processes in order.
                start_new_session=True,
            )
            # Kept before it is ready, so that a failed start leaves no process behind.
            self._processes.append(process)
        return Actor(name, process, log, _ready_line(name, process, log))

    def start_node(self, name: str, *, bootstrap: Sequence[str] = ()) -> Actor:
        """Run a node on free ports of the loopback interface, with its files in a folder of its name."""
        options = [option for address in bootstrap for option in ("--bootstrap", address)]
        addresses = ("--http", "127.0.0.1:0", "--listen", "/ip4/127.0.0.1/tcp/0")
        # Not every kernel tells which user calls over loopback, and there is nothing to protect here.
        options += ["--open", "everybody"]
        data = ("--data-dir", str(self.directory / name), "--name", name)
        return self.start(name, "node", "up", *addresses, *data, *options)

    def kill(self, actor: Actor) -> None:
        """End a process as a power cut would: by SIGKILL, without a shutdown."""
        actor.process.kill()
        actor.process.wait(STOP_WITHIN)

    def stop(self, actor: Actor) -> int:
        """Tell a process to end and return its exit code; raise `StageError` if it does not end."""
        actor.process.send_signal(signal.SIGTERM)
        try:
            return actor.process.wait(STOP_WITHIN)
        except subprocess.TimeoutExpired as error:
            raise StageError(f"{actor.name} did not stop within {STOP_WITHIN:g} s") from error


@contextmanager
def _held_back() -> Iterator[None]:
    """Hold back the signals that end the demo: they must not come between the start of a process and its entry in a list.

    Blocked signals would stay blocked in the process. Other threads than the main one get no signals.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    signals: list[int] = []
    before = {
        number: signal.signal(number, lambda n, _: signals.append(n)) for number in ending_signals()
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for each in signals:
            signal.raise_signal(each)


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


PROJECT = "demo"
QUESTION = "In one sentence, what is a grapevine?"
ANSWER = ("--max-tokens", "80")
SPREAD_WITHIN = 10.0
COMMAND_WITHIN = 120.0


def play(show: DemoOutput, stage: ProcessGroup, *, keep: bool) -> None:
    """Run the whole demo; raise `StageError` if a part of it fails."""
    worker, nodes = _start(show, stage)
    model = worker.fields["model"]
    url = worker.ready.split()[1]
    node_url = nodes[2].fields["http"]

    show.heading("An operator registers the model at node 1")
    _run(show, "register", PROJECT, model, url, "--node", nodes[0].fields["http"])
    with show.step("node 3 learns of the model"):
        _until(lambda: model in _models(node_url), "node 3 did not learn of the model")

    show.heading("A user chats at node 3, which has no model of its own")
    _run(show, "chat", model, QUESTION, *ANSWER, "--node", node_url)

    show.heading("The operator checks the mesh at node 2")
    _run(show, "models", "--node", nodes[1].fields["http"])
    _run(show, "route", model, "--node", nodes[1].fields["http"])

    show.heading("Node 1 is killed: kill -9")
    stage.kill(nodes[0])
    begun = time.monotonic()
    _run(show, "chat", model, QUESTION, *ANSWER, "--node", node_url, fails=True)
    waited = time.monotonic() - begun
    show.fact(f"node 3 waits {waited:.1f} s for the model to return, then reports the error")
    with show.step("node 3 stops listing the model"):
        _until(lambda: model not in _models(node_url), "node 3 still lists the model")

    show.heading("Node 1 restarts with its data: its registration is kept")
    with show.step("node 1 starts"):
        nodes[0] = stage.start_node("node1", bootstrap=[nodes[1].fields["p2p"]])
    with show.step("node 3 routes to it again"):
        _until(lambda: model in _models(node_url), "node 3 did not learn of node 1 again")
    _run(show, "chat", model, "And what is a rumour?", *ANSWER, "--node", node_url)

    if keep:
        _wait(show, nodes)
    show.heading("A clean stop")
    for actor in (*reversed(nodes), worker):
        with show.step(f"{actor.name} stops"):
            code = stage.stop(actor)
        if code != 0:
            raise StageError(f"{actor.name} ended with exit code {code}")


def _start(show: DemoOutput, stage: ProcessGroup) -> tuple[Actor, list[Actor]]:
    show.heading("Three nodes on this machine, and one worker that runs a language model")
    with ThreadPoolExecutor(max_workers=1) as beside:
        loading = beside.submit(stage.start, "worker", "node.demo.worker", "--port", "0")
        nodes: list[Actor] = []
        for number in (1, 2, 3):
            bootstrap = [nodes[0].fields["p2p"]] if nodes else []
            with show.step(f"node {number} starts"):
                nodes.append(stage.start_node(f"node{number}", bootstrap=bootstrap))
        with show.step("the worker loads its model"):
            worker = loading.result()
    if worker.fields["source"] == "random":
        show.note("  no trained model is installed: a tiny random one answers, with random words")
    return worker, nodes


def _run(show: DemoOutput, *arguments: str, fails: bool = False) -> None:
    """Run one `modelvine` command, with its output shown as it arrives; with `fails`, it must end with an error."""
    show.command(*arguments)
    done = subprocess.run(
        [sys.executable, "-m", "node", *arguments],
        stdin=subprocess.DEVNULL,
        # One stream, so that the note about an answer appears below it.
        stderr=sys.stdout,
        timeout=COMMAND_WITHIN,
        check=False,
    )
    if (done.returncode != 0) is not fails:
        raise StageError(f"`modelvine {arguments[0]}` ended with exit code {done.returncode}")


def _models(http: str) -> set[str]:
    with urllib.request.urlopen(f"{http}/v1/models", timeout=5) as answer:  # noqa: S310  (our own node)
        return {row["id"] for row in json.load(answer)["data"]}


def _until(holds: Callable[[], bool], otherwise: str) -> None:
    deadline = time.monotonic() + SPREAD_WITHIN
    while not holds():
        if time.monotonic() > deadline:
            raise StageError(f"{otherwise} after {SPREAD_WITHIN:g} s")
        time.sleep(0.02)


def _wait(show: DemoOutput, nodes: list[Actor]) -> None:
    show.heading("The nodes stay up until Ctrl-C")
    for actor in nodes:
        show.note(f"  {actor.name}  {actor.fields['http']}  {actor.fields['p2p']}")
    show.note(f"  to see it all, open a node's console: {nodes[0].fields['http']}/")
    try:
        while all(actor.process.poll() is None for actor in nodes):
            time.sleep(0.5)
    except KeyboardInterrupt:
        return
    raise StageError("a node ended unexpectedly")
