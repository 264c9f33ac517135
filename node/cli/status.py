"""Show the health of the local node and its parts.

A degraded node keeps serving; the output lists the parts that do not work, with reasons.

Examples:
  modelvine status
  modelvine status --json
"""

import argparse

from node.cli.console.options import add_json, add_node_options


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add_node_options(parser)
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    """Print the status."""
    from node.cli.console.node_lookup import client  # noqa: PLC0415
    from node.cli.console.text import load_of, say_fields, say_json  # noqa: PLC0415
    from registry.clock import duration  # noqa: PLC0415

    found = client(arguments).get("/api/v1/status", holds="ready")
    if arguments.json:
        say_json(found)
        return 0
    ready: dict[str, str] = found["ready"]
    unwell = {part: state for part, state in ready.items() if state != "ok"}
    say_fields(
        (
            ("state", "degraded" if unwell else "ok"),
            *((f"  {part}", state) for part, state in unwell.items()),
            ("name", found["name"]),
            ("peer", found["peer"]),
            ("version", found["version"]),
            ("up for", duration(found["uptime"])),
            ("http", found["http"]),
            *(("p2p", address) for address in found["p2p"]),
            ("link", found["link"]),
            *((("processes", found["processes"]),) if found["processes"] > 1 else ()),
            ("models here", found["models"]),
            *(("worker", f"{_name(w)}: {w['health']}") for w in found.get("workers") or ()),
            ("nodes alive", found["nodes_alive"]),
            *(
                (("bootstrap", told),)
                if (told := found.get("bootstrap", {}).get("summary"))
                else ()
            ),
            ("in flight", found["in_flight"]),
            *(
                ("load", f"{row['project']}/{row['model']}: {load_of([row])}")
                for row in found["load"]
            ),
            ("store", found["store"]),
            ("profile", found["profile"]),
            ("digest", found["digest"]),
        )
    )
    return 0


def _name(worker: dict[str, str]) -> str:
    replica = f" ({worker['cid']})" if worker["cid"] else ""
    return f"{worker['project']}/{worker['model']}{replica}"
