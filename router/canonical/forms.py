"""Multipart forms, parsed: its texts as the values that JSON would have, and its files."""

from collections.abc import Mapping, Set
from dataclasses import dataclass

import orjson

from router.errors import BadRequest
from router.openai import multipart
from router.openai.body import object_of
from router.openai.media_type import media_of
from router.requests import Request

MAX_FORM_TEXT_BYTES = 256 * 1024
"""The longest text field of a form."""


@dataclass(frozen=True, slots=True)
class Filled:
    """A body as fields and files; a name that ends in `[]` is listed without that, as all of its values."""

    fields: Mapping[str, object]
    files: Mapping[str, tuple[bytes, ...]]


def filled(request: Request, values: Set[str] = frozenset()) -> Filled:
    """Read a form or a JSON object; the texts of `values` are numbers, true or false, where they can be."""
    if media_of(request.content_type).kind != multipart.CONTENT_TYPE:
        return Filled(object_of(request.body), {})
    fields: dict[str, object] = {}
    files: dict[str, list[bytes]] = {}
    for part in multipart.parts(request.body, request.content_type):
        name, content = part.name.removesuffix("[]"), request.body[part.start : part.end]
        if part.is_file:
            files.setdefault(name, []).append(content)
        elif said := _text(name, content):
            value = _value(said) if name in values else said
            if part.name != name:
                earlier = fields.get(name)
                value = [*(earlier if isinstance(earlier, list) else ()), value]
            fields[name] = value
    return Filled(fields, {name: tuple(found) for name, found in files.items()})


def _text(name: str, content: bytes) -> str:
    if len(content) > MAX_FORM_TEXT_BYTES:
        raise BadRequest(f"`{name}` has at most {MAX_FORM_TEXT_BYTES:,} bytes", param=name)
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise BadRequest(f"`{name}` is not UTF-8", param=name) from error


def _value(said: str) -> object:
    try:
        value = orjson.loads(said.lower())
    except orjson.JSONDecodeError:
        return said
    return value if isinstance(value, bool | int | float) else said
