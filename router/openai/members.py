"""Members of a JSON object and elements of an array, found without parsing; `members.c` is the form that wheels have."""

from typing import Any

Names = tuple[str, ...]
"""ASCII names of members, each shorter than 64 characters."""


def wanted(
    plain: Names,  # noqa: ARG001
    raw: Names,  # noqa: ARG001
    never: Names,  # noqa: ARG001
    inner_name: Names,  # noqa: ARG001
    inner: object,  # noqa: ARG001
    /,
) -> object:
    """Return what `members` is to find: it is made once, and used for many bodies.

    Values of `plain` are strings, booleans, `None` or natural numbers; those of `raw` are JSON. Those of `never` must not occur.
    The value of `inner_name`, one name or none, is what is found of `inner` in an object, or `None`.
    """
    return None


def members(body: bytes, wanted: object, /) -> dict[str, Any] | None:  # noqa: ARG001
    """Return the top-level members that are wanted, or `None` if the body has to be parsed.

    `None` is returned for what is no valid object, has a member that must not occur, has one twice or in another case, and for
    any form that is unusual. Here, it always is.
    """
    return None


def elements(array: bytes, wanted: object, most: int, /) -> list[tuple[bytes, Any]] | None:  # noqa: ARG001
    """Return each element's JSON and its only wanted plain member, `None` without it; or `None` if the array has to be parsed.

    The JSON is without spaces, as orjson writes it. What orjson would write with other escapes or digits has to be parsed, more
    than `most` elements, and what `members` leaves to a parser. `array` is valid UTF-8; a key that an object has twice stays.
    """
    return None
