"""Allowed values of a setting in words: its kind, unit and bounds, from the declaration of its field."""

from enum import EnumType
from typing import get_args, get_origin

from pydantic import BaseModel

_UNITS = ("Seconds", "Bytes", "Days")
_BOUNDS = {"exclusiveMinimum": "above", "minimum": "from", "maximum": "to"}


def describe_allowed(section: type[BaseModel], name: str) -> str:
    """Return the end of the sentence "it must be …" for a setting of a section."""
    field = section.model_fields[name]
    kind = field.annotation
    if kind is bool:
        return "true or false"
    if kind is float or kind is int:
        whole = "whole " if kind is int else ""
        first = (field.description or "").partition(" ")[0]
        unit = f"of {first.lower()}" if first in _UNITS else ""
        return " ".join(filter(None, (f"a {whole}number", unit, describe_bounds(section, name))))
    if get_origin(kind) is tuple:
        return 'a list of texts in quotes, like ["one", "two"]'
    choices = [str(choice) for choice in (kind if isinstance(kind, EnumType) else get_args(kind))]
    if choices:
        return f"{', '.join(choices[:-1])} or {choices[-1]}"
    schema = section.model_json_schema()["properties"][name]
    longest = (
        f" of {schema['minLength']} to {schema['maxLength']} characters"
        if "maxLength" in schema
        else ""
    )
    return f"a text in quotes{longest}"


def describe_bounds(section: type[BaseModel], name: str) -> str:
    """Return the bounds of a number in words, such as "above 0 to 60"; empty if it has none."""
    schema = section.model_json_schema()["properties"][name]
    return " ".join(f"{word} {schema[bound]}" for bound, word in _BOUNDS.items() if bound in schema)


def describe_value(value: object) -> str:
    """Return a value as an error shows it: texts in quotes, lists in brackets."""
    match value:
        case bool():
            return str(value).lower()
        case dict():
            return "a table"
        case list() | tuple():
            return f"[{', '.join(map(describe_value, value))}]"
        case str():
            return repr(value)
        case _:
            return str(value)
