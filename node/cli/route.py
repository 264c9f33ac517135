"""Explain where a request for a model would go; send nothing.

The first candidate would be asked first, the next ones if it fails before its first byte. IN FLIGHT counts requests from
this node, LOAD is what the candidate's node said of everybody's, and how long ago; SCORE is what the policy made of both.

Examples:
  modelvine route tiny
  modelvine route demo/tiny --json
  modelvine route tiny --project demo
"""

import argparse

from node.cli.console.options import add_json, add_node_options


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("model", metavar="MODEL", help="MODEL or PROJECT/MODEL")
    parser.add_argument("--project", metavar="P", default="", help="consider this project only")
    add_node_options(parser)
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    """Print the explanation."""
    from node.cli.console.locate import client  # noqa: PLC0415
    from node.cli.console.text import load_of, plain, say_json, say_table  # noqa: PLC0415

    found = client(arguments).get("/api/v1/route", model=arguments.model, project=arguments.project)
    if arguments.json:
        say_json(found)
        return 0
    print(plain(f"model {found['model']}, policy {found['policy']}"))
    say_table(
        ("", "NODE", "ROUTE", "MODEL", "CID", "IN FLIGHT", "LOAD", "SCORE", "WHY"),
        (
            (
                "*" if c["chosen"] else "",
                c["node"],
                c["route"],
                f"{c['project']}/{c['model']}",
                c["cid"] or "-",
                c["in_flight"],
                load_of([c["load"]] if c["load"] else []),
                c["score"],
                c["why"],
            )
            for c in found["candidates"]
        ),
        none="nobody could answer now",
    )
    if found["excluded"]:
        print("\nleft out:")
        say_table(
            ("NODE", "MODEL", "CID", "REASON"),
            (
                (x["node"], f"{x['project']}/{x['model']}", x["cid"] or "-", x["reason"])
                for x in found["excluded"]
            ),
            none="",
        )
    return 0
