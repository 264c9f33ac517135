"""Take a model, or a whole project, away from the local node.

Other nodes stop sending requests for it at once. It is no error when there was nothing to take away.

Examples:
  modelvine unregister demo tiny
  modelvine unregister demo tiny --cid second
  # every model of the project
  modelvine unregister demo
"""

import argparse

from node.cli.console.options import add_json, add_node_options

_NOT_THERE = "not existed"


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("project", metavar="PROJECT", help="the project")
    parser.add_argument(
        "model",
        metavar="MODEL",
        nargs="?",
        default="",
        help="the model; without it the whole project",
    )
    parser.add_argument(
        "--cid", metavar="C", default="", help="which replica, where there are several"
    )
    add_node_options(parser)
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    """Unregister, and say what became of it."""
    from node.cli.console.locate import client  # noqa: PLC0415
    from node.cli.console.text import plain, say_json  # noqa: PLC0415
    from node.errors import WrongUsage  # noqa: PLC0415

    if arguments.cid and not arguments.model:
        raise WrongUsage("--cid names a replica of one model: name the model as well")
    node = client(arguments)
    if arguments.model:
        body = {"project": arguments.project, "model": arguments.model, "cid": arguments.cid}
        answer = node.post("/api/v0/ai/model/unregister", body)
    else:
        answer = node.post("/api/v0/ai/project/unregister", {"project": arguments.project})
    removed = answer.get("message") != _NOT_THERE
    name = arguments.project + (f"/{arguments.model}" if arguments.model else "")
    if arguments.json:
        say_json({"name": name, "cid": arguments.cid, "removed": removed})
    elif removed:
        print(plain(f"unregistered {name} at the node {node.target.url}"))
    else:
        print(plain(f"{name} was not registered at the node {node.target.url}"))
    return 0
