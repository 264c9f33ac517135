"""Support file: the results of a diagnosis, in one archive that holds no secret.

Its content is selected so that it includes no key, token, header, prompt or name of a key's holder. In addition, this machine's
secrets are redacted in every encoding, in case some text quotes one.
"""

import base64
import io
import json
import os
import tarfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from urllib.parse import quote

from node.errors import CommandFailed, WrongUsage

STRUCK = "***"
SHORTEST = 6
"""Least characters of a secret that is redacted; a shorter one would also redact unrelated words."""

ABOUT = """\
Support file of modelvine, made by `modelvine doctor --bundle`.

doctor.json      findings and remedies
settings.json    every setting with its source; passwords are masked
versions.json    of Python, modelvine and its libraries
status.json      the node's answers (absent if no node runs): status, nodes, catalog, examination
metrics.txt      its metrics
logs.json        the last log lines in memory, up to a thousand of each process. For older lines, see where standard
                 error went: journalctl -u modelvine, docker logs, a file

The file contains no key, token, header, password, prompt, answer or name of a key's holder. Review it before you send
it: it names this machine's models, nodes and addresses.
"""


class Redactor:
    """Redactor of secrets in texts: as they are, in JSON, base64, hexadecimal, or percent-encoded."""

    def __init__(self, secrets: Iterable[str], *, home: str = "") -> None:
        """`home` is the home directory of this user, which is written as `~`, as its name is private."""
        spelt = {
            word for secret in secrets if len(secret) >= SHORTEST for word in spellings(secret)
        }
        # The longest first: one may be part of another.
        self._words = sorted(spelt, key=len, reverse=True)
        self._home = home if len(home) > 1 else ""

    def clean(self, text: str) -> str:
        """Return a text with the secrets redacted."""
        for word in self._words:
            text = text.replace(word, STRUCK)
        return text.replace(self._home, "~") if self._home else text


def spellings(secret: str) -> Iterator[str]:
    """Yield the encodings of a secret, for every position in an encoded text."""
    raw = secret.encode()
    yield secret
    yield json.dumps(secret)[1:-1]
    yield quote(secret, safe="")
    yield raw.hex()
    yield raw.hex().upper()
    for before in range(3):
        # The characters at both ends depend on the neighbouring bytes, so they are left out.
        encoded = base64.b64encode(bytes(before) + raw).decode()
        first = -(-before * 8 // 6)
        last = (before + len(raw)) * 8 // 6
        inner = encoded[first:last]
        if len(inner) >= SHORTEST:
            yield inner
            yield inner.replace("+", "-").replace("/", "_")


def write(path: Path, parts: Mapping[str, object], redactor: Redactor, *, now: float) -> None:
    """Write the archive, readable only by its owner; raise `WrongUsage` if the file exists.

    Texts are written as they are, everything else as JSON.
    """
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise WrongUsage(f"{path} exists already: name another file") from None
    except OSError as error:
        raise CommandFailed(f"{path} cannot be written: {error.strerror}") from error
    folder = path.name.partition(".")[0] or "modelvine"
    try:
        with (
            os.fdopen(descriptor, "wb") as file,
            tarfile.open(fileobj=file, mode="w:gz") as archive,
        ):
            for name, part in {"README.txt": ABOUT, **parts}.items():
                text = part if isinstance(part, str) else json.dumps(part, indent=2, default=str)
                content = redactor.clean(text).encode(errors="replace")
                entry = tarfile.TarInfo(f"{folder}/{name}")
                entry.size, entry.mode, entry.mtime = len(content), 0o600, now
                archive.addfile(entry, io.BytesIO(content))
    except OSError as error:
        path.unlink(missing_ok=True)
        raise CommandFailed(f"{path} cannot be written: {error.strerror}") from error
