"""Head of HTTP/1.1 that came before on its connection, but for the length that it tells: programs send the same again and again.

Such a head is compared and not read anew. Nothing but digits may differ, so nothing is taken that was not read once.
"""

import re

MOST_BYTES = 2 * 1024
"""Bytes of a head that is remembered."""

TRIES = 3
"""Heads of one connection that are remembered, and never come again, after which none is."""

_LENGTH = re.compile(rb"\r\ncontent-length: ([0-9]{1,7})\r\n", re.IGNORECASE)
_MOST_DIGITS = 7


class RepeatedHead:
    """A head as it was."""

    __slots__ = ("_after", "_at", "_before")

    def __init__(self, before: bytes, after: bytes) -> None:
        """Take what stands before the length, and after it."""
        self._before = before
        self._at = len(before)
        self._after = after

    def found_in(self, data: bytes) -> tuple[int, int] | None:
        """Return where the head ends that `data` begins with, and the length of the body; `None` for any other head."""
        if not data.startswith(self._before):
            return None
        at = self._at
        end = data.find(b"\r", at, at + _MOST_DIGITS + 1)
        if end < 0 or not data.startswith(self._after, end):
            return None
        digits = data[at:end]
        # Who reads a zero before other digits as octal would find another length.
        if not digits.isdigit() or (digits[0] == ord("0") and len(digits) > 1):
            return None
        return end + len(self._after), int(digits)


def remembered(head: bytes) -> RepeatedHead | None:
    """Return what finds a head again that was read, its last line included; `None` for one without a length, or a long one."""
    length = _LENGTH.search(head) if len(head) <= MOST_BYTES else None
    return RepeatedHead(head[: length.start(1)], head[length.end(1) :]) if length else None
