"""Request for embeddings."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias, TypeGuard

from router.canonical.values import choice, others, whole
from router.errors import BadRequest
from router.openai.body import object_of
from router.requests import Request

MAX_INPUTS = 2_048
"""The most texts of one request; the same as OpenAI's."""

MAX_INPUT_CHARACTERS = 4_000_000
"""The longest text: about a million tokens."""

MAX_INPUT_TOKENS = 1_000_000
"""The longest text that is given as token ids."""

MAX_DIMENSIONS = 65_536
"""The longest vector that may be requested."""

READ = frozenset({"model", "models", "input", "encoding_format", "dimensions", "stream"})
"""Fields that are read here."""

_MOST_TOKEN = 2**31 - 1

Input: TypeAlias = str | tuple[int, ...]
"""A text, or its token ids."""


@dataclass(frozen=True, slots=True)
class Embedding:
    """A request for the vectors of texts, in their order; `dimensions` is the length of each, `None` for the model's own."""

    inputs: tuple[Input, ...]
    base64: bool
    dimensions: int | None
    others: Mapping[str, object]


def read(request: Request) -> Embedding:
    """Read a request for embeddings; raise `BadRequest`, which names the field."""
    fields = object_of(request.body)
    return Embedding(
        inputs=_inputs(fields.get("input")),
        base64=choice(fields, "encoding_format", "float", "base64") == "base64",
        dimensions=whole(fields, "dimensions", 1, MAX_DIMENSIONS),
        others=others(fields, READ),
    )


def _inputs(given: object) -> tuple[Input, ...]:
    match given:
        case [int(), *_] | str():
            return (_input(given, "input"),)
        case [_, *_] if len(given) <= MAX_INPUTS:
            return tuple(_input(one, f"input[{at}]") for at, one in enumerate(given))
        case [_, *_]:
            raise BadRequest(f"`input` lists at most {MAX_INPUTS:,} texts", param="input")
    raise BadRequest("`input` must be a text or a list that is not empty", param="input")


def _input(given: object, param: str) -> Input:
    match given:
        case str(text) if 0 < len(text) <= MAX_INPUT_CHARACTERS:
            return text
        case [_, *_] if len(given) <= MAX_INPUT_TOKENS:
            tokens = tuple(one for one in given if _is_token(one))
            if len(tokens) == len(given):
                return tokens
    raise BadRequest(
        f"`{param}` must be a text of 1 to {MAX_INPUT_CHARACTERS:,} characters, or as many numbers of tokens"
        f" as {MAX_INPUT_TOKENS:,}",
        param=param,
    )


def _is_token(given: object) -> TypeGuard[int]:
    return type(given) is int and 0 <= given <= _MOST_TOKEN
