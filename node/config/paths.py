"""Paths of the user's files.

Nothing here touches the disk; the environment is an argument.
"""

import sys
from collections.abc import Mapping
from pathlib import Path

CONFIG_FILE = "modelvine.toml"
IDENTITY_KEY = "identity.key"
CONTROL_TOKEN = "control.token"  # noqa: S105 - the name of a file
NODE_FILE = "node.json"
DATABASE = "modelvine.db"
INVITATION = "invitation"
SWARM_KEY = "swarm.key"


def user_data_dir(environment: Mapping[str, str], *, platform: str = sys.platform) -> Path:
    """Return the user's default data directory.

    It is in the XDG data directory, or in `Library/Application Support` on macOS.
    """
    home = Path(environment.get("HOME") or Path.home())
    if platform == "darwin":
        return home / "Library" / "Application Support" / "modelvine"
    chosen = environment.get("XDG_DATA_HOME", "")
    # The XDG specification requires that a relative path is ignored.
    share = Path(chosen) if chosen.startswith("/") else home / ".local" / "share"
    return share / "modelvine"
