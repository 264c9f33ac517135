"""Drain the local node: its models take no new requests, and requests in flight finish.

Callers of this node, too, get 503 for a model that no other node serves. The node keeps running and its workers stay
registered; `modelvine undrain` ends the drain. With --wait, the command returns with code 0 when none of its models has a
request, so that you can stop the machine, or with 1 after --timeout. It does not wait for requests that pass through the node
to others, as callers go on sending these: a node that is told to stop finishes them.

Examples:
  modelvine drain
  modelvine drain --wait
  # then the machine can be stopped
  modelvine drain --wait --timeout 600
"""

import argparse
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from node.cli.console.options import add_json, add_node_options, number

if TYPE_CHECKING:
    from node.cli.console.client import Client

EVERY = 0.5
"""Seconds between two queries of the requests in flight."""

MOST_SHOWN = 5
"""Models that are listed."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add = parser.add_argument
    add("--wait", action="store_true", help="return when none of its models has a request")
    add(
        "--timeout",
        metavar="S",
        type=number,
        default=0.0,
        help="maximum seconds to wait (default: no limit)",
    )
    add_node_options(parser)
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    """Drain the node, and wait if requested."""
    from node.cli.console.node_lookup import client  # noqa: PLC0415
    from node.cli.console.text import plain, say_json  # noqa: PLC0415
    from node.errors import WrongUsage  # noqa: PLC0415

    if arguments.timeout < 0 or (arguments.timeout and not arguments.wait):
        raise WrongUsage("--timeout must be a number of seconds from 0, with --wait")
    node = client(arguments)
    node.post("/api/v1/drain", {})
    status = node.get("/api/v1/status", holds="ready")
    if not arguments.json:
        print(plain(f"{status['name'] or 'the node'} is draining; {in_flight(status)}"), flush=True)
    remaining = (
        _wait(node, status, float(arguments.timeout)) if arguments.wait else status["in_flight"]
    )
    if arguments.json:
        say_json({"standing": "draining", "in_flight": remaining})
    elif arguments.wait and not remaining:
        print("nothing is in flight at its models now")
    return 1 if arguments.wait and remaining else 0


def in_flight(status: Mapping[str, Any]) -> str:
    """Describe how many requests are in flight, and at which models of this machine."""
    count = status["in_flight"]
    if not count:
        return "nothing is in flight"
    rows = sorted(status["load"], key=lambda row: -row["in_flight"])
    models = [f"{r['project']}/{r['model']} {r['in_flight']}" for r in rows if r["in_flight"]]
    more = ", …" if models[MOST_SHOWN:] else ""
    where = f" ({', '.join(models[:MOST_SHOWN])}{more})" if models else ""
    return f"{count} request{'' if count == 1 else 's'} in flight{where}"


def at_models(status: Mapping[str, Any]) -> int:
    """Return how many requests the models of this machine have, in a slot or in a queue."""
    return sum(row["in_flight"] + row["queued"] for row in status["load"])


def _wait(node: "Client", status: Mapping[str, Any], timeout: float) -> int:
    """Wait until no model has a request, or the time is over; return the number of those that are left."""
    import time  # noqa: PLC0415

    from node.cli.console.progress import Progress  # noqa: PLC0415

    progress, began = Progress(time.monotonic), time.monotonic()
    try:
        while remaining := at_models(status):
            progress.waits(in_flight(status))
            if timeout and time.monotonic() - began >= timeout:
                break
            time.sleep(EVERY)
            status = node.get("/api/v1/status", holds="ready")
    finally:
        progress.end()
    return remaining
