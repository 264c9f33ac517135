"""Detect a worker's protocol and models, register them, and withdraw them at the end.

The node detects which protocol the server at URL speaks, and registers all models that it lists, or those of --model. Until
Ctrl-C, SIGTERM or a closed output, it checks the worker every few seconds: it withdraws a worker that is gone, and registers it
again when it is back or has other models. After kill -9, the models stay registered.

Examples:
  # llama.cpp, vLLM, Ollama, LM Studio, TGI …
  modelvine attach http://127.0.0.1:8080
  # a LocalAI backend, which does not name its model
  modelvine attach 127.0.0.1:50051 --model own
  # vLLM with a key
  modelvine attach http://127.0.0.1:8000 --header 'authorization: Bearer @/run/secrets/vllm'
"""

import argparse
import io
import math
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any

from node.cli.console.options import add_node_options
from node.cli.console.worker_options import add_asking, add_type, asked
from node.cli.unregister import NOT_THERE

if TYPE_CHECKING:
    from node.cli.console.attach_plan import Found, PlanStep
    from node.cli.console.client import Client

EVERY = 2.0
SHORTEST = 0.05
"""Seconds between two checks of the worker: the default `EVERY`, and the least allowed."""

_AUTO, _NO_PROJECT = "auto", "attached"


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add = parser.add_argument
    add("url", metavar="URL", help="where the worker listens on this machine, or HOST:PORT")
    add(
        "--project",
        metavar="P",
        default="",
        help="project of the models (default: the one that the worker names, or this machine's name)",
    )
    add("--dialect", metavar="D", default=_AUTO, help="the worker's protocol (default: detected)")
    add(
        "--model",
        metavar="NAME",
        action="append",
        default=[],
        help="register only this model, or the model of a worker that lists none; repeatable",
    )
    add(
        "--cid",
        metavar="C",
        default=None,
        help="id of a replica, to distinguish replicas of one model on one machine (default: the port)",
    )
    add(
        "--every",
        metavar="S",
        type=_seconds,
        default=EVERY,
        help=f"seconds between checks of the worker (default: {EVERY:g})",
    )
    add_type(parser)
    add_asking(parser)
    add_node_options(parser)


def run(arguments: argparse.Namespace) -> int:
    """Attach the worker until a signal arrives."""
    from node.cli.console.node_lookup import client  # noqa: PLC0415

    with _until_signal() as stopped:
        attachment = _Attachment(client(arguments), arguments, stopped)
        try:
            attachment.begin()
            attachment.watch()
        finally:
            attachment.end()
    if attachment.unread:
        raise BrokenPipeError
    return 0


