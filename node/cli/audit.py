"""Show changes by operators at all nodes of the site: keys, registrations, drains, peers.

Each entry contains the hash of the one before. `--verify` checks all stored entries and fails if one was changed or is missing;
the store keeps a thousand entries of each node.

Examples:
  modelvine audit
  modelvine audit --number 1000 --json
  modelvine audit --verify
"""

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

from node.cli.console.options import add_json, add_node_options, whole_number

PATH = "/api/v1/audit"
ALL = 10_000


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add = parser.add_argument
    add(
        "--number",
        metavar="N",
        type=whole_number(1, ALL),
        default=0,
        help="entries, the newest last (default: 100)",
    )
    add("--verify", action="store_true", help="verify the chains, and show only errors")
    add_node_options(parser)
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    """Print the entries, or verify them."""
    from node.cli.console.node_lookup import client  # noqa: PLC0415
    from node.cli.console.text import SHORT_ID, cut, say_json, say_table  # noqa: PLC0415

    number = ALL if arguments.verify else arguments.number
    answer = client(arguments).get(PATH, holds="audit", number=str(number or ""))
    entries: Sequence[Mapping[str, Any]] = answer["audit"]
    if arguments.verify:
        return _verify(entries, as_json=arguments.json)
    if arguments.json:
        say_json(entries)
        return 0
    say_table(
        ("WHEN", "NODE", "WHO", "WHAT"),
        (
            (
                _when(e["at"]),
                cut(e["node"], SHORT_ID),
                e["who"],
                f"{e['action']} {e['target']}".rstrip(),
            )
            for e in entries
        ),
        none="no changes yet",
    )
    return 0


def _verify(entries: Sequence[Mapping[str, Any]], *, as_json: bool) -> int:
    from node.auth import audit  # noqa: PLC0415 (it imports pydantic, which other commands do not need)
    from node.cli.console.text import plain, say_json  # noqa: PLC0415
    from node.errors import CommandFailed  # noqa: PLC0415

    try:
        faults = audit.faults(audit.read(entries))
    except ValueError as error:
        raise CommandFailed("the node returned invalid entries") from error
    if as_json:
        say_json({"entries": len(entries), "faults": list(faults)})
    elif not faults:
        last = max(entries, key=lambda entry: entry["at"], default=None)
        end = f"; the last hash is {last['hash']}" if last else ""
        count = "1 entry" if len(entries) == 1 else f"{len(entries):,} entries"
        print(f"{count}: none was changed, none is missing{end}")
    for fault in faults if not as_json else ():
        print(plain(fault))
    return 1 if faults else 0


def _when(timestamp: float) -> str:
    import time  # noqa: PLC0415

    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(timestamp))
