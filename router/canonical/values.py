"""Parsers of field values: each is checked against a bound; a fault is a `BadRequest` that names the field."""

import re
from collections.abc import Mapping, Sequence, Set
from math import isfinite
from typing import Protocol

from router.errors import BadRequest

MAX_OTHERS = 32
"""Fields that are named as dropped; what is more is dropped unnamed."""

BESIDE = frozenset({
    "project", "user", "metadata", "store", "prompt_cache_key", "safety_identifier", "service_tier",
})  # fmt: skip
"""Fields that shape no answer."""

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}")


class Leaving(Protocol):
    """A request that was read, with the fields that were not."""

    @property
    def others(self) -> Mapping[str, object]:
        """The fields that a dialect maps, drops and names, or refuses."""


def dropped(asked: Leaving) -> list[str]:
    """Return the names of `others` that can be dropped, as far as they can be named."""
    return sorted(name for name in asked.others if _NAME.fullmatch(name))[:MAX_OTHERS]


def others(
    fields: Mapping[str, object], read: Set[str], usual: Mapping[str, object] | None = None
) -> Mapping[str, object]:
    """Return the fields that were not `read` and ask for something; what is null, false, empty or `usual` does not."""
    return {
        name: value
        for name, value in fields.items()
        if name not in read and name not in BESIDE and value and value != (usual or {}).get(name)
    }


def number(
    fields: Mapping[str, object],
    name: str,
    least: float,
    most: float,
    *,
    usual: float | None = None,
) -> float | None:
    """Read a number within bounds; `usual` is the value that changes nothing, `None` stands for both."""
    value = fields.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value):
        raise BadRequest(f"`{name}` must be a number", param=name)
    if not least <= value <= most:
        raise BadRequest(f"`{name}` must be from {least:g} to {most:g}", param=name)
    return None if value == usual else float(value)


def whole(fields: Mapping[str, object], name: str, least: int, most: int) -> int | None:
    """Read a whole number within bounds, `None` where there is none."""
    value = fields.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int):
        raise BadRequest(f"`{name}` must be a whole number", param=name)
    if not least <= value <= most:
        raise BadRequest(f"`{name}` must be from {least} to {most}", param=name)
    return value


def text(fields: Mapping[str, object], name: str, most: int) -> str:
    """Read a text of at most so many characters, `""` where there is none."""
    value = fields.get(name)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise BadRequest(f"`{name}` must be a text", param=name)
    if len(value) > most:
        raise BadRequest(f"`{name}` has at most {most:,} characters", param=name)
    return value


def needed(fields: Mapping[str, object], name: str, most: int) -> str:
    """Read a text of 1 to so many characters."""
    value = text(fields, name, most)
    if not value:
        raise BadRequest(f"`{name}` must be a text that is not empty", param=name)
    return value


def choice(fields: Mapping[str, object], name: str, usual: str, *rest: str) -> str:
    """Read one of several words; the first is what counts where there is none."""
    value = fields.get(name)
    if value is None:
        return usual
    if value not in (usual, *rest):
        raise BadRequest(f"`{name}` must be one of: {', '.join((usual, *rest))}", param=name)
    return str(value)


def flag(fields: Mapping[str, object], name: str) -> bool | None:
    """Read true or false, `None` where neither is said."""
    value = fields.get(name)
    if value is not None and not isinstance(value, bool):
        raise BadRequest(f"`{name}` must be true or false", param=name)
    return value


def listed(fields: Mapping[str, object], name: str, most: int) -> Sequence[object]:
    """Read a list of 1 to so many values, which are hostile still."""
    value = fields.get(name)
    if not isinstance(value, list) or not value:
        raise BadRequest(f"`{name}` must be a list that is not empty", param=name)
    if len(value) > most:
        raise BadRequest(f"`{name}` lists at most {most:,}", param=name)
    return value
