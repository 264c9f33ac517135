"""Look-up of the node that a command talks to, and of whether it may be sent the control token.

`modelvine up` keeps `node.json` in its data directory while it serves.
"""

import argparse
import json
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from node.cli.console.client import Client, NodeEndpoint
from node.cli.console.options import settings_given
from node.config import sources
from node.config.addresses import HostPort
from node.config.paths import CONTROL_TOKEN, NODE_FILE
from node.errors import CommandFailed, SecretRefused, WrongSetting, WrongUsage
from node.secrets.secret_files import read_control_token

_MAX_FILE_BYTES = 4096
_MOST_LISTED = 10
_ID_HEAD = "12D3KooW"  # of `registry.signing`, whose import would slow every command down; a test compares them
_GONE = frozenset({"lost", "left"})
_TCP_TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_LISTENS = "0A"  # net/tcp_states.h
_UNSPECIFIED = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}  # noqa: S104 - compared with, never bound


def client(arguments: argparse.Namespace) -> Client:
    """Return a client of the node in `--node`, MODELVINE_NODE or `node.json`, else of the default; raise `WrongSetting`.

    A name in `--node` must be the queried node's own, or `WrongUsage` is raised: other nodes cannot answer for it.
    """
    node, name = client_and_node(arguments)
    if name:
        called = node_called(node.get("/api/v1/nodes", holds="nodes")["nodes"], name)
        if not called["self"]:
            raise WrongUsage(
                f"{name!r} is another node, {called['node']}, which this command must call itself: pass its URL to --node"
            )
    return node


def node_called(nodes: Iterable[Mapping[str, Any]], text: str) -> Mapping[str, Any]:
    """Return the row of the node with this id, prefix of an id, or name; raise `CommandFailed` unless there is exactly one.

    As in the nodes themselves, a node that is gone counts only if no other node matches.
    """
    begins = len(text) > len(_ID_HEAD) and text.startswith(_ID_HEAD)
    matches = [
        row
        for row in nodes
        if (row["node"].startswith(text) if begins else row.get("name") == text)
    ]
    matches = [row for row in matches if row["state"] not in _GONE] or matches
    if len(matches) == 1:
        return matches[0]
    if not matches:
        raise CommandFailed(
            f"no node is called {text!r}: `modelvine peers` lists those that are known; "
            f"a URL looks like {sources.DEFAULT_NODE}"
        )
    them = ", ".join(row["node"] for row in matches[:_MOST_LISTED])
    raise CommandFailed(f"{text!r} may be any of {them}{', …' if matches[_MOST_LISTED:] else ''}")


def client_and_node(arguments: argparse.Namespace) -> tuple[Client, str]:
    """Return a client of the node to query, and the name in `--node` if that is not a URL."""
    data_dir = Path(sources.load(settings_given(arguments)).settings.node.data_dir)
    running, certificate = _running(data_dir)
    name = "" if set(arguments.node) & set(":/ ") else arguments.node
    if arguments.node and not name:
        url, origin = arguments.node, "--node"
    elif sources.node_address():
        url, origin = sources.node_address(), "MODELVINE_NODE"
    elif running:
        url, origin = running, str(data_dir / NODE_FILE)
    else:
        url, origin = sources.DEFAULT_NODE, "the default"
    url = url.rstrip("/")
    _check(url, origin)
    token = sources.configured_key() or (_token(data_dir, url) if url == running else "")
    pinned = certificate if url == running else ""
    return Client(NodeEndpoint(url, origin, token, pinned)), name


def leave_trace(data_dir: Path, *, url: str, peer: str, certificate: str = "") -> None:
    """Write `node.json` atomically, by which commands on this machine find the node."""
    for unspecified, loopback in _UNSPECIFIED.items():
        url = url.replace(f"//{unspecified}:", f"//{loopback}:")
    draft = data_dir / f".{NODE_FILE}.{os.getpid()}"
    fields = {"http": url, "pid": os.getpid(), "peer": peer}
    if certificate:
        fields["certificate"] = str(Path(certificate).resolve())
    draft.write_text(json.dumps(fields) + "\n")
    draft.replace(data_dir / NODE_FILE)


def remove_trace(data_dir: Path) -> None:
    """Remove `node.json`. Idempotent."""
    (data_dir / NODE_FILE).unlink(missing_ok=True)


def left_trace(data_dir: Path) -> int | None:
    """Return the pid in `node.json`, `None` if there is no readable one."""
    pid = _trace(data_dir).get("pid")
    return pid if isinstance(pid, int) and pid > 0 else None


def _trace(data_dir: Path) -> Mapping[str, Any]:
    try:
        with (data_dir / NODE_FILE).open("rb") as file:
            fields = json.loads(file.read(_MAX_FILE_BYTES))
    except (OSError, ValueError):
        return {}
    return fields if isinstance(fields, dict) else {}


def _running(data_dir: Path) -> tuple[str, str]:
    """Return the URL in `node.json`, and the file of its certificate; empty if there is no readable one."""
    fields = _trace(data_dir)
    url, certificate = fields.get("http"), fields.get("certificate")
    return (
        url.rstrip("/") if isinstance(url, str) else "",
        certificate if isinstance(certificate, str) else "",
    )


def _check(url: str, origin: str) -> None:
    try:
        parts = urlsplit(url)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        good = False
    if not good or not (url.isascii() and url.isprintable()) or " " in url:
        raise WrongSetting(
            f"the node's URL is {url!r} (from {origin}): it must look like {sources.DEFAULT_NODE}"
        )


def is_here(url: str) -> bool:
    """Return whether a URL means this machine."""
    return HostPort(urlsplit(url).hostname or "", 0).is_loopback


def _token(data_dir: Path, url: str) -> str:
    """Return the control token if it is readable, and the users of the programs that listen at the URL may read it too.

    After the node has ended, another user's program could listen at its port.
    """
    file = data_dir / CONTROL_TOKEN
    with suppress(FileNotFoundError, SecretRefused):
        token = read_control_token(file)
        listeners = listening_users(urlsplit(url).port or 0)
        if listeners is None or (listeners and listeners <= {0, os.geteuid(), file.stat().st_uid}):
            return token
    return ""


def listening_users(port: int, tables: Iterable[Path] = _TCP_TABLES) -> frozenset[int] | None:
    """Return the uids of the processes that listen at a TCP port of this machine; `None` for a system without such tables."""
    users, readable = set(), [table for table in tables if table.exists()]
    for table in readable:
        with suppress(OSError):
            for line in table.read_text().splitlines()[1:]:
                _, here, _, state, _, _, _, uid, *_ = line.split()
                if state == _LISTENS and int(here.rpartition(":")[2], 16) == port:
                    users.add(int(uid))
    return frozenset(users) if readable else None
