"""Writer of a model's inner state, token by token."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass

import orjson


@dataclass(frozen=True, slots=True)
class Token:
    """One token of the text, and what the model makes of it."""

    token: str
    id: int
    positional_embedding: tuple[float, ...]
    token_embedding: tuple[float, ...]
    hidden_state: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Next:
    """One token that may come next. The protocol calls its probability a logit."""

    token: str
    id: int
    logit: float


def written(tokens: Iterable[Token], following: Iterable[Next]) -> bytes:
    """Return the answer with these tokens."""
    return orjson.dumps({"tokens": [*map(asdict, tokens)], "next": [*map(asdict, following)]})
