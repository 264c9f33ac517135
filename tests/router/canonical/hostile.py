"""Strategies for arbitrary field values, and the outcome of reading them."""

from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

from router.errors import BadRequest

ANYTHING = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats()
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=5,
)
"""Any JSON value as orjson reads it, and the numbers that JSON lacks."""


def outcome(read: Callable[[], Any]) -> tuple[Any, str | None]:
    """Return the value read and `None`, or `None` and the name of the field at fault."""
    try:
        return read(), None
    except BadRequest as fault:
        return None, fault.param or "?"
