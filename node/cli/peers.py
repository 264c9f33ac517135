"""List the nodes that the local node knows.

NODE is a node's name, which others may use too; its ID is unique. STATE is what this node believes, SINCE for how long, WHY for
which reason; STANDING is what the other node says about itself.

`unreachable` nodes live, as others prove, but do not answer this node; `suspect` nodes may be dead; `lost` nodes count as dead.
HEARD is the time since the last sign of life. CONNECTION also shows the source: `bootstrap` and `record` were dialled at a
configured address or at one from a record, `mdns` was found on this network, `rendezvous` at a rendezvous point, `asked` was
dialled for a caller or a request; `inbound` dialled this node. LOAD is the node's last load report with its age; idle nodes
have none.

Examples:
  modelvine peers
  modelvine peers --wide
  modelvine peers --node gpu7 --json
"""

import argparse
from collections.abc import Mapping
from typing import Any

from node.cli.console.options import add_json, add_node_options, add_wide


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add_node_options(parser, about="that node alone")
    add_wide(parser)
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    """Print the nodes."""
    from node.cli.console.node_lookup import client_and_node, node_called  # noqa: PLC0415
    from node.cli.console.text import (  # noqa: PLC0415
        ID,
        load_of,
        say_json,
        say_table,
        shown_ids,
    )
    from registry.clock import duration  # noqa: PLC0415

    client, name = client_and_node(arguments)
    answer = client.get("/api/v1/nodes", holds="nodes")
    # Shortened against all nodes, so that each shown id is unique.
    ids = shown_ids((node["node"] for node in answer["nodes"]), wide=arguments.wide)
    if name:
        answer["nodes"] = [node_called(answer["nodes"], name)]
    if arguments.json:
        say_json(answer)
        return 0
    say_table(
        (
            "NODE",
            ID,
            "STATE",
            "SINCE",
            "STANDING",
            "MODELS",
            "LOAD",
            "HEARD",
            "ROUND TRIP",
            "CONNECTION",
            "WHY",
        ),
        (
            (
                node.get("name") or "-",
                ids[node["node"]],
                node["state"],
                duration(node["since"]),
                node["standing"],
                node["models"],
                load_of(node["load"]),
                "-" if node["connection"] == "self" else f"{duration(node['last_heard'])} ago",
                duration(node["round_trip"]) if node["round_trip"] else "-",
                ", ".join(filter(None, (node["connection"], node["origin"]))),
                node["why"],
            )
            for node in answer["nodes"]
        ),
        none="no nodes are known, not even this one",
        wide=arguments.wide,
    )
    if not name:
        _comment(answer)
    return 0


def _comment(answer: Mapping[str, Any]) -> None:
    """Note missing nodes on standard error."""
    from node.cli.console.text import note  # noqa: PLC0415

    if all(node["connection"] == "self" for node in answer["nodes"]):
        note(
            "no other nodes yet; `modelvine status` shows the address at which they can join this one"
        )
    # Nodes of older versions do not report this.
    joined = answer.get("bootstrap", {"addresses": ()})
    if not all(contact["answers"] for contact in joined["addresses"]):
        note(joined["summary"])
