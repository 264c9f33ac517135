"""Trace context of a request, as the W3C has it: read as strictly as its specification asks, and never made up.

A node is no span of its own: a valid `traceparent` travels on unchanged over every hop, an invalid one is dropped with its state.
W3C Trace Context, level 1: 3.2 `traceparent`, 3.3 `tracestate`.
"""

import re
from collections.abc import Mapping

PARENT = "traceparent"
STATE = "tracestate"

MAX_STATE_CHARACTERS = 512
"""What must be passed on of a state; a longer one is dropped, as the specification allows."""

MAX_STATE_MEMBERS = 32

# Version, trace id, the caller's span, flags; later versions may say more after that.
_PARENT = re.compile(
    r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(-[\x21-\x7e]*)?"
)
_LONGEST_PARENT = 256
_KEY = r"(?:[a-z][a-z0-9_*/-]{0,255}|[a-z0-9][a-z0-9_*/-]{0,240}@[a-z][a-z0-9_*/-]{0,13})"
_VALUE = r"[\x20-\x2b\x2d-\x3c\x3e-\x7e]{0,255}[\x21-\x2b\x2d-\x3c\x3e-\x7e]"
_MEMBER = re.compile(rf"{_KEY}={_VALUE}")


def carried(headers: Mapping[str, str]) -> dict[str, str]:
    """Return the trace headers that travel on with a request, by lower-case name; none where its parent is not valid."""
    parent = headers.get(PARENT)
    if parent is None or not is_parent(parent):
        return {}
    state = headers.get(STATE)
    if state is None or not is_state(state):
        return {PARENT: parent}
    return {PARENT: parent, STATE: state}


def is_parent(text: str) -> bool:
    """Whether this names a trace and a span in it."""
    found = _PARENT.fullmatch(text) if len(text) <= _LONGEST_PARENT else None
    # Version 00 has nothing after its flags.
    return found is not None and not (text.startswith("00") and found[1])


def is_state(text: str) -> bool:
    """Whether this is a list of what tracing systems noted, each under a key of its own."""
    if len(text) > MAX_STATE_CHARACTERS:
        return False
    members = [member for part in text.split(",") if (member := part.strip(" \t"))]
    keys = {member.partition("=")[0] for member in members}
    well_formed = all(_MEMBER.fullmatch(member) for member in members)
    return well_formed and 0 < len(members) == len(keys) <= MAX_STATE_MEMBERS
