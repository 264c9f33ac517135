"""Store in memory, for values that need not survive the process: a map per space, for tests and throw-away nodes."""

from collections.abc import Mapping
from pathlib import Path

from registry.errors import StoreUnavailable
from registry.records import PeerId
from registry.store import Change, Put, Space, Store, check_limits


class MemoryStore:
    """Keeps values until the process ends."""

    shared = False

    def __init__(self) -> None:
        self._spaces: dict[Space, dict[str, bytes]] = {space: {} for space in Space}
        self._closed = False

    async def read(self, space: Space) -> Mapping[str, bytes]:
        """Return everything in one space."""
        self._check_open()
        return dict(self._spaces[space])

    async def write(self, *changes: Change) -> None:
        """Apply all changes or none; raise `LimitReached` for a key or value that is too long."""
        self._check_open()
        check_limits(changes)
        for change in changes:
            if isinstance(change, Put):
                self._spaces[change.space][change.key] = change.value
            else:
                self._spaces[change.space].pop(change.key, None)

    async def close(self) -> None:
        """Close the store; harmless when called twice."""
        self._closed = True

    def _check_open(self) -> None:
        if self._closed:
            raise StoreUnavailable("the store is closed")


def open_url(url: str, *, data_dir: Path, node: PeerId, timeout: float) -> Store:
    """Return a store for `memory`; directory, node and timeout matter to the other stores only."""
    del data_dir, node, timeout
    if url != "memory":
        raise ValueError(f"use `memory` with nothing after it, not {url!r}")
    return MemoryStore()
