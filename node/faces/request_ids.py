"""Ids of requests: what their callers call them, else a new name."""

import re
from collections.abc import Mapping
from random import getrandbits

from aiohttp import web

ID = web.RequestKey("id", str)
"""What a request is called, in its answer and in logs."""

_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")


def id_of(headers: Mapping[str, str]) -> str:
    """Return what a caller calls its request, or a new name."""
    given = headers.get("x-request-id", "")
    return given if is_id(given) else new_id()


def is_id(text: str) -> bool:
    """Whether a caller may call its request so."""
    return _ID.fullmatch(text) is not None


def new_id() -> str:
    """Return a name for a request of which its caller says none."""
    # It guards nothing, so it need not cost a system call.
    return getrandbits(128).to_bytes(16).hex()
