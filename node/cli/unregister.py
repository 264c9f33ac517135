"""Withdraw a model, or a whole project, from the local node.

Other nodes stop sending requests for it at once. If nothing was registered, this succeeds.

Examples:
  modelvine unregister demo tiny
  modelvine unregister demo tiny --cid second
  modelvine unregister demo painter --type image-edit
  # every model of the project
  modelvine unregister demo
"""

import argparse
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from node.cli.console.options import add_json, add_node_options
from node.cli.console.worker_options import add_type

NOT_THERE = "not existed"
"""Message of a node that had nothing to withdraw."""

_MOST_SHOWN = 10


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("project", metavar="PROJECT", help="the project")
    parser.add_argument(
        "model",
        metavar="MODEL",
        nargs="?",
        default="",
        help="model; without it the whole project",
    )
    parser.add_argument(
        "--cid", metavar="C", default="", help="id of the replica, if there are several"
    )
    add_type(parser, default=None, means="all that were registered")
    add_node_options(parser)
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    """Withdraw the model or project, and print the result."""
    from node.cli.console.node_lookup import client  # noqa: PLC0415
    from node.cli.console.text import plain, say_json  # noqa: PLC0415
    from node.errors import CommandFailed, WrongUsage  # noqa: PLC0415

    if not arguments.model and (arguments.cid or arguments.type is not None):
        option = "--cid" if arguments.cid else "--type"
        raise WrongUsage(f"{option} is for a replica of one model: name the model too")
    node = client(arguments)
    if arguments.model:
        body = {"project": arguments.project, "model": arguments.model, "cid": arguments.cid}
        body |= {} if arguments.type is None else {"type": arguments.type}
        answer = node.post("/api/v0/ai/model/unregister", body)
    else:
        answer = node.post("/api/v0/ai/project/unregister", {"project": arguments.project})
    removed = answer.get("message") != NOT_THERE
    name = arguments.project + (f"/{arguments.model}" if arguments.model else "")
    replica = f", replica {arguments.cid}," if arguments.cid else ""
    if arguments.json:
        say_json({"name": name, "cid": arguments.cid, "removed": removed})
    elif removed:
        print(plain(f"unregistered {name}{replica} at the node {node.target.url}"))
    else:
        hint = ""
        with suppress(CommandFailed):  # the request itself has succeeded
            hint = _instead(node.get("/api/v1/catalog", holds="nodes")["nodes"], arguments)
        print(plain(f"{name}{replica} was not registered at the node {node.target.url}{hint}"))
    return 0


def _instead(nodes: Sequence[Mapping[str, Any]], arguments: argparse.Namespace) -> str:
    """Return what may have been meant: another replica, another project that has the model, another node."""
    here = [service for node in nodes if node["self"] for service in node["services"]]
    if not arguments.model:
        return _listed("; its projects: ", (service["project"] for service in here))
    called = [service for service in here if service["model"] == arguments.model]
    cids = [s["cid"] for s in called if s["project"] == arguments.project and s["cid"]]
    return (
        _listed("; its replicas (--cid): ", cids)
        or _listed("; the model is in the project: ", (s["project"] for s in called))
        or _listed(
            "; registered at other nodes (--node): ",
            (
                node["name"] or node["node"]
                for node in nodes
                for service in node["services"]
                if (service["project"], service["model"]) == (arguments.project, arguments.model)
            ),
        )
    )


def _listed(text: str, names: Iterable[str]) -> str:
    them = sorted(set(names))
    more = ", …" if len(them) > _MOST_SHOWN else ""
    return text + ", ".join(them[:_MOST_SHOWN]) + more if them else ""
