"""Explain where a request for a model would go, without sending it.

The node would try the first candidate, and the next ones if it fails before its first byte. HERE counts requests from this
node, THERE estimates all requests at the replica, LOAD is its node's last report with its age. Policies that look at
conversations need a message or a whole request.

Examples:
  modelvine route tiny
  modelvine route demo/tiny --json
  modelvine route tiny --node gpu7 --wide
  modelvine route tiny --message "Why is the sky blue?"
  modelvine route tiny --chat request.json --session alice
"""

import argparse
from collections.abc import Mapping
from typing import Any

from node.cli.console.options import add_json, add_node_options, add_wide
from router.peers.headers import NODE, PROJECT, SESSION

_Row = Mapping[str, Any]


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add = parser.add_argument
    add("model", metavar="MODEL", help="MODEL or PROJECT/MODEL")
    add("--project", metavar="P", default="", help="consider this project only")
    group = parser.add_mutually_exclusive_group()
    group.add_argument(
        "--message", metavar="TEXT", default="", help="explain a chat with this message"
    )
    group.add_argument(
        "--chat",
        metavar="FILE",
        default="",
        help="explain this request or list of messages, in JSON; - is standard input",
    )
    add("--session", metavar="S", default="", help="session of the request")
    add_node_options(parser, about="its routes")
    add_wide(parser)
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    """Print the explanation."""
    from node.cli.console.text import say_json  # noqa: PLC0415

    explained = _explained(arguments)
    if arguments.json:
        say_json(explained)
    else:
        _say(explained, wide=arguments.wide)
    return 0


def _explained(arguments: argparse.Namespace) -> dict[str, Any]:
    from node.cli.console.node_lookup import client_and_node  # noqa: PLC0415

    (node, name), path = client_and_node(arguments), "/api/v1/route"
    headers = {SESSION: arguments.session} if arguments.session else {}
    body = _request(arguments)
    if body is None and not headers:
        query = {"model": arguments.model, "project": arguments.project, "node": name}
        return node.get(path, holds="candidates", **query)
    if name:
        headers[NODE] = name
    if arguments.project:
        headers[PROJECT] = arguments.project
    return node.post(path, {**(body or {}), "model": arguments.model}, headers=headers)


def _request(arguments: argparse.Namespace) -> dict[str, Any] | None:
    if arguments.message:
        return {"messages": [{"role": "user", "content": arguments.message}]}
    return _read(arguments.chat) if arguments.chat else None


def _read(file: str) -> dict[str, Any]:
    """Return the request in a file; raise `WrongUsage` if there is none."""
    import json  # noqa: PLC0415
    import sys  # noqa: PLC0415
    from pathlib import Path  # noqa: PLC0415

    from node.errors import WrongUsage  # noqa: PLC0415

    try:
        payload = json.loads(sys.stdin.read() if file == "-" else Path(file).read_bytes())
    except OSError as error:
        raise WrongUsage(f"{file} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise WrongUsage(f"{file} is not JSON: {error}") from error
    if isinstance(payload, list):
        return {"messages": payload}
    if not isinstance(payload, dict):
        raise WrongUsage(f"{file} contains neither a request nor a list of messages")
    return payload


def _say(explained: _Row, *, wide: bool) -> None:
    from node.cli.console.text import ID, load_of, plain, say_table, shown_ids  # noqa: PLC0415

    print(plain(f"model {explained['model']}, policy {explained['policy']}"))
    if explained["fallbacks"]:
        print(plain(f"fallback models: {', '.join(explained['fallbacks'])}"))
    candidates = explained["candidates"]
    ids = shown_ids((row["node"] for row in (*candidates, *explained["excluded"])), wide=wide)
    say_table(
        ("", "NODE", ID, "ROUTE", "MODEL", "CID", "HERE", "THERE", "EXPECTED", "LOAD", "CIRCUIT"),
        (
            (
                rank,
                c.get("name") or "-",
                ids[c["node"]],
                c["route"],
                *_named(c),
                c["in_flight"],
                c["score"],
                _expected(c.get("figures", {})),
                load_of([c["load"]] if c["load"] else []),
                _circuit(c["circuit"]),
            )
            for rank, c in enumerate(candidates, 1)
        ),
        none="no replica can answer now",
        beneath=[c["why"] for c in candidates],
        wide=wide,
    )
    if explained["excluded"]:
        print("\nleft out:")
        say_table(
            ("NODE", ID, "MODEL", "CID", "REASON"),
            (
                (x.get("name") or "-", ids[x["node"]], *_named(x), x["reason"])
                for x in explained["excluded"]
            ),
            none="",
            wide=wide,
        )


def _named(row: _Row) -> tuple[str, str]:
    return f"{row['project']}/{row['model']}", row["cid"] or "-"


def _expected(figures: _Row) -> str:
    if "expected_seconds" not in figures:
        return "-"
    return f"{figures['expected_seconds']:.2f} s ±{figures['error']:.0%}"


def _circuit(circuit: _Row) -> str:
    again = circuit["retry_in"]
    return f"{circuit['state']}, {again:.1f} s" if again else str(circuit["state"])
