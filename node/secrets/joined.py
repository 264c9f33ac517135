"""Invitation that a node has joined with, kept in its data directory, so that later starts do not need it."""

import sys
import time
from pathlib import Path

from node.auth import grants, invitation
from node.auth.errors import GrantRefused
from node.auth.invitation import Invitation
from node.config.paths import INVITATION, SWARM_KEY
from node.config.settings import Settings
from node.errors import SecretRefused
from node.secrets import secret_files
from registry.records import PeerId


def read_argument(text: str) -> str:
    """Return a text that is given directly, as `@FILE`, or as `-` for standard input; raise `SecretRefused`."""
    if text == "-":
        return sys.stdin.read(invitation.MAX_CHARACTERS + 1).strip()
    if not text.startswith("@"):
        return text
    try:
        return secret_files.read(Path(text[1:]), at_most=invitation.MAX_CHARACTERS).strip()
    except FileNotFoundError:
        raise SecretRefused(f"there is no file {text[1:]}") from None


def save_invitation(data_dir: Path, text: str) -> None:
    """Keep an invitation, replacing an earlier one; raise `SecretRefused` if it is damaged, forged, expired or for users.

    An invitation that is already kept is left as it is, even if expired: a node that is started with it each time still starts.
    """
    try:
        parsed = invitation.read(text)
        grants.check(parsed.grant)
    except GrantRefused as error:
        raise SecretRefused(f"--join: {error}") from error
    if parsed == load_invitation(data_dir):
        return
    if parsed.grant.expires <= time.time():
        ended = time.strftime("%Y-%m-%d %H:%M", time.localtime(parsed.grant.expires))
        raise SecretRefused(f"--join: this invitation ended {ended}: ask for a new one")
    if not parsed.addresses:
        raise SecretRefused("--join: this invitation is for users, not for a node")
    secret_files.make_private_directory(data_dir)
    secret = {INVITATION: text, SWARM_KEY: parsed.swarm_key}
    for name, content in secret.items():
        (data_dir / name).unlink(missing_ok=True)
        if content:
            secret_files.write_new(data_dir / name, content + "\n")


def seal_grant(invitation: Invitation, node: PeerId) -> str:
    """Return the grant of an invitation, sealed for `node`; empty if it has expired."""
    if invitation.grant.expires <= time.time():
        return ""
    return grants.written(grants.seal(invitation.grant, node))


def with_invitation(settings: Settings, invitation: Invitation, data_dir: Path) -> Settings:
    """Return the settings with the invitation's bootstrap addresses added, and the mesh's key if the settings have none."""
    bootstrap = tuple(dict.fromkeys((*settings.mesh.bootstrap, *invitation.addresses)))
    key = settings.node.swarm_key or (str(data_dir / SWARM_KEY) if invitation.swarm_key else "")
    return settings.model_copy(
        update={
            "mesh": settings.mesh.model_copy(update={"bootstrap": bootstrap}),
            "node": settings.node.model_copy(update={"swarm_key": key}),
        }
    )


def load_invitation(data_dir: Path) -> Invitation | None:
    """Return the kept invitation, `None` if there is none; raise `SecretRefused`."""
    path = data_dir / INVITATION
    try:
        return invitation.read(secret_files.read(path, at_most=invitation.MAX_CHARACTERS))
    except FileNotFoundError:
        return None
    except GrantRefused as error:
        raise SecretRefused(f"{path}: {error}") from error
