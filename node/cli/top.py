"""Show nodes, models and requests live, until Ctrl-C.

If the output is no terminal, or with --once or --json, it is shown once, after two samples --every seconds apart.

The first lines count the requests to this node (failed: status 5xx; refused: 4xx), and the input and output tokens of its
workers. The tables show all nodes, by what each reports of its workers: IN FLIGHT the requests that they answer, of how many
they can at one time; QUEUED the requests that wait for them; TOKENS/S the output of streams, counted by events. ROUTE is how
this node reaches the other one. EXPECTED is the estimated time of a request, at the fastest and the slowest replica.

Examples:
  modelvine top
  modelvine top --every 5
  modelvine top --json
"""

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from node.cli.console.options import add_json, add_node_options, number

if TYPE_CHECKING:
    from node.cli.console.client import Client
    from node.cli.console.top_view import TopCounters, TopLook

EVERY = 2.0
"""Seconds between two samples."""

MAX_MODELS = 20
"""Models whose expected seconds are requested for each sample; the busiest ones."""

# Enter a terminal's alternate screen and hide the cursor; leave it and restore both. ECMA-48 and xterm's private modes.
_ENTER, _LEAVE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
_HOME, _LINE_END, _REST = "\x1b[H", "\x1b[K\n", "\x1b[J"


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add = parser.add_argument
    add(
        "--every",
        metavar="S",
        type=number,
        default=EVERY,
        help=f"seconds between samples (default: {EVERY:g})",
    )
    add("--once", action="store_true", help="show it once and exit")
    add_node_options(parser)
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    """Show the view, live or once."""
    import time  # noqa: PLC0415

    from node.cli.console import top_view  # noqa: PLC0415
    from node.cli.console.node_lookup import client  # noqa: PLC0415
    from node.cli.console.text import say_json, terminal_columns  # noqa: PLC0415
    from node.config.sources import can_redraw  # noqa: PLC0415
    from node.errors import WrongUsage  # noqa: PLC0415

    if not 0.01 <= arguments.every <= 3600:
        raise WrongUsage("--every must be a number of seconds from 0.01 to 3600")
    node, every = client(arguments), float(arguments.every)
    before = look(node)
    if can_redraw(sys.stdout) and not (arguments.once or arguments.json):
        _live(node, before, every)
    time.sleep(every)
    latest = look(node)
    if arguments.json:
        say_json(top_view.as_json(before, latest))
    else:
        print("\n".join(top_view.frame(before, latest, columns=terminal_columns() or 1000)))
    return 0


def look(node: "Client") -> "TopLook":
    """Take a sample: query a node for all that is shown."""
    import time  # noqa: PLC0415

    from node.cli.console.top_view import TopLook, models  # noqa: PLC0415

    status = node.get("/api/v1/status", holds="ready")
    nodes = node.get("/api/v1/nodes", holds="nodes")["nodes"]
    catalog = node.get("/api/v1/catalog", holds="nodes")["nodes"]
    bare = TopLook(time.monotonic(), status, nodes, catalog, _counters(node))
    names = [row["model"] for row in models(bare) if not row["type"]][:MAX_MODELS]
    expected = {name: _expected(node, name) for name in names}
    return TopLook(bare.at, status, nodes, catalog, bare.counters, expected)


def _live(node: "Client", before: "TopLook", every: float) -> None:
    """Draw until interrupted, and restore the terminal however it ends."""
    import shutil  # noqa: PLC0415
    import time  # noqa: PLC0415

    from node.cli.console.text import cut, plain  # noqa: PLC0415
    from node.cli.console.top_view import frame  # noqa: PLC0415
    from node.errors import CommandFailed  # noqa: PLC0415

    latest, complaint = before, ""
    with _other_screen():
        while True:
            size = shutil.get_terminal_size()
            lines = frame(
                before,
                latest,
                columns=size.columns,
                lines=size.lines - 1,
                clock=time.strftime("%H:%M:%S"),
            )
            if complaint:
                lines[0] = cut(plain(complaint), size.columns)
            sys.stdout.write(_HOME + "".join(f"{line}{_LINE_END}" for line in lines) + _REST)
            sys.stdout.flush()
            time.sleep(every)
            try:
                before, latest, complaint = latest, look(node), ""
            except CommandFailed as error:
                # The node may be back in a moment.
                complaint = str(error)


@contextmanager
def _other_screen() -> Iterator[None]:
    import signal  # noqa: PLC0415

    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        sys.stdout.write(_ENTER)
        yield
    finally:
        sys.stdout.write(_LEAVE)
        sys.stdout.flush()
        signal.signal(signal.SIGTERM, before)


def _counters(node: "Client") -> "TopCounters":
    from prometheus_client.parser import text_string_to_metric_families  # noqa: PLC0415

    from node.cli.console.top_view import counters_in  # noqa: PLC0415

    with node.request("GET", "/metrics") as answer:
        text = answer.read().decode(errors="replace")
    families = text_string_to_metric_families(text)
    return counters_in((s.name, s.labels, s.value) for family in families for s in family.samples)


def _expected(node: "Client", model: str) -> Sequence[float]:
    """Return the known expected seconds at each replica; none if the model is gone meanwhile."""
    from node.errors import Refused  # noqa: PLC0415

    try:
        explained = node.get("/api/v1/route", holds="candidates", model=model)
    except Refused:
        return ()
    figures: list[Mapping[str, Any]] = [c.get("figures", {}) for c in explained["candidates"]]
    return [f["expected_seconds"] for f in figures if "expected_seconds" in f]
