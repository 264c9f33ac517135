"""Which node does a command talk to, and may it be shown the control token?

`modelvine up` leaves `node.json` in its data directory while it serves.
"""

import argparse
import json
import os
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

from node import config
from node.addresses import HostPort
from node.cli.console.client import Client, Target
from node.cli.console.options import settings_given
from node.errors import SecretRefused, WrongSetting
from node.paths import CONTROL_TOKEN, NODE_FILE
from node.secret_files import read_control_token

_MAX_FILE_BYTES = 4096
_UNSPECIFIED = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}  # noqa: S104 - compared with, never bound


def client(arguments: argparse.Namespace) -> Client:
    """Return the way to the node that `--node`, MODELVINE_NODE, `node.json` or nobody names; raise `WrongSetting`."""
    data_dir = Path(config.load(settings_given(arguments)).settings.node.data_dir)
    running = _running(data_dir)
    if arguments.node:
        url, origin = arguments.node, "--node"
    elif config.node_address():
        url, origin = config.node_address(), "MODELVINE_NODE"
    elif running:
        url, origin = running, str(data_dir / NODE_FILE)
    else:
        url, origin = config.DEFAULT_NODE, "the default"
    url = url.rstrip("/")
    _check(url, origin)
    return Client(Target(url, origin, _token(data_dir) if url == running or _here(url) else ""))


def leave_trace(data_dir: Path, *, url: str, peer: str) -> None:
    """Write `node.json`, whole or not at all: how commands on this machine find the node."""
    for unspecified, loopback in _UNSPECIFIED.items():
        url = url.replace(f"//{unspecified}:", f"//{loopback}:")
    draft = data_dir / f".{NODE_FILE}.{os.getpid()}"
    draft.write_text(json.dumps({"http": url, "pid": os.getpid(), "peer": peer}) + "\n")
    draft.replace(data_dir / NODE_FILE)


def remove_trace(data_dir: Path) -> None:
    """Remove `node.json`; harmless when there is none."""
    (data_dir / NODE_FILE).unlink(missing_ok=True)


def _running(data_dir: Path) -> str:
    """Return the URL in `node.json`, empty when there is none that can be read."""
    try:
        with (data_dir / NODE_FILE).open("rb") as file:
            found = json.loads(file.read(_MAX_FILE_BYTES))
    except (OSError, ValueError):
        return ""
    url = found.get("http") if isinstance(found, dict) else None
    return url.rstrip("/") if isinstance(url, str) else ""


def _check(url: str, origin: str) -> None:
    try:
        place = urlsplit(url)
        good = place.scheme in ("http", "https") and bool(place.hostname) and place.port != 0
    except ValueError:
        good = False
    if not good or not url.isprintable() or " " in url:
        raise WrongSetting(
            f"the node's URL is {url!r} (from {origin}): it must look like {config.DEFAULT_NODE}"
        )


def _here(url: str) -> bool:
    """Whether a URL means this machine. The token goes nowhere else: whoever gets it could change our node."""
    return HostPort(urlsplit(url).hostname or "", 0).loopback


def _token(data_dir: Path) -> str:
    """Return the control token where we may read it; callers on the node's own machine do without."""
    with suppress(FileNotFoundError, SecretRefused):
        return read_control_token(data_dir / CONTROL_TOKEN)
    return ""
