"""HTTP headers that a worker gets with every request, and the sources of their values.

A value is given as it is sent, or names a file by `@/path`, alone or after a word (`Bearer @/run/secrets/key`). The file's first
line is read for each request, so that a key need not be stored here and may change. No value is ever logged or shown.
"""

import os
import re
import stat
from collections.abc import Iterable, Mapping

from router.errors import WorkerFailed
from router.peers.headers import PREFIX
from router.workers import Worker

MAX_HEADERS = 16
MAX_HEADERS_BYTES = 4096
"""Most headers of one worker, and most bytes of all their names and values; a value from a file has the same bound."""

# Names that both HTTP and gRPC accept.
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
_VALUE = re.compile(r"[!-~](?:[ -~]*[!-~])?")
_NAMED = re.compile(r"(|[!-~]* )@(/.*)")

_OURS = frozenset(
    {
        "accept", "accept-encoding", "content-encoding", "content-length", "content-type", "expect", "host", "x-request-id",
    }
)  # fmt: skip
_OF_A_CONNECTION = frozenset(
    {
        "connection", "http2-settings", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection", "te",
        "trailer", "transfer-encoding", "upgrade",
    }
)  # fmt: skip
"""Hop-by-hop headers, which concern one connection alone (RFC 9110 7.6.1)."""


def objection(name: str, value: str) -> str:
    """Return why a header cannot be sent with every request, empty if it can; the value is not quoted."""
    if not _NAME.fullmatch(name):
        return f"{name[:64]!r} is not a header name: at most 64 of a-z, 0-9, '.', '_' and '-'"
    if name in _OURS or name in _OF_A_CONNECTION or name.startswith((PREFIX, "grpc-")):
        return f"the header {name!r} is set by the node"
    if name.endswith("-bin"):
        return f"the header {name!r} must be binary in gRPC"
    if not _VALUE.fullmatch(value):
        return f"the value of the header {name!r} must be printable ASCII without blanks around it"
    if value.startswith("@") and _NAMED.fullmatch(value) is None:
        return (
            f"the value of the header {name!r} names a file; use its absolute path: @/path/to/file"
        )
    return ""


def size(headers: Iterable[tuple[str, str]]) -> int:
    """Return how many bytes headers have, names and values together."""
    return sum(len(name) + len(value) for name, value in headers)


def files(worker: Worker) -> list[str]:
    """Return the names of the headers whose values are in files."""
    return [name for name, value in worker.headers if _NAMED.fullmatch(value)]


def read(worker: Worker) -> Mapping[str, str]:
    """Return the headers to send to a worker now, by lower-case name; raise `WorkerFailed` if a file cannot be used."""
    return {name: _value(name, value) for name, value in worker.headers}


def _value(name: str, value: str) -> str:
    match = _NAMED.fullmatch(value)
    if match is None:
        return value
    try:
        content = _first_line(match[2])
    except (OSError, ValueError) as error:
        # Without the path: it is the operator's business, and this message reaches callers.
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise WorkerFailed(
            f"the file of the worker's header {name!r} cannot be read: {reason}"
        ) from error
    if not _VALUE.fullmatch(content):
        raise WorkerFailed(f"the file of the worker's header {name!r} has no first line")
    return match[1] + content


def _first_line(path: str) -> str:
    # Without O_NONBLOCK, a pipe put in the file's place would block all requests.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ValueError("it is not a file")
        content = os.read(descriptor, MAX_HEADERS_BYTES + 1)
    finally:
        os.close(descriptor)
    line = content.partition(b"\n")[0].strip()
    if len(line) > MAX_HEADERS_BYTES:
        raise ValueError(f"its first line has more than {MAX_HEADERS_BYTES} bytes")
    return line.decode("ascii", "replace")
