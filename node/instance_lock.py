"""Lock of a data directory against a second node: two with one identity would contradict each other for ever."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from node.errors import CommandFailed
from node.secrets import files as secret_files

LOCK_FILE = "node.lock"


@contextmanager
def only_node_in(data_dir: Path) -> Iterator[None]:
    """Hold the directory; raise `CommandFailed` when another process does.

    The kernel lets go of the lock when the process ends, however it ends, so a stale one cannot be.
    """
    path = data_dir / LOCK_FILE
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise CommandFailed(
            f"{secret_files.unwritable(path, error)}; another is named with --data-dir DIR"
        ) from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise CommandFailed(
                f"another node already runs with the data directory {data_dir}: "
                "stop it, or give this one its own with --data-dir DIR"
            ) from error
        yield
    finally:
        os.close(descriptor)
