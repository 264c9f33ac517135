"""Store in memory that can be away: reads and writes then fail, and change nothing."""

from collections.abc import Mapping

from registry.errors import StoreUnavailable
from registry.store import Change, Space
from registry.store.memory import MemoryStore


class FailingStore(MemoryStore):
    """The store. It counts the writes, and lists the spaces that were read."""

    def __init__(self) -> None:
        super().__init__()
        self.broken = False
        self.reads: list[Space] = []
        self.writes = 0

    async def read(self, space: Space) -> Mapping[str, bytes]:
        self.reads.append(space)
        self._require_disk()
        return await super().read(space)

    async def write(self, *changes: Change) -> None:
        self._require_disk()
        self.writes += 1
        await super().write(*changes)

    def _require_disk(self) -> None:
        if self.broken:
            raise StoreUnavailable("it is away")
