"""Requests for embeddings and for rankings of documents, and to vector stores, with keys and values as columns."""

from base64 import b64decode, b64encode
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeAlias, TypeGuard

from router.canonical.values import (
    read_choice,
    read_flag,
    read_integer,
    read_list,
    read_required_text,
    unread_fields,
)
from router.errors import BadRequest
from router.openai.body import parse_json_object
from router.requests import Kind, Request

MAX_INPUTS = 2_048
"""The most texts of one request; the same as OpenAI's."""

MAX_INPUT_CHARACTERS = 4_000_000
"""The longest text: about a million tokens."""

MAX_INPUT_TOKENS = 1_000_000
"""The longest text that is given as token ids."""

MAX_DIMENSIONS = 65_536
"""The longest vector that may be requested."""

EMBEDDING_FIELDS = frozenset(
    {"model", "models", "input", "encoding_format", "dimensions", "stream"}
)
"""Fields that are read of a request for embeddings."""

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


def read_embedding(request: Request) -> Embedding:
    """Read a request for embeddings; raise `BadRequest`, which names the field."""
    fields = parse_json_object(request.body)
    return Embedding(
        inputs=_inputs(fields.get("input")),
        base64=read_choice(fields, "encoding_format", "float", "base64") == "base64",
        dimensions=read_integer(fields, "dimensions", 1, MAX_DIMENSIONS),
        others=unread_fields(fields, EMBEDDING_FIELDS),
    )


def _inputs(value: object) -> tuple[Input, ...]:
    match value:
        case [int(), *_] | str():
            return (_input(value, "input"),)
        case [_, *_] if len(value) <= MAX_INPUTS:
            return tuple(_input(entry, f"input[{index}]") for index, entry in enumerate(value))
        case [_, *_]:
            raise BadRequest(f"`input` lists at most {MAX_INPUTS:,} texts", param="input")
    raise BadRequest("`input` must be a text or a list that is not empty", param="input")


def _input(value: object, param: str) -> Input:
    match value:
        case str(text) if 0 < len(text) <= MAX_INPUT_CHARACTERS:
            return text
        case [_, *_] if len(value) <= MAX_INPUT_TOKENS:
            tokens = tuple(token for token in value if _is_token(token))
            if len(tokens) == len(value):
                return tokens
    raise BadRequest(
        f"`{param}` must be a text of 1 to {MAX_INPUT_CHARACTERS:,} characters, or as many numbers of tokens"
        f" as {MAX_INPUT_TOKENS:,}",
        param=param,
    )


def _is_token(value: object) -> TypeGuard[int]:
    return type(value) is int and 0 <= value <= _MOST_TOKEN


MAX_QUERY_CHARACTERS = 1_000_000
"""The longest query."""

MAX_DOCUMENTS = 10_000
"""The most documents of one request; the same as Cohere's."""

MAX_DOCUMENT_CHARACTERS = 4_000_000
"""The longest document."""

RERANK_FIELDS = frozenset(
    {"model", "models", "query", "documents", "top_n", "return_documents", "stream"}
)
"""Fields that are read of a request for a ranking."""


@dataclass(frozen=True, slots=True)
class Rerank:
    """A request for the best `top_n` documents, `None` for all; `with_documents` requests their texts too."""

    query: str
    documents: tuple[str, ...]
    top_n: int | None
    with_documents: bool
    others: Mapping[str, object]


def read_rerank(request: Request) -> Rerank:
    """Read a request in the form of Jina and Cohere; raise `BadRequest`, which names the field."""
    fields = parse_json_object(request.body)
    documents = read_list(fields, "documents", MAX_DOCUMENTS)
    return Rerank(
        query=read_required_text(fields, "query", MAX_QUERY_CHARACTERS),
        documents=tuple(
            _document(document, f"documents[{index}]") for index, document in enumerate(documents)
        ),
        top_n=read_integer(fields, "top_n", 1, 2**31 - 1),
        with_documents=read_flag(fields, "return_documents") is not False,
        others=unread_fields(fields, RERANK_FIELDS),
    )


def _document(value: object, param: str) -> str:
    match value:
        case str(text) | {"text": str(text)} if len(text) <= MAX_DOCUMENT_CHARACTERS:
            return text
    raise BadRequest(
        f"`{param}` must be a text, or an object with one, of at most {MAX_DOCUMENT_CHARACTERS:,} characters",
        param=param,
    )


