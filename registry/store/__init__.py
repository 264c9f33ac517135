"""What must survive a restart, as the rest of the node sees it: small named values in spaces.

`memory`, `sqlite` and `redis` keep them; one contract suite runs over all three.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol


class Space(StrEnum):
    """What a value is about. Only RECORDS is shared between the nodes of one site."""

    RECORDS = "records"
    """Frames of signed records by peer id."""

    WORKERS = "workers"
    """This machine's workers: private, never gossiped."""

    PEERS = "peers"
    """Addresses that this node was told to keep connected."""

    SELF = "self"
    """This node's own counters, the epoch first of all."""


@dataclass(frozen=True, slots=True)
class Put:
    """Write one value."""

    space: Space
    key: str
    value: bytes


@dataclass(frozen=True, slots=True)
class Delete:
    """Remove one value; harmless when there is none."""

    space: Space
    key: str


Change = Put | Delete


class Store(Protocol):
    """A small durable map. Every call is bounded in time and raises `StoreUnavailable` when that bound is hit."""

    async def read(self, space: Space) -> Mapping[str, bytes]:
        """Return everything in one space."""

    async def write(self, *changes: Change) -> None:
        """Apply all changes or none; durable when it returns."""

    async def close(self) -> None:
        """Let go of files and connections; harmless when called twice."""
