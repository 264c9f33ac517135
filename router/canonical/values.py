"""Parsers for field values: each value is checked against a bound; an error is a `BadRequest` that names the field.

Multipart forms become fields, with the values that JSON would have, and files.
"""

import re
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from math import isfinite
from typing import Protocol

import orjson

from router.errors import BadRequest
from router.openai import multipart
from router.openai.body import parse_json_object
from router.openai.media_type import media_of
from router.requests import Request

MAX_FORM_TEXT_BYTES = 256 * 1024
"""The longest text field of a form, in bytes."""

DATA_URI = re.compile(r"data:[\w/+.;=-]{0,100};base64,")
"""The beginning of a `data:` URI, before the data in base64."""


@dataclass(frozen=True, slots=True)
class FormBody:
    """A body as fields and files. A name that ends in `[]` loses that ending, and its field is the list of its values."""

    fields: Mapping[str, object]
    files: Mapping[str, tuple[bytes, ...]]


def read_form(request: Request, values: Set[str] = frozenset()) -> FormBody:
    """Read a form or a JSON object. In a form, the fields named in `values` become numbers or booleans if possible."""
    if media_of(request.content_type).kind != multipart.CONTENT_TYPE:
        return FormBody(parse_json_object(request.body), {})
    fields: dict[str, object] = {}
    files: dict[str, list[bytes]] = {}
    for part in multipart.parts(request.body, request.content_type):
        name, content = part.name.removesuffix("[]"), request.body[part.start : part.end]
        if part.is_file:
            files.setdefault(name, []).append(content)
        elif text := _text(name, content):
            value = _value(text) if name in values else text
            if part.name != name:
                earlier = fields.get(name)
                value = [*(earlier if isinstance(earlier, list) else ()), value]
            fields[name] = value
    return FormBody(fields, {name: tuple(contents) for name, contents in files.items()})


def _text(name: str, content: bytes) -> str:
    if len(content) > MAX_FORM_TEXT_BYTES:
        raise BadRequest(f"`{name}` has at most {MAX_FORM_TEXT_BYTES:,} bytes", param=name)
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise BadRequest(f"`{name}` is not UTF-8", param=name) from error


def _value(text: str) -> object:
    try:
        value = orjson.loads(text.lower())
    except orjson.JSONDecodeError:
        return text
    return value if isinstance(value, bool | int | float) else text


MAX_OTHERS = 32
"""The most fields that are named as dropped; further ones are dropped unnamed."""

BESIDE = frozenset({
    "project", "user", "metadata", "store", "prompt_cache_key", "safety_identifier", "service_tier",
})  # fmt: skip
"""Fields that do not shape the answer."""

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}")


class WithOtherFields(Protocol):
    """A request with the fields of its body that were not read."""

    @property
    def others(self) -> Mapping[str, object]:
        """The fields that a dialect maps, drops and names, or refuses."""


def dropped_names(request: WithOtherFields) -> list[str]:
    """Return the names of `unread_fields`, sorted: those of up to 64 plain characters, and at most `MAX_OTHERS` of them."""
    return sorted(name for name in request.others if _NAME.fullmatch(name))[:MAX_OTHERS]


def unread_fields(
    fields: Mapping[str, object], read: Set[str], usual: Mapping[str, object] | None = None
) -> Mapping[str, object]:
    """Return the fields that were not `read` and ask for something: not null, false, zero, empty or `usual`."""
    return {
        name: value
        for name, value in fields.items()
        if name not in read and name not in BESIDE and value and value != (usual or {}).get(name)
    }


def read_number(
    fields: Mapping[str, object],
    name: str,
    least: float,
    most: float,
    *,
    usual: float | None = None,
) -> float | None:
    """Read a number within bounds; `None` if there is none, or if it is `usual`, the value that changes nothing."""
    value = fields.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value):
        raise BadRequest(f"`{name}` must be a number", param=name)
    if not least <= value <= most:
        raise BadRequest(f"`{name}` must be from {least:g} to {most:g}", param=name)
    return None if value == usual else float(value)


def read_integer(fields: Mapping[str, object], name: str, least: int, most: int) -> int | None:
    """Read a whole number within bounds, `None` if there is none."""
    value = fields.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int):
        raise BadRequest(f"`{name}` must be a whole number", param=name)
    if not least <= value <= most:
        raise BadRequest(f"`{name}` must be from {least} to {most}", param=name)
    return value


def read_text(fields: Mapping[str, object], name: str, most: int) -> str:
    """Read a text of at most `most` characters, `""` if there is none."""
    value = fields.get(name)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise BadRequest(f"`{name}` must be a text", param=name)
    if len(value) > most:
        raise BadRequest(f"`{name}` has at most {most:,} characters", param=name)
    return value


def read_required_text(fields: Mapping[str, object], name: str, most: int) -> str:
    """Read a text of 1 to `most` characters."""
    value = read_text(fields, name, most)
    if not value:
        raise BadRequest(f"`{name}` must be a text that is not empty", param=name)
    return value


def read_choice(fields: Mapping[str, object], name: str, usual: str, *choices: str) -> str:
    """Read one of several words; `usual` if there is none."""
    value = fields.get(name)
    if value is None:
        return usual
    if value not in (usual, *choices):
        raise BadRequest(f"`{name}` must be one of: {', '.join((usual, *choices))}", param=name)
    return str(value)


def read_flag(fields: Mapping[str, object], name: str) -> bool | None:
    """Read true or false, `None` if there is neither."""
    value = fields.get(name)
    if value is not None and not isinstance(value, bool):
        raise BadRequest(f"`{name}` must be true or false", param=name)
    return value


def read_list(fields: Mapping[str, object], name: str, most: int) -> Sequence[object]:
    """Read a list of 1 to `most` values, which are still unchecked."""
    value = fields.get(name)
    if not isinstance(value, list) or not value:
        raise BadRequest(f"`{name}` must be a list that is not empty", param=name)
    if len(value) > most:
        raise BadRequest(f"`{name}` lists at most {most:,}", param=name)
    return value
