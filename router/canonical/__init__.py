"""Canonical requests: a request to a model, independent of the worker's protocol.

One module per family of requests; the names exported here are those of requests for text.

A request is read once, from OpenAI's body, on the worker's node. Each value is checked against a named bound; an error names
the field.
"""

from router.canonical.text import (
    MAX_CHOICES,
    MAX_MESSAGES,
    MAX_STOP_CHARACTERS,
    MAX_STOPS,
    MAX_TOOLS,
    SHAPING,
    Sampling,
    TextRequest,
    read,
)
from router.canonical.values import BESIDE, MAX_OTHERS, dropped

__all__ = [
    "BESIDE",
    "MAX_CHOICES",
    "MAX_MESSAGES",
    "MAX_OTHERS",
    "MAX_STOPS",
    "MAX_STOP_CHARACTERS",
    "MAX_TOOLS",
    "SHAPING",
    "Sampling",
    "TextRequest",
    "dropped",
    "read",
]
