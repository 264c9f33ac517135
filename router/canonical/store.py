"""Request to a vector store: keys and values are columns, as LocalAI has them."""

from base64 import b64decode, b64encode
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeAlias, TypeGuard

from router.canonical.values import listed, whole
from router.errors import BadRequest
from router.openai.body import object_of
from router.requests import Kind, Request

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
_MOST = 3.4e38

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


def read(request: Request) -> Operation:
    """Read a request to a store; raise `BadRequest`, which names the field."""
    fields = object_of(request.body)
    if request.kind is Kind.STORE_FIND:
        top = whole(fields, "topk", 1, MAX_FOUND)
        return Find(_key(fields.get("key"), "key"), top or USUAL_FOUND)
    keys = _keys(fields)
    match request.kind:
        case Kind.STORE_SET:
            return Set(keys, _values(fields, len(keys)))
        case Kind.STORE_DELETE:
            return StoreDelete(keys)
    return Get(keys)


def text_of(value: bytes) -> str:
    """Return a value as a text: unchanged if it is text, else as a `data:` URI. `bytes_of` is the inverse."""
    with suppress(UnicodeDecodeError):
        text = value.decode()
        # A text that looks like such a URI itself is encoded as one too, lest `bytes_of` decode it.
        if _coded(text) is None:
            return text
    return _BYTES + b64encode(value).decode()


def bytes_of(text: str) -> bytes:
    """Return the bytes of a value that came as a text; `text_of` turns them back into that text."""
    coded = _coded(text)
    return text.encode(errors="replace") if coded is None else coded


def _coded(text: str) -> bytes | None:
    """Return the bytes that `text_of` encoded as this URI, `None` if it is no URI that `text_of` makes."""
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
    given = listed(fields, "keys", MAX_KEYS)
    keys = tuple(_key(one, f"keys[{at}]") for at, one in enumerate(given))
    for at, key in enumerate(keys):
        if len(key) != len(keys[0]):
            raise BadRequest("all keys must be of the same length", param=f"keys[{at}]")
    return keys


def _key(given: object, param: str) -> Key:
    if isinstance(given, list) and 0 < len(given) <= MAX_KEY_LENGTH:
        numbers = tuple(float(one) for one in given if _is_number(one))
        if len(numbers) == len(given):
            return numbers
    raise BadRequest(f"`{param}` must be a list of 1 to {MAX_KEY_LENGTH:,} numbers", param=param)


def _is_number(given: object) -> TypeGuard[float]:
    if isinstance(given, bool) or not isinstance(given, int | float):
        return False
    return -_MOST <= given <= _MOST


def _values(fields: Mapping[str, object], keys: int) -> tuple[str, ...]:
    given = listed(fields, "values", MAX_KEYS)
    if len(given) != keys:
        raise BadRequest("there must be as many values as keys", param="values")
    for at, value in enumerate(given):
        if not isinstance(value, str) or len(value) > MAX_VALUE_CHARACTERS:
            words = f"`values[{at}]` must be a text of at most {MAX_VALUE_CHARACTERS:,} characters"
            raise BadRequest(words, param=f"values[{at}]")
    return tuple(map(str, given))
