"""Writer of a vector store's answers: in columns, as LocalAI says it."""

from collections.abc import Sequence

import orjson

from router.canonical.store import text_of

DONE = b"{}"
"""The answer to what changes a store. LocalAI's is empty; this one can be read as JSON too."""


def written(
    keys: Sequence[Sequence[float]],
    values: Sequence[bytes],
    similarities: Sequence[float] | None = None,
) -> bytes:
    """Return the answer with what is kept for these keys; a value that is no text is a data URI."""
    said: dict[str, object] = {
        "keys": keys,
        "values": [*map(text_of, values)],
    }
    return orjson.dumps(said if similarities is None else said | {"similarities": similarities})