class _Attachment:
    """Attachment of one worker to one node."""

    def __init__(
        self, node: "Client", arguments: argparse.Namespace, stopped: threading.Event
    ) -> None:
        from node.cli.console.attach_plan import Registered, port_of  # noqa: PLC0415

        self._node = node
        self._url = str(arguments.url)
        self._stopped = stopped
        self._every = float(arguments.every)
        self._stated = asked(arguments)
        self._type = int(arguments.type)
        self._project = str(arguments.project)
        self._cid = port_of(self._url) if arguments.cid is None else str(arguments.cid)
        self._dialect = "" if arguments.dialect == _AUTO else str(arguments.dialect)
        self._attached = Registered(only=arguments.model)
        self._found: Found | None = None
        self.unread = False

    def begin(self) -> None:
        """Detect the worker, and register its models; raise `CommandFailed`."""
        from node.errors import CommandFailed  # noqa: PLC0415

        attempts, found = self._look(self._url)
        self._say(f"looking at {self._url}")
        is_waiting = False
        while found is None:
            if not any(attempt.get("waits") for attempt in attempts):
                raise CommandFailed(_unknown(self._url, attempts))
            if not is_waiting:
                self._tell(attempts)
                self._say("waiting until it is ready")
            is_waiting = True
            if self._stopped.wait(self._every):
                return
            attempts, found = self._look(self._url)
        self._tell(attempts)
        # Later checks use the detected URL and protocol.
        self._url, self._dialect = str(found["api"]), str(found["dialect"])
        step = self._attached.seen(found)
        if not step.register:
            raise CommandFailed(
                f"the worker at {self._url} does not list its models, or none of the requested ones: "
                "name one with --model NAME"
            )
        self._take(step)
        self._say("monitoring it; Ctrl-C withdraws the models")

    def watch(self) -> None:
        """Check the worker periodically, until a signal arrives or the output is closed."""
        from node.errors import CommandFailed  # noqa: PLC0415

        complaint = ""
        while not self._stopped.wait(self._every):
            if _hung_up():
                self.unread = True
                return
            try:
                attempts, found = self._look(self._url)
                step = self._attached.seen(found)
                if step.gone:
                    self._say(
                        f"{_now()} {', '.join(str(attempt['came']) for attempt in attempts)}: the worker is gone"
                    )
                elif step.back:
                    self._say(f"{_now()} the worker is back")
                self._take(step)
            except CommandFailed as error:
                # The node may be back in a moment, and the worker is still there.
                if str(error) != complaint:
                    self._say(f"{_now()} {error}")
                complaint = str(error)
            else:
                complaint = ""

    def end(self) -> None:
        """Withdraw the registered models; raise `CommandFailed` if the node does not answer, and so keeps them."""
        from node.errors import CommandFailed  # noqa: PLC0415

        for name in self._attached.names:
            try:
                self._withdraw(name)
            except CommandFailed as error:
                command = f"modelvine unregister {self._project_of(name)} {name} --cid {self._cid}"
                raise CommandFailed(
                    f"{error}\nstill registered there; withdraw it with: {command}"
                ) from error

    def _say(self, text: str) -> None:
        """Print a line, parts of which may come from the worker; end the attachment if the output is closed."""
        from node.cli.console.text import plain  # noqa: PLC0415

        if self.unread:
            return
        try:
            print(plain(text), flush=True)
        except BrokenPipeError:
            self.unread = True
            self._stopped.set()

    def _tell(self, tries: Iterable[Mapping[str, Any]]) -> None:
        for came, alike in _by_result(tries).items():
            asked = ", ".join(f"{_short(one['dialect'])}: {one['asked']}" for one in alike)
            self._say(f"  {'yes' if alike[-1]['recognised'] else 'no '}  {asked}: {came}")

    def _look(self, url: str) -> tuple[list[Mapping[str, Any]], "Found | None"]:
        """Return the tries, and the detected worker; one that is busy with the node's requests counts as unchanged."""
        headers = self._stated.get("headers", {})
        body = {"api": url, "dialect": self._dialect, "headers": headers}
        answer = self._node.post("/api/v1/recognise", body)
        found = answer.get("found")
        if found is None and answer.get("busy"):
            found = self._found
        self._found = found or self._found
        return answer.get("tries") or [], found

    def _take(self, step: "PlanStep") -> None:
        for name in step.withdraw:
            self._withdraw(name)
        for row in step.register:
            if not self._stopped.is_set():
                self._register(row)

    def _register(self, row: Mapping[str, Any]) -> None:
        from node.cli.console.worker_options import told  # noqa: PLC0415

        fields = {name: value for name, value in row.items() if name != "said"}
        kind = row["said"].get("type", self._type)
        project = fields["project"] = self._project or str(row.get("project") or _host())
        body = {"cid": self._cid, "type": kind, **self._stated, **fields}
        answer = self._node.post("/api/v0/ai/model/register", body)
        self._attached.registered(row)
        reported = "; ".join(filter(None, map(told, answer.get("learned") or ())))
        replica = f", replica {self._cid}" if self._cid else ""
        self._say(
            f"registered {project}/{row['model']}{replica}: {reported or 'it reports nothing about itself'}"
        )

    def _withdraw(self, name: str) -> None:
        project = self._project_of(name)
        body = {"project": project, "model": name, "cid": self._cid}
        answer = self._node.post("/api/v0/ai/model/unregister", body)
        self._attached.withdrawn(name)
        was_gone = answer.get("message") == NOT_THERE
        self._say(f"{'was withdrawn before:' if was_gone else 'withdrew'} {project}/{name}")

    def _project_of(self, name: str) -> str:
        return self._project or self._attached.project(name) or _host()


@contextmanager
def _until_signal() -> Iterator[threading.Event]:
    """Yield an event that Ctrl-C, SIGTERM or SIGHUP sets; a second such signal ends this process at once."""
    from node.runtime import ending_signals  # noqa: PLC0415 (it loads asyncio, which --help does not need)

    stopped = threading.Event()
    numbers = ending_signals()

    def came(number: int, _: FrameType | None) -> None:
        stopped.set()
        signal.signal(number, before[signal.Signals(number)])

    before = {number: signal.signal(number, came) for number in numbers}
    try:
        yield stopped
    finally:
        for number in numbers:
            signal.signal(number, before[number])


def _hung_up() -> bool:
    """Return whether the reader of the output, such as a terminal or `head`, is gone."""
    try:
        output = sys.stdout.fileno()
    except io.UnsupportedOperation:
        return False
    poller = select.poll()
    poller.register(output, 0)
    return bool(poller.poll(0))


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not SHORTEST <= seconds < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds from {SHORTEST:g}")
    return seconds


def _by_result(tries: Iterable[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    alike: dict[str, list[Mapping[str, Any]]] = {}
    for one in tries:
        alike.setdefault(one["came"], []).append(one)
    return alike


def _short(dialect: str) -> str:
    return dialect.rpartition("_")[0].replace("_", " ")


def _unknown(url: str, attempts: list[Mapping[str, Any]]) -> str:
    # gRPC cannot tell a port at which nothing listens from a silent server.
    if any(attempt["came"] == "nothing listens there" for attempt in attempts):
        return f"nothing listens at {url}: start the worker, or name another port"
    summary = "; ".join(
        f"{', '.join(attempt['asked'] for attempt in alike)} ({came})"
        for came, alike in _by_result(attempts).items()
    )
    return (
        f"no supported protocol was detected at {url}; the node tried: {summary}.\n"
        "If you know its protocol, name it: modelvine register PROJECT MODEL URL --dialect D"
    )


def _host() -> str:
    name = socket.gethostname()
    return name if name and name.isprintable() else _NO_PROJECT


def _now() -> str:
    return time.strftime("%H:%M:%S")
