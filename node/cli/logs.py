"""Show the last lines of the local node's log.

Each process of a node keeps its last thousand lines in memory. For older lines, see where standard error went:
`journalctl -u modelvine`, `docker logs`, or a file. Requires operator rights. With --json each line is one JSON object.

Examples:
  modelvine logs
  modelvine logs --level warning
  modelvine logs -f
  modelvine logs -f --level error --json
"""

import argparse
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from node.cli.console.options import add_json, add_node_options, whole_number

if TYPE_CHECKING:
    from node.cli.console.client import Client

PATH = "/api/v1/logs"
EVERY = 1.0
"""Seconds between two queries for more lines."""

OVERLAP = 2.0
"""Seconds that are queried again: a line of one process may arrive after a later line of another."""

ALL = 10_000
_LEVELS = ("debug", "info", "warning", "error")


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add = parser.add_argument
    add("-f", "--follow", action="store_true", help="follow the log, until Ctrl-C")
    add(
        "--level",
        metavar="{debug,info,warning,error}",
        choices=_LEVELS,
        default=_LEVELS[0],
        help="lowest level to show (default: all)",
    )
    number = whole_number(1, ALL)
    add(
        "--number",
        metavar="N",
        type=number,
        default=0,
        help="lines, the newest last (default: 100)",
    )
    add_node_options(parser)
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    """Print the lines."""
    from node.cli.console.node_lookup import client  # noqa: PLC0415

    node, level, as_json = client(arguments), str(arguments.level), bool(arguments.json)
    number = str(arguments.number or "")
    new = NewLines()
    lines = node.get(PATH, holds="logs", level=level, number=number)["logs"]
    _say(new.of(lines), as_json=as_json)
    if arguments.follow:
        _follow(node, new, level, as_json=as_json)
    return 0


class NewLines:
    """Filter that passes each line once."""

    def __init__(self) -> None:
        self.since = 0.0
        """Time from which lines are to be queried."""
        self._shown: dict[tuple[int, int], float] = {}
        self._first: float | None = None

    def of(self, lines: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        """Return the new lines among these. Lines older than the first line of all are left out."""
        if self._first is None and lines:
            self._first = lines[0]["time"]
        new = [
            line
            for line in lines
            if (line["process"], line["number"]) not in self._shown
            and line["time"] >= (self._first or 0.0)
        ]
        for line in new:
            self._shown[line["process"], line["number"]] = line["time"]
        newest = max(self._shown.values(), default=0.0)
        self.since = max(self.since, newest - OVERLAP)
        self._shown = {
            key: logged_at for key, logged_at in self._shown.items() if logged_at >= self.since
        }
        return new


def _follow(node: "Client", new: NewLines, level: str, *, as_json: bool) -> None:
    """Print new lines until interrupted; a node that does not answer may be back in a moment."""
    import time  # noqa: PLC0415

    from node.cli.console.text import note  # noqa: PLC0415
    from node.errors import NoNode  # noqa: PLC0415

    complaint = ""
    while True:
        time.sleep(EVERY)
        query = {"level": level, "number": str(ALL), "since": f"{new.since:.6f}"}
        try:
            lines = node.get(PATH, holds="logs", **query)["logs"]
        except NoNode as error:
            if str(error) != complaint:
                note(f"modelvine: {error}")
            complaint = str(error)
            continue
        complaint = ""
        _say(new.of(lines), as_json=as_json)


def _say(lines: Iterable[Mapping[str, Any]], *, as_json: bool) -> None:
    import json  # noqa: PLC0415
    import time  # noqa: PLC0415

    from node.cli.console.text import plain  # noqa: PLC0415

    for line in lines:
        if as_json:
            print(json.dumps(line), flush=True)
            continue
        clock = f"{time.strftime('%H:%M:%S', time.localtime(line['time']))}.{int(line['time'] % 1 * 1000):03d}"
        text = f"{clock} {line['level'].upper():<7} {line['logger']}  {line['message']}"
        print(plain(text), flush=True)
