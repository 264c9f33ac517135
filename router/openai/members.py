"""Members of a JSON object and elements of an array, found without parsing; `members.c` is the form that wheels have."""

from typing import Any

Names = tuple[str, ...]
"""ASCII names of members."""


def members(body: bytes, plain: Names, raw: Names, never: Names, /) -> dict[str, Any] | None:  # noqa: ARG001
    """Return the top-level members of these names, or `None` if the body has to be parsed.

    Values of `plain` are strings, booleans, `None` or natural numbers; those of `raw` are JSON. `None` is returned for what is no
    valid object, has a member of `never`, has one twice or in another case, and for any form that is unusual. Here, it always is.
    """
    return None


def elements(array: bytes, name: tuple[str], most: int, /) -> list[tuple[bytes, Any]] | None:  # noqa: ARG001
    """Return each element's JSON and its member of this name, `None` without one; or `None` if the array has to be parsed.

    The JSON is without spaces, as orjson writes it. What orjson would write with other escapes or digits has to be parsed, more
    than `most` elements, and what `members` leaves to a parser. `array` is valid UTF-8; a key that an object has twice stays.
    """
    return None
