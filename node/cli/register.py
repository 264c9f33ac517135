"""Register one model at the local node.

The whole network can ask for it as soon as this returns. URL is where the model's worker listens on this machine: its
base, with or without /v1, or a full endpoint. Registering the same project, model and cid again replaces it.

Examples:
  modelvine register demo tiny http://127.0.0.1:8080
  modelvine register demo painter http://127.0.0.1:8081/v1 --type image
  modelvine register demo tiny http://127.0.0.1:8082 --cid second --capacity 4 --context 8192
"""

import argparse

from node.cli.console.options import add_json, add_node_options

# The names of `registry.records.ModelType`, whose import would slow every --help down; a test compares them.
TYPES = ("text", "image", "image-edit", "embedding", "transcription", "speech", "rerank")


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add = parser.add_argument
    add("project", metavar="PROJECT", help="the project that the model belongs to")
    add("model", metavar="MODEL", help="the name that clients use")
    add("url", metavar="URL", help="where its worker listens on this machine")
    add(
        "--type",
        metavar="T",
        type=_type,
        default=0,
        help=f"{', '.join(TYPES)}, or 0 to 6 (default: text)",
    )
    add(
        "--dialect",
        metavar="D",
        default="",
        help="the worker's protocol (default: from the URL, else openai_http)",
    )
    add("--cid", metavar="C", default="", help="tells replicas of one model on one machine apart")
    add(
        "--worker-model",
        metavar="NAME",
        default="",
        help="the worker's own name for the model, where it differs",
    )
    add(
        "--capacity",
        metavar="N",
        type=_count,
        default=0,
        help="requests that the worker takes at one time",
    )
    add(
        "--context",
        metavar="N",
        type=_count,
        default=0,
        help="tokens that the model can read and write in one request",
    )
    add_node_options(parser)
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    """Register, and say what was registered."""
    from node.cli.console.locate import client  # noqa: PLC0415
    from node.cli.console.text import plain, say_json  # noqa: PLC0415

    body: dict[str, object] = {
        "project": arguments.project,
        "model": arguments.model,
        "api": arguments.url,
        "type": arguments.type,
        "cid": arguments.cid,
    }
    optional = {
        "dialect": arguments.dialect,
        "worker_model": arguments.worker_model,
        "capacity": arguments.capacity,
        "context": arguments.context,
    }
    body |= {name: value for name, value in optional.items() if value}
    node = client(arguments)
    node.post("/api/v0/ai/model/register", body)
    if arguments.json:
        say_json(body)
        return 0
    replica = f", replica {arguments.cid}" if arguments.cid else ""
    said = f"registered {arguments.project}/{arguments.model} ({TYPES[arguments.type]}{replica})"
    print(plain(f"{said}, served by {arguments.url}, at the node {node.target.url}"))
    return 0


def _type(text: str) -> int:
    if text.isdigit() and int(text) < len(TYPES):
        return int(text)
    if text in TYPES:
        return TYPES.index(text)
    raise argparse.ArgumentTypeError(
        f"{text!r} is none of {', '.join(TYPES)}, nor a number from 0 to 6"
    )


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number")
    return int(text)
