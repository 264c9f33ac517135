"""Heads of requests to workers and peers, and a matcher for heads that repeat an earlier one of their connection.

Programs send the same head again and again. Such a head is compared and not parsed anew. Nothing but digits may differ, and of
an answer its date, so nothing is accepted that was not parsed once. Another node's reports on its worker are cut out before.
"""

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Final

from router import worker_headers
from router.peers.headers import LOAD, PRIORITY, SERVICE_TIME, VIA
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


MOST_BYTES = 2 * 1024
"""Maximum size of a head that is remembered."""

TRIES = 3
"""Heads of one connection that are remembered in vain before the connection remembers none for a while."""

PARSED = 32
"""Heads that such a connection parses before it remembers one again."""

_LENGTH: Final = re.compile(rb"\r\ncontent-length: ([0-9]{1,7})\r\n", re.IGNORECASE)
_MOST_DIGITS: Final = 7
_ZERO: Final = 48
"""The digit 0 in ASCII."""
_SPACE: Final = 32

# As nodes and nginx make ids.
_REQUEST_ID: Final = re.compile(rb"\r\n(?i:x-request-id): ([0-9a-f]{32})\r\n")
_ID_NAME: Final = b"\r\nx-request-id:"
_ID_DIGITS: Final = b"0123456789abcdef"
_ID_BYTES: Final = 32

# As all servers write it (RFC 9110 5.6.7).
_DATE: Final = re.compile(
    rb"\r\n(?i:date): [A-Z][a-z]{2}, \d\d [A-Z][a-z]{2} \d{4} \d\d:\d\d:\d\d GMT(?=\r\n)"
)

# Both lines together, as nodes write them.
_LOAD_LINE: Final = b"\r\n%b: " % LOAD.encode()
_TIME_LINE: Final = b"%b: " % SERVICE_TIME.encode()
_LONGEST_LOAD, _LONGEST_TIME = 100, 400
_WORKER_NAMES: Final = LOAD.encode(), SERVICE_TIME.encode()


class RepeatedHead:
    """A head in which only the length, a request id of 32 hexadecimal digits before it, and a date, if `dated`, may differ."""

    __slots__ = (
        "_after", "_after_length", "_before", "_between", "_date", "_dated", "_id_at", "_id_end", "_length_at",
    )  # fmt: skip

    def __init__(self, before: bytes, between: bytes, after: bytes, *, dated: bool) -> None:
        """Take the bytes before the id, between it and the length, and after that; `between` is empty if there is no id."""
        self._dated, self._date = dated, b""
        self._before = before
        self._between = between
        self._after = after
        self._after_length = len(after)
        self._id_at = len(before)
        self._id_end = self._id_at + _ID_BYTES if between else self._id_at
        self._length_at = self._id_end + len(between)

    def match(self, data: bytes) -> tuple[int, int, bytes] | None:
        """Return the end of the head that `data` begins with, the body's length and the request id; `None` for another head."""
        match = self._match(data)
        if match is None and self._dated and self._take_date(data):
            match = self._match(data)
        return match

    def _match(self, data: bytes) -> tuple[int, int, bytes] | None:
        if not data.startswith(self._before):
            return None
        id_ = b""
        if self._between:
            id_ = data[self._id_at : self._id_end]
            # A slice is compared faster than `startswith` looks at a place.
            between = data[self._id_end : self._length_at]
            if between != self._between or id_.strip(_ID_DIGITS):
                return None
        begin, length = self._length_at, 0
        end, limit = begin, min(len(data), begin + _MOST_DIGITS)
        while end < limit and 0 <= (digit := data[end] - _ZERO) <= 9:
            length, end = 10 * length + digit, end + 1
        # Leading zeros are refused: a parser that reads octal would see another length.
        if end == begin or (data[begin] == _ZERO and end > begin + 1):
            return None
        ends = end + self._after_length
        return (ends, length, id_) if data[end:ends] == self._after else None

    def _take_date(self, data: bytes) -> bool:
        """Put the first date of other bytes in the place of the known one, which is as long; return whether it is another."""
        date = _DATE.search(data, 0, MOST_BYTES)
        if date is None or date[0] == self._date:
            return False
        self._date = date[0]
        self._before = _DATE.sub(date[0], self._before)
        self._between = _DATE.sub(date[0], self._between)
        self._after = _DATE.sub(date[0], self._after)
        return True


def repeated_head_of(head: bytes, *, dated: bool = False) -> RepeatedHead | None:
    """Return the matcher for a parsed head, given up to its empty line; `None` if it has no length, or is too long.

    If `dated`, a head with another date matches: only where no reader uses it.
    """
    length = _LENGTH.search(head) if len(head) <= MOST_BYTES else None
    if length is None:
        return None
    start, after = length.start(1), head[length.end(1) :]
    id_ = _REQUEST_ID.search(head, 0, start)
    # Of two ids it is unclear which one counts.
    if id_ is None or head.lower().count(_ID_NAME) != 1:
        return RepeatedHead(head[:start], b"", after, dated=dated)
    return RepeatedHead(head[: id_.start(1)], head[id_.end(1) : start], after, dated=dated)


def split_worker_lines(data: bytes) -> tuple[bytes, Mapping[str, str], int] | None:
    """Return an answer without the lines in which a node reports on its worker, their values by name, and where they were.

    Return `None` if it has none near its beginning. The caller has to check that its head does not end before them.
    """
    start = data.find(_LOAD_LINE, 0, MOST_BYTES)
    if start < 0:
        return None
    begin = start + len(_LOAD_LINE)
    behind = data.find(b"\r\n", begin, MOST_BYTES)
    if behind < 0:
        return None
    load = _word(data[begin:behind], _LONGEST_LOAD)
    reported = {LOAD: load}
    begin = behind + 2 + len(_TIME_LINE)
    if data[behind + 2 : begin] == _TIME_LINE:
        behind = data.find(b"\r\n", begin, MOST_BYTES)
        if behind < 0:
            return None
        reported[SERVICE_TIME] = _word(data[begin:behind], _LONGEST_TIME)
    # No line goes on, and at least one follows.
    follows = behind + 2 < len(data) and data[behind + 2] > _SPACE
    return (
        (data[:start] + data[behind:], reported, start)
        if follows and all(reported.values())
        else None
    )


def _word(value: bytes, limit: int) -> str:
    """Return a value as text if it is one word of printable ASCII, of so many bytes at most; else an empty text."""
    text = value.decode("ascii", "replace") if len(value) <= limit else ""
    return text if text.isascii() and text.isprintable() and " " not in text else ""


def has_worker_lines(head: bytes) -> bool:
    """Return whether a head has a line in which a node reports on its worker, however it is written."""
    lower = head.lower()
    return any(name in lower for name in _WORKER_NAMES)
