"""Heads of requests to workers and peers, as they are sent."""

from collections.abc import Mapping
from functools import lru_cache

from router import worker_headers
from router.peers.headers import PRIORITY, VIA
from router.requests import Request
from router.workers import Worker

_TYPE, _ID = "Content-Type", "X-Request-Id"
_PASSED = ("accept", "traceparent", "tracestate", VIA, PRIORITY)


def forwarded_head(request: Request, start: bytes, length: int, more: str = "") -> bytes:
    """Return the head of a request that is passed on: after `start`, with `more` lines as `header_lines` writes them.

    It has the header fields that travel: the body's type, the trace, the nodes passed, never the caller. Raise `ValueError` for
    a header with a line break.
    """
    passed, id_ = request.passed, request.id
    lines = passed.lines
    if lines is None:
        lines = passed.lines = header_lines(_travelling(passed))
    # An id of letters and digits, which most are, has no line break.
    if not id_.isalnum():
        header_lines({_ID: id_})
    begins = _until_id(start, request.content_type)
    return f"{begins}{id_}\r\n{lines}{more}Content-Length: {length}\r\n\r\n".encode()


@lru_cache(maxsize=1024)
def _until_id(start: bytes, content_type: str) -> str:
    return f"{start.decode()}{header_lines({_TYPE: content_type})}{_ID}: "


def headers_to(worker: Worker, request: Request) -> dict[str, str]:
    """Return the headers of a request to a worker: its operator's win; raise `WorkerFailed` if one cannot be read."""
    headers = {_TYPE: request.content_type, _ID: request.id}
    return {**headers, **_travelling(request.passed), **worker_headers.read(worker)}


def head_to(worker: Worker, request: Request, start: bytes, length: int) -> bytes:
    """Return the head of a request to a worker, which begins with `start`; raise `WorkerFailed` as `headers_to` does."""
    if worker.headers:
        return request_head(start, headers_to(worker, request), length)
    return forwarded_head(request, start, length)


def _travelling(passed: Mapping[str, str]) -> dict[str, str]:
    return {name: passed[name] for name in _PASSED if name in passed}


def request_head(start: bytes, headers: Mapping[str, str], length: int) -> bytes:
    """Return a request's head; raise `ValueError` for a header with a line break."""
    return b"%b%bContent-Length: %d\r\n\r\n" % (start, header_lines(headers).encode(), length)


def header_lines(headers: Mapping[str, str]) -> str:
    """Return header fields as they are sent; raise `ValueError` for one with a line break or a NUL."""
    if not headers:
        return ""
    lines, count = "\r\n".join(map(": ".join, headers.items())) + "\r\n", len(headers)
    if lines.count("\n") != count or lines.count("\r") != count or "\0" in lines:
        raise ValueError("a header contains a line break")
    return lines
