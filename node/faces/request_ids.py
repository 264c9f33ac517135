"""Ids of requests: the caller's `x-request-id` where it is valid, else a new random id."""

import re
from collections.abc import Mapping
from random import getrandbits

from aiohttp import web

ID = web.RequestKey("id", str)
"""The id of a request, in its answer and in logs."""

_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")


def id_of(headers: Mapping[str, str]) -> str:
    """Return the id that the caller gave its request, or a new one."""
    given = headers.get("x-request-id", "")
    return given if is_id(given) else new_id()


def is_id(text: str) -> bool:
    """Return whether `text` is valid as a request id: 1 to 64 letters, digits, dots, underscores and hyphens."""
    return _ID.fullmatch(text) is not None


def new_id() -> str:
    """Return an id for a request without one: 128 random bits in hexadecimal."""
    # The id protects nothing, so it need not cost a system call.
    return getrandbits(128).to_bytes(16).hex()
