r"""Register one model at the local node.

All nodes can use the model as soon as this returns. URL is where the worker listens on this machine: its base URL, with or
without /v1, or a full endpoint. With another path, it is one endpoint that gets only requests of its type. Registering the
same project, model, cid and type again replaces the registration.

A header's value may end in @FILE: the node reads the file's first line for each request, so that the key is stored
nowhere else and does not appear in the process list.

Examples:
  modelvine register demo tiny http://127.0.0.1:8080
  modelvine register demo painter http://127.0.0.1:8081/v1 --type image
  modelvine register demo painter http://127.0.0.1:8081/edit --type image-edit
  modelvine register demo tiny http://127.0.0.1:8082 --cid second --capacity 4 --context 8192
  modelvine register demo big http://127.0.0.1:8000 \
    --header 'authorization: Bearer @/run/secrets/vllm'
  modelvine register demo own grpc+localai://127.0.0.1:9000 --load ContextSize=4096 --load MMap=true
"""

import argparse
import sys

from node.cli.console.options import add_json, add_node_options
from node.cli.console.worker_options import TYPES, add_asking, add_type, asked, told, unnamed


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add = parser.add_argument
    add("project", metavar="PROJECT", help="project of the model")
    add("model", metavar="MODEL", help="name that clients use")
    add("url", metavar="URL", help="where the worker listens on this machine")
    add_type(parser)
    add(
        "--dialect",
        metavar="D",
        default="",
        help="the worker's protocol (default: from the URL, else openai_http)",
    )
    add(
        "--cid",
        metavar="C",
        default="",
        help="id of a replica, to distinguish replicas of one model on one machine",
    )
    add(
        "--worker-model",
        metavar="NAME",
        default="",
        help="the worker's own name for the model, if it differs",
    )
    add_asking(parser)
    add_node_options(parser)
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    """Register the model, and print what was registered."""
    from node.cli.console.node_lookup import client  # noqa: PLC0415
    from node.cli.console.text import plain, say_json  # noqa: PLC0415

    body: dict[str, object] = {
        "project": arguments.project,
        "model": arguments.model,
        "api": arguments.url,
        "type": arguments.type,
        "cid": arguments.cid,
    }
    optional = {"dialect": arguments.dialect, "worker_model": arguments.worker_model}
    body |= {name: value for name, value in optional.items() if value} | asked(arguments)
    node = client(arguments)
    answer = node.post("/api/v0/ai/model/register", body)
    if arguments.json:
        # Readers of the output must not see the keys.
        names = {"headers": sorted(dict(arguments.header))} if arguments.header else {}
        told_too = {k: answer[k] for k in ("learned", "warnings") if answer.get(k)}
        say_json(body | names | told_too)
        return 0
    replica = f", replica {arguments.cid}" if arguments.cid else ""
    summary = f"registered {arguments.project}/{arguments.model} ({TYPES[arguments.type]}{replica})"
    print(plain(f"{summary}, served by {arguments.url}, at the node {node.target.url}"))
    for row in answer.get("learned") or ():
        more = unnamed(row, arguments.worker_model or arguments.model)
        print(plain(f"the worker reports: {told(row) or 'nothing about itself'}{more}"))
    for warning in answer.get("warnings") or ():
        print(plain(f"warning: {warning}"), file=sys.stderr)
    return 0