MAX_KEYS = 10_000
"""The most keys of one request."""

MAX_KEY_LENGTH = 65_536
"""The most numbers of one key."""

MAX_VALUE_CHARACTERS = 1_000_000
"""The longest value."""

MAX_FOUND = 10_000
"""The most entries that one request may find."""

USUAL_FOUND = 1
"""The number of entries to find if the caller does not set it."""

# Stores keep 32-bit floats.
_LARGEST = 3.4e38

_BYTES = "data:application/octet-stream;base64,"

Key: TypeAlias = tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Set:
    """Request to store a value for each key."""

    keys: tuple[Key, ...]
    values: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class StoreDelete:
    """Request to delete these keys."""

    keys: tuple[Key, ...]


@dataclass(frozen=True, slots=True)
class Get:
    """Request for the values of exactly these keys."""

    keys: tuple[Key, ...]


@dataclass(frozen=True, slots=True)
class Find:
    """Request for the values of the `top` keys that are most similar."""

    key: Key
    top: int


Operation: TypeAlias = Set | StoreDelete | Get | Find


def read_store(request: Request) -> Operation:
    """Read a request to a store; raise `BadRequest`, which names the field."""
    fields = parse_json_object(request.body)
    if request.kind is Kind.STORE_FIND:
        top = read_integer(fields, "topk", 1, MAX_FOUND)
        return Find(_key(fields.get("key"), "key"), top or USUAL_FOUND)
    keys = _keys(fields)
    match request.kind:
        case Kind.STORE_SET:
            return Set(keys, _values(fields, len(keys)))
        case Kind.STORE_DELETE:
            return StoreDelete(keys)
    return Get(keys)


def encode_value(value: bytes) -> str:
    """Return a value as a text: unchanged if it is text, else as a `data:` URI. `decode_value` is the inverse."""
    with suppress(UnicodeDecodeError):
        text = value.decode()
        # A text that looks like such a URI itself is encoded as one too, lest `decode_value` decode it.
        if _coded(text) is None:
            return text
    return _BYTES + b64encode(value).decode()


def decode_value(text: str) -> bytes:
    """Return the bytes of a value that came as a text; `encode_value` turns them back into that text."""
    coded = _coded(text)
    return text.encode(errors="replace") if coded is None else coded


def _coded(text: str) -> bytes | None:
    """Return the bytes that `encode_value` encoded as this URI, `None` if it is no URI that `encode_value` makes."""
    if not text.startswith(_BYTES):
        return None
    written = text.removeprefix(_BYTES)
    try:
        value = b64decode(written, validate=True)
        if b64encode(value).decode() != written:
            return None
        return None if _coded(value.decode()) is None else value
    except UnicodeDecodeError:
        return value
    except ValueError:
        return None


def _keys(fields: Mapping[str, object]) -> tuple[Key, ...]:
    values = read_list(fields, "keys", MAX_KEYS)
    keys = tuple(_key(value, f"keys[{index}]") for index, value in enumerate(values))
    for index, key in enumerate(keys):
        if len(key) != len(keys[0]):
            raise BadRequest("all keys must be of the same length", param=f"keys[{index}]")
    return keys


def _key(value: object, param: str) -> Key:
    if isinstance(value, list) and 0 < len(value) <= MAX_KEY_LENGTH:
        numbers = tuple(float(number) for number in value if _is_number(number))
        if len(numbers) == len(value):
            return numbers
    raise BadRequest(f"`{param}` must be a list of 1 to {MAX_KEY_LENGTH:,} numbers", param=param)


def _is_number(value: object) -> TypeGuard[float]:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return -_LARGEST <= value <= _LARGEST


def _values(fields: Mapping[str, object], keys: int) -> tuple[str, ...]:
    values = read_list(fields, "values", MAX_KEYS)
    if len(values) != keys:
        raise BadRequest("there must be as many values as keys", param="values")
    for index, value in enumerate(values):
        if not isinstance(value, str) or len(value) > MAX_VALUE_CHARACTERS:
            message = (
                f"`values[{index}]` must be a text of at most {MAX_VALUE_CHARACTERS:,} characters"
            )
            raise BadRequest(message, param=f"values[{index}]")
    return tuple(map(str, values))
