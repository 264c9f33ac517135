"""Heads of requests to workers and peers, as they are sent."""

from collections.abc import Mapping
from functools import lru_cache

from router import worker_headers
from router.peers.headers import PRIORITY, VIA
from router.requests import Request
from router.workers import Worker

_PASSED = ("accept", "traceparent", "tracestate", VIA, PRIORITY)


def lines_of(request: Request) -> str:
    """Return the header fields that travel, as they are sent: the body's kind, the trace, the nodes passed, never the caller.

    Raise `ValueError` for one that would be two.
    """
    passed = request.passed
    lines = passed.lines
    if lines is None:
        lines = passed.lines = header_lines(_travelling(passed))
    id_ = request.id
    if not id_.isalnum():
        checked(id_, 0)
    return f"{_until_id(request.content_type)}{id_}\r\n{lines}"


@lru_cache(maxsize=256)
def _until_id(content_type: str) -> str:
    return checked(f"Content-Type: {content_type}\r\nX-Request-Id: ", 1)


def headers_to(worker: Worker, request: Request) -> dict[str, str]:
    """Return the same to a worker: its operator's headers win; raise `WorkerFailed` where one cannot be had."""
    headers = {"Content-Type": request.content_type, "X-Request-Id": request.id}
    return {**headers, **_travelling(request.passed), **worker_headers.read(worker)}


def head_to(worker: Worker, request: Request, start: bytes, length: int) -> bytes:
    """Return the head of a request to a worker, whose first line is `start`; raise `WorkerFailed` as `headers_to` does."""
    lines = header_lines(headers_to(worker, request)) if worker.headers else lines_of(request)
    return written_head(start, lines, length)


def _travelling(passed: Mapping[str, str]) -> dict[str, str]:
    return {name: passed[name] for name in _PASSED if name in passed}


def request_head(start: bytes, headers: Mapping[str, str], length: int) -> bytes:
    """Return a request's head; raise `ValueError` for a header that would be two."""
    return written_head(start, header_lines(headers), length)


def written_head(start: bytes, lines: str, length: int) -> bytes:
    """Return a request's head with these header fields, as `header_lines` writes them."""
    return b"%b%bContent-Length: %d\r\n\r\n" % (start, lines.encode(), length)


def header_lines(headers: Mapping[str, str]) -> str:
    """Return header fields as they are sent; raise `ValueError` for one that would be two."""
    if not headers:
        return ""
    return checked("\r\n".join(map(": ".join, headers.items())) + "\r\n", len(headers))


def checked(lines: str, count: int) -> str:
    """Return header fields as they are sent, so many of them; raise `ValueError` for one that would be two."""
    if lines.count("\n") != count or lines.count("\r") != count or "\0" in lines:
        raise ValueError("a header contains a line break")
    return lines
