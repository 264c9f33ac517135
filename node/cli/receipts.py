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
    names = {one["node"]: one.get("name", "") for one in nodes}
    if arguments.peer:
        path = f"{PATH}/{_found(arguments.peer, names)}/comparison"
        return _compare(arguments, node.get(path, holds="differ"))
    rows: Sequence[Mapping[str, Any]] = node.get(PATH, holds="receipts")["receipts"]
    if arguments.json:
        say_json(rows)
        return 0
    words = {"asked": "answered us", "served": "asked us"}
    say_table(
        ("NODE", "NAME", "DID", "ANSWERS", "TOKENS"),
        (
            (
                row["peer"],
                names.get(row["peer"], ""),
                words[row["side"]],
                f"{row['answers']:,}",
                f"{row['tokens']:,}",
            )
            for row in rows
        ),
        none="no requests to or from other nodes yet",
    )
    return 0


def _found(said: str, names: Mapping[str, str]) -> str:
    from node.errors import CommandFailed  # noqa: PLC0415

    found = [peer for peer, name in names.items() if said in (peer, name)]
    found = found or [peer for peer in names if peer.startswith(said)]
    if len(found) == 1:
        return found[0]
    what = "no node" if not found else f"{len(found)} nodes"
    raise CommandFailed(
        f"{what} of the mesh has the name or id {said!r}; `modelvine peers` lists them"
    )


def _compare(arguments: argparse.Namespace, found: Mapping[str, Any]) -> int:
    from node.cli.console.text import plain, say_json  # noqa: PLC0415

    counts, wrong = found["counts"], found["faults"]
    disagree = bool(wrong or counts["differ"])
    if arguments.json:
        say_json(found)
        return int(disagree)
    print(f"both agree on {found['answers']:,} answers, {found['tokens']:,} tokens")
    for one in found["differ"]:
        here, there = (f"{read}+{written}" for read, written in (one["here"], one["there"]))
        print(plain(f"{one['request']}: {here} tokens here, {there} there"))
    for side, words in (("only_here", "only here"), ("only_there", "only there")):
        if counts[side]:
            print(plain(f"{counts[side]:,} recorded {words}: {', '.join(found[side][:5])}"))
    for fault in wrong:
        print(plain(fault))
    return int(disagree)
