"""Show receipts for requests between this node and others, and compare them with theirs.

Both nodes of a request write a receipt: request id, model, tokens and time, but no content. Their pages are signed and chained.
With a PEER, the command fetches its receipts, verifies them and compares them with the local ones: it fails if both report
different tokens for a request, or if pages were changed or are missing. It counts requests that only one side has: a killed node
loses a quarter of a second, and the oldest pages are deleted.

Examples:
  modelvine receipts
  modelvine receipts gpu-2
  modelvine receipts 12D3KooWQx --json
"""

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

from node.cli.console.options import add_json, add_node_options

PATH = "/api/v1/receipts"


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "peer",
        metavar="PEER",
        nargs="?",
        default="",
        help="compare with this node: its id, the beginning of one, or its name (default: show sums)",
    )
    add_node_options(parser)
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    """Print sums, or a comparison; return 1 if the two nodes disagree."""
    from node.cli.console.node_lookup import client  # noqa: PLC0415
    from node.cli.console.text import say_json, say_table  # noqa: PLC0415

    node = client(arguments)
    nodes: Sequence[Mapping[str, Any]] = node.get("/api/v1/nodes", holds="nodes")["nodes"]
    names = {entry["node"]: entry.get("name", "") for entry in nodes}
    if arguments.peer:
        path = f"{PATH}/{_found(arguments.peer, names)}/comparison"
        return _compare(arguments, node.get(path, holds="differ"))
    rows: Sequence[Mapping[str, Any]] = node.get(PATH, holds="receipts")["receipts"]
    if arguments.json:
        say_json(rows)
        return 0
    verbs = {"asked": "answered us", "served": "asked us"}
    say_table(
        ("NODE", "NAME", "DID", "ANSWERS", "TOKENS"),
        (
            (
                row["peer"],
                names.get(row["peer"], ""),
                verbs[row["side"]],
                f"{row['answers']:,}",
                f"{row['tokens']:,}",
            )
            for row in rows
        ),
        none="no requests to or from other nodes yet",
    )
    return 0


def _found(text: str, names: Mapping[str, str]) -> str:
    from node.errors import CommandFailed  # noqa: PLC0415

    matches = [peer for peer, name in names.items() if text in (peer, name)]
    matches = matches or [peer for peer in names if peer.startswith(text)]
    if len(matches) == 1:
        return matches[0]
    count = "no node" if not matches else f"{len(matches)} nodes"
    raise CommandFailed(
        f"{count} of the mesh has the name or id {text!r}; `modelvine peers` lists them"
    )


def _compare(arguments: argparse.Namespace, comparison: Mapping[str, Any]) -> int:
    from node.cli.console.text import plain, say_json  # noqa: PLC0415

    counts, wrong = comparison["counts"], comparison["faults"]
    disagree = bool(wrong or counts["differ"])
    if arguments.json:
        say_json(comparison)
        return int(disagree)
    print(f"both agree on {comparison['answers']:,} answers, {comparison['tokens']:,} tokens")
    for difference in comparison["differ"]:
        here, their_count = (
            f"{read}+{written}" for read, written in (difference["here"], difference["there"])
        )
        print(plain(f"{difference['request']}: {here} tokens here, {their_count} there"))
    for side, label in (("only_here", "only here"), ("only_there", "only there")):
        if counts[side]:
            print(plain(f"{counts[side]:,} recorded {label}: {', '.join(comparison[side][:5])}"))
    for fault in wrong:
        print(plain(fault))
    return int(disagree)
