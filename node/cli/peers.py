"""List the nodes that the local node knows.

STATE is what this node believes, SINCE for how long, WHY on which evidence; STANDING is what the other says of itself.
`unreachable` lives, as others prove, but does not answer this node; `suspect` may be dead; `lost` counts as dead.
HEARD is the time since its last sign of life. CONNECTION also says how it came about: `bootstrap` and `record` were dialled
at an address that was configured or that a node said of itself, `mdns` was found on this network, `rendezvous` at a point
where strangers meet, `asked` was dialled for a caller or a request; `inbound` dialled us.
LOAD is what it said of the requests at its models, whoever sent them, and how long ago; nothing while they are idle.

Examples:
  modelvine peers
  modelvine peers --json
"""

import argparse

from node.cli.console.options import add_json, add_node_options


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add_node_options(parser)
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    """Print the nodes."""
    from node.cli.console.locate import client  # noqa: PLC0415
    from node.cli.console.text import load_of, note, say_json, say_table, seconds  # noqa: PLC0415

    answer = client(arguments).get("/api/v1/nodes", holds="nodes")
    if arguments.json:
        say_json(answer)
        return 0
    say_table(
        (
            "NODE",
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
                node["node"],
                node["state"],
                seconds(node["since"]),
                node["standing"],
                node["models"],
                load_of(node["load"]),
                "-" if node["connection"] == "self" else f"{seconds(node['last_heard'])} ago",
                seconds(node["round_trip"]) if node["round_trip"] else "-",
                ", ".join(filter(None, (node["connection"], node["origin"]))),
                node["why"],
            )
            for node in answer["nodes"]
        ),
        none="no node is known, not even this one",
    )
    if all(node["connection"] == "self" for node in answer["nodes"]):
        note(
            "no other node was met yet; `modelvine status` says at which address this one is joined"
        )
    # Nodes of older versions do not say it.
    joined = answer.get("bootstrap", {"addresses": ()})
    if not all(contact["answers"] for contact in joined["addresses"]):
        note(joined["summary"])
    return 0
