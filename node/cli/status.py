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

    status = client(arguments).get("/api/v1/status", holds="ready")
    if arguments.json:
        say_json(status)
        return 0
    ready: dict[str, str] = status["ready"]
    unwell = {part: state for part, state in ready.items() if state != "ok"}
    say_fields(
        (
            ("state", "degraded" if unwell else "ok"),
            *((f"  {part}", state) for part, state in unwell.items()),
            ("name", status["name"]),
            ("peer", status["peer"]),
            ("version", status["version"]),
            ("up for", duration(status["uptime"])),
            ("http", status["http"]),
            *(("p2p", address) for address in status["p2p"]),
            ("link", status["link"]),
            *((("processes", status["processes"]),) if status["processes"] > 1 else ()),
            ("models here", status["models"]),
            *(("worker", f"{_name(w)}: {w['health']}") for w in status.get("workers") or ()),
            ("nodes alive", status["nodes_alive"]),
            *(
                (("bootstrap", summary),)
                if (summary := status.get("bootstrap", {}).get("summary"))
                else ()
            ),
            ("in flight", status["in_flight"]),
            *(
                ("load", f"{row['project']}/{row['model']}: {load_of([row])}")
                for row in status["load"]
            ),
            ("store", status["store"]),
            ("profile", status["profile"]),
            ("digest", status["digest"]),
        )
    )
    return 0


def _name(worker: dict[str, str]) -> str:
    replica = f" ({worker['cid']})" if worker["cid"] else ""
    return f"{worker['project']}/{worker['model']}{replica}"
