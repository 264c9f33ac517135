"""Paths of the user's files.

Nothing here touches the disk; the environment is an argument.
"""

import sys
from collections.abc import Mapping
from pathlib import Path

from node.errors import WrongSetting

CONFIG_FILE = "modelvine.toml"
IDENTITY_KEY = "identity.key"
CONTROL_TOKEN = "control.token"  # noqa: S105 - the name of a file
NODE_FILE = "node.json"
DATABASE = "modelvine.db"
INVITATION = "invitation"
SWARM_KEY = "swarm.key"


def user_data_dir(environment: Mapping[str, str], *, platform: str = sys.platform) -> Path:
    """Return the user's default data directory.

    It is in the XDG data directory, or in `Library/Application Support` on macOS. Raise `WrongSetting` if the user has none.
    """
    if platform == "darwin":
        return _home(environment) / "Library" / "Application Support" / "modelvine"
    chosen = environment.get("XDG_DATA_HOME", "")
    # The XDG specification requires that a relative path is ignored.
    share = Path(chosen) if chosen.startswith("/") else _home(environment) / ".local" / "share"
    return share / "modelvine"


def _home(environment: Mapping[str, str]) -> Path:
    try:
        return Path(environment.get("HOME") or Path.home())
    except RuntimeError as error:  # as in a container that runs as a user without a name
        message = "this user has no home directory: set the data directory with --data-dir or MODELVINE_DATA_DIR"
        raise WrongSetting(message) from error
