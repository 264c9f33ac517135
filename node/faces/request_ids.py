"""Ids of requests: the caller's `x-request-id` where it is valid, else a new random id."""

import os
import re
from collections.abc import Mapping

from aiohttp import web

ID = web.RequestKey("id", str)
"""The id of a request, in its answer and in logs."""

_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
_DIGITS = 32
_TOGETHER = 64
_DRAWN: list[str] = []
"""New ids that were drawn together, in under a third of the instructions, and are not given out yet."""

# Two processes must not give out the same ids.
os.register_at_fork(after_in_child=_DRAWN.clear)


def id_of(headers: Mapping[str, str]) -> str:
    """Return the id that the caller gave its request, or a new one."""
    sent_id = headers.get("x-request-id", "")
    return sent_id if is_id(sent_id) else new_id()


def is_id(text: str) -> bool:
    """Return whether `text` is valid as a request id: 1 to 64 letters, digits, dots, underscores and hyphens."""
    return _ID.fullmatch(text) is not None


def new_id() -> str:
    """Return an id for a request without one: 128 random bits in hexadecimal."""
    if not _DRAWN:
        digits = os.urandom(_TOGETHER * _DIGITS // 2).hex()
        _DRAWN.extend(
            [digits[offset : offset + _DIGITS] for offset in range(0, len(digits), _DIGITS)]
        )
    return _DRAWN.pop()
