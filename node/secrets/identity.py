"""Identity of a node: the key in `identity.key`, and the token that commands show.

`identity.key` holds the 32-byte Ed25519 seed as 64 hexadecimal characters and a newline. A process that has it is this node.
"""

import secrets
from contextlib import suppress
from pathlib import Path

from node.config.paths import CONTROL_TOKEN, IDENTITY_KEY
from node.errors import SecretRefused
from node.secrets import secret_files
from registry.signing import KEY_BYTES, Identity


def load_or_create(data_dir: Path) -> Identity:
    """Return the identity in `data_dir`, creating it if there is none; raise `SecretRefused`."""
    secret_files.make_private_directory(data_dir)
    try:
        return load(data_dir)
    except FileNotFoundError:
        pass
    try:
        return create(data_dir)
    except FileExistsError:  # another process was faster; its key counts
        return load(data_dir)


def load(data_dir: Path) -> Identity:
    """Return the identity in `data_dir`; raise `FileNotFoundError` or `SecretRefused`."""
    path = data_dir / IDENTITY_KEY
    text = secret_files.read(path, lenient=True).strip()
    try:
        seed = bytes.fromhex(text)
    except ValueError:
        seed = b""
    if len(seed) != KEY_BYTES or len(text) != 2 * KEY_BYTES:
        raise SecretRefused(
            f"{path} is not an identity key: it must contain {2 * KEY_BYTES} hexadecimal characters. "
            "Restore it from a backup, or move it away to start as a new node"
        )
    return Identity(seed)


def create(data_dir: Path) -> Identity:
    """Create an identity; raise `FileExistsError` if there is one, since it is never replaced, or `SecretRefused`."""
    secret_files.make_private_directory(data_dir)
    seed = secrets.token_bytes(KEY_BYTES)
    secret_files.write_new(data_dir / IDENTITY_KEY, seed.hex() + "\n")
    return Identity(seed)


def control_token(data_dir: Path) -> str:
    """Return the token that lets its bearer change this node, creating it if there is none; raise `SecretRefused`."""
    secret_files.make_private_directory(data_dir)
    path = data_dir / CONTROL_TOKEN
    try:
        return secret_files.read_control_token(path)
    except FileNotFoundError:
        pass
    with suppress(FileExistsError):  # another process was faster; its token counts
        secret_files.write_new(path, secrets.token_urlsafe(secret_files.TOKEN_BYTES) + "\n")
    return secret_files.read_control_token(path)
