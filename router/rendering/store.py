"""How does a store's answer look? In columns, as LocalAI says it."""

from collections.abc import Sequence

import orjson

DONE = b"{}"
"""The answer to what changes a store. LocalAI's is empty; this one can be read as JSON too."""


def written(
    keys: Sequence[Sequence[float]],
    values: Sequence[bytes],
    similarities: Sequence[float] | None = None,
) -> bytes:
    """Return the answer with what is kept for these keys; what is no text of a value is replaced."""
    said: dict[str, object] = {
        "keys": keys,
        "values": [value.decode(errors="replace") for value in values],
    }
    return orjson.dumps(said if similarities is None else said | {"similarities": similarities})
