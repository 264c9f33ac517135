"""Keys of gRPC faces: a file that only its owner may read, with one key on each line."""

import hmac
from dataclasses import dataclass
from pathlib import Path

from node.secrets import files as secret_files


@dataclass(frozen=True, slots=True)
class Keys:
    """The known keys; without any, no key is needed."""

    known: frozenset[bytes] = frozenset()

    def open_to(self, key: str) -> bool:
        """Return whether a key is accepted. It is compared with all keys in constant time, so that timing reveals nothing."""
        given = key.encode()
        return not self.known or sum(hmac.compare_digest(given, one) for one in self.known) > 0


def read(setting: str, file: str) -> Keys:
    """Read the keys of a setting, none if it names no file; raise `OSError` or `SecretRefused` with a message."""
    if not file:
        return Keys()
    try:
        lines = secret_files.read(Path(file), lenient=True).splitlines()
    except FileNotFoundError as error:
        raise OSError(f"{setting} is {file}: there is no such file") from error
    keys = frozenset(line.strip().encode() for line in lines if line.strip())
    if not keys or any(b"@" in key or not key.isascii() for key in keys):
        raise OSError(
            f"{setting} is {file}: it must hold keys in ASCII, one on each line, without @"
        )
    return Keys(keys)
