"""Head of HTTP/1.1 that came before on its connection, but for its length and its request id: programs send the same again.

Such a head is compared and not read anew. Nothing but digits may differ, so nothing is taken that was not read once. What
another node tells of its worker in the head of an answer is cut out before.
"""

import re
from collections.abc import Mapping
from typing import Final

from router.peers.headers import LOAD, SERVICE_TIME

MOST_BYTES = 2 * 1024
"""Bytes of a head that is remembered."""

TRIES = 3
"""Heads of one connection that are remembered, and never come again, after which none is."""

_LENGTH: Final = re.compile(rb"\r\ncontent-length: ([0-9]{1,7})\r\n", re.IGNORECASE)
_MOST_DIGITS: Final = 7
_ZERO: Final = 48
"""The digit 0 in ASCII."""

# As nodes and nginx make them.
_ID: Final = re.compile(rb"\r\n(?i:x-request-id): ([0-9a-f]{32})\r\n")
_ID_NAME: Final = b"\r\nx-request-id:"
_HEAD_END: Final = b"\r\n\r\n"
_ID_DIGITS: Final = b"0123456789abcdef"
_ID_BYTES: Final = 32

# Together, as nodes write them, and no line after them that would go on with theirs.
_TELLS: Final = b"\r\n%b: " % LOAD.encode()
_TOLD: Final = re.compile(
    rb"\r\n%b: ([!-~]{1,100})(?:\r\n%b: ([!-~]{1,400}))?(?=\r\n[!-~])"
    % (LOAD.encode(), SERVICE_TIME.encode())
)
_TOLD_NAMES: Final = LOAD.encode(), SERVICE_TIME.encode()


class RepeatedHead:
    """A head as it was, but for the length that it tells and for a request id of 32 hexadecimal digits before that."""

    __slots__ = ("_after", "_before", "_between", "_id_at", "_id_end", "_left", "_length_at")

    def __init__(self, before: bytes, between: bytes, after: bytes) -> None:
        """Take what stands before the id, between it and the length, and after that; `between` is empty where there is no id."""
        self._before = before
        self._between = between
        self._after = after
        self._left = len(after)
        self._id_at = len(before)
        self._id_end = self._id_at + _ID_BYTES if between else self._id_at
        self._length_at = self._id_end + len(between)

    def found_in(self, data: bytes) -> tuple[int, int, bytes] | None:
        """Return where the head ends that `data` begins with, the length of the body and the request id; `None` for any other."""
        if not data.startswith(self._before):
            return None
        id_ = b""
        if self._between:
            end = self._id_end
            id_ = data[self._id_at : end]
            if not data.startswith(self._between, end) or id_.strip(_ID_DIGITS):
                return None
        begin, length = self._length_at, 0
        end, most = begin, min(len(data), begin + _MOST_DIGITS)
        while end < most and 0 <= (digit := data[end] - _ZERO) <= 9:
            length, end = 10 * length + digit, end + 1
        # Who reads a zero before other digits as octal would find another length.
        if end == begin or (data[begin] == _ZERO and end > begin + 1):
            return None
        return (end + self._left, length, id_) if data.startswith(self._after, end) else None


def remembered(head: bytes) -> RepeatedHead | None:
    """Return what finds a head again that was read, its last line included; `None` for one without a length, or a long one."""
    length = _LENGTH.search(head) if len(head) <= MOST_BYTES else None
    if length is None:
        return None
    start, after = length.start(1), head[length.end(1) :]
    id_ = _ID.search(head, 0, start)
    # Of two with one name it depends which one counts.
    if id_ is None or head.lower().count(_ID_NAME) != 1:
        return RepeatedHead(head[:start], b"", after)
    return RepeatedHead(head[: id_.start(1)], head[id_.end(1) : start], after)


def without_told(data: bytes) -> tuple[bytes, Mapping[str, str]] | None:
    """Return what an answer is without the lines in which a node tells of its worker, and what these say, by name.

    `None` for one without such lines in its head, where that is short enough to be remembered.
    """
    end = data.find(_HEAD_END, 0, MOST_BYTES) + 2
    at = data.find(_TELLS, 0, end)
    found = None if at < 0 else _TOLD.match(data, at, end)
    if found is None:
        return None
    load, service_time = found.groups()
    told = {LOAD: load.decode()}
    if service_time is not None:
        told[SERVICE_TIME] = service_time.decode()
    return data[: found.start()] + data[found.end() :], told


def tells(head: bytes) -> bool:
    """Say whether a head has a line in which a node tells of its worker, however it is written."""
    lower = head.lower()
    return any(name in lower for name in _TOLD_NAMES)
