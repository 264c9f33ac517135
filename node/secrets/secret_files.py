"""Secret files: written whole or not at all, readable by the owner only, never replacing another file.

Imports only the standard library: commands read the control token without loading the rest of the node.
"""

import os
import secrets
import stat
from pathlib import Path

from node.errors import SecretRefused

MAX_SECRET_BYTES = 4096
TOKEN_BYTES = 32
SWARM_KEY_CHARACTERS = 64

# The header that go-libp2p's and other implementations' swarm.key files begin with.
_PSK_HEADER = ("/key/swarm/psk/1.0.0/", "/base16/")
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


def make_private_directory(path: Path) -> None:
    """Create a directory that only its owner may enter; leave an existing one unchanged; raise `SecretRefused`."""
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        reason = "a file has this name" if isinstance(error, FileExistsError) else error.strerror
        raise SecretRefused(
            f"the directory {path} cannot be created: {reason}. Set another with --data-dir DIR"
        ) from error


def unwritable(path: Path, error: OSError) -> str:
    """Return a sentence that says that a file cannot be written, and what is needed."""
    return f"{path} cannot be written: {error.strerror}; {path.parent} must be a directory to which this user can write"


def write_new(path: Path, text: str) -> None:
    """Write a secret to a new file of mode 0600, durably; raise `FileExistsError` rather than replace one.

    It is written under another name first and then linked, so no reader ever sees half a secret. Raise `SecretRefused` if it
    cannot be written.
    """
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.link(draft, path)
        _sync_directory(path.parent)
    except FileExistsError:
        raise
    except OSError as error:
        raise SecretRefused(unwritable(path, error)) from error
    finally:
        draft.unlink(missing_ok=True)


def read(path: Path, *, lenient: bool = False, at_most: int = MAX_SECRET_BYTES) -> str:
    """Read a secret; raise `FileNotFoundError`, or `SecretRefused` if other users could have read or replaced it.

    Content that is not ASCII is refused too, but passed to `lenient` callers, which can say what it should be.
    """
    try:
        # Without O_NONBLOCK a named pipe in the file's place would block forever.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise SecretRefused(f"{path} cannot be read: {error.strerror}") from error
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise SecretRefused(f"{path} is not a file")
        if status.st_mode & _open_to(status.st_uid):
            raise SecretRefused(f"{path} can be read by other users: run `chmod 600 {path}`")
        content = os.read(descriptor, at_most + 1)
    finally:
        os.close(descriptor)
    if len(content) > at_most:
        raise SecretRefused(
            f"{path} is larger than {at_most} bytes: it is not one of modelvine's secrets"
        )
    try:
        return content.decode("ascii", errors="replace" if lenient else "strict")
    except UnicodeDecodeError as error:
        raise SecretRefused(f"{path} is not text") from error


def _open_to(owner: int) -> int:
    """Return the mode bits with which a secret of this owner is refused."""
    # Files that root hands to a service stay root's, and are read through the group or an ACL, which shows as the group's
    # right: systemd's LoadCredential, a Secret of Kubernetes.
    return _OTHERS & ~stat.S_IRGRP if owner == 0 != os.geteuid() else _OTHERS


def read_control_token(path: Path) -> str:
    """Return the control token; raise `FileNotFoundError` or `SecretRefused`."""
    token = read(path, lenient=True).strip()
    if len(token) < TOKEN_BYTES or not (token.isascii() and token.isprintable()) or " " in token:
        raise SecretRefused(f"{path} contains no complete token: remove it to get a new one")
    return token


def read_swarm_key(path: Path) -> str:
    """Return a private-swarm key as 64 hexadecimal characters.

    The file holds only these, or the three lines `/key/swarm/psk/1.0.0/`, `/base16/` and the key. Raise `SecretRefused`.
    """
    try:
        lines = tuple(read(path, lenient=True).split())
    except FileNotFoundError:
        raise SecretRefused(
            f"there is no swarm key {path}: create one with `modelvine key swarm`"
        ) from None
    key = lines[-1].lower() if lines else ""
    well_formed = lines[:-1] in ((), _PSK_HEADER)
    if (
        not well_formed
        or len(key) != SWARM_KEY_CHARACTERS
        or not set(key) <= set("0123456789abcdef")
    ):
        raise SecretRefused(
            f"{path} is not a swarm key: it must contain {SWARM_KEY_CHARACTERS} hexadecimal characters. "
            "Copy it from another node of the mesh, or create a new one with `modelvine key swarm FILE`"
        )
    return key


def write_new_swarm_key(path: Path) -> None:
    """Write a new private-swarm key to a new file; raise `FileExistsError` or `SecretRefused`."""
    write_new(path, secrets.token_hex(SWARM_KEY_CHARACTERS // 2) + "\n")


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
