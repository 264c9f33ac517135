"""Limits of a key, a value and a space: every store keeps the same limits.

Writing more is refused; more than this found in a store was not written by us and is left out.
"""

from collections.abc import Iterable, Mapping

from registry.errors import LimitReached
from registry.store import Change, Put

MAX_KEY_BYTES = 512
"""Bytes of a key in UTF-8; a peer id has 52, a project with its model and cid a few hundred."""

MAX_VALUE_BYTES = 512 * 1024
"""Bytes of one value: twice the largest frame of the mesh."""

MAX_VALUES = 65_536
"""Values that one space may hold to be read: six times the nodes that a registry remembers by default."""


def check(changes: Iterable[Change]) -> None:
    """Raise `LimitReached` unless every key and value is within its limit."""
    for change in changes:
        if not 0 < len(change.key.encode()) <= MAX_KEY_BYTES:
            raise LimitReached(f"a key in {change.space} has 1 to {MAX_KEY_BYTES} bytes")
        if isinstance(change, Put) and len(change.value) > MAX_VALUE_BYTES:
            raise LimitReached(
                f"{len(change.value)} bytes for {change.key!r} in {change.space}, "
                f"where a value has at most {MAX_VALUE_BYTES}"
            )


def within(found: Mapping[bytes, object]) -> dict[str, bytes]:
    """Return what of a foreign store's content could have been written by us."""
    kept: dict[str, bytes] = {}
    for key, value in found.items():
        if not 0 < len(key) <= MAX_KEY_BYTES:
            continue
        if not isinstance(value, bytes) or len(value) > MAX_VALUE_BYTES:
            continue
        try:
            kept[key.decode()] = value
        except UnicodeDecodeError:
            continue
    return kept
