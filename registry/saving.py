"""What is not in the store yet? Collects changes, writes them in batches, and says when the store does not work."""

import asyncio
import logging
from collections.abc import Mapping
from types import MappingProxyType

from registry.effects import Forget, Persist, Remember
from registry.errors import RegistryError, StoreUnavailable
from registry.records import PeerId, Version
from registry.store import Change, Delete, Put, Space, Store

log = logging.getLogger("modelvine.registry")

BEAT_KEY = "beat:"
"""Prefix of the keys under which the newest heartbeat of each node is kept: epoch, sequence, beat."""

# Changes of a moment go into one write.
_GRAIN = 0.25
_STORE_RETRY = 2.0


class Saving:
    """Writes behind: serving never waits for the store. Of two changes to one value the later is written."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._unsaved: dict[tuple[Space, str], Change] = {}
        self._writing = asyncio.Lock()
        self._failure = ""

    @property
    def failure(self) -> str:
        """A sentence on why the store does not work now; empty when it does."""
        return self._failure

    def note(self, change: Change) -> None:
        """Have a change written soon."""
        self._unsaved[change.space, change.key] = change

    def keep(self, effect: Persist | Forget | Remember) -> None:
        """Have the store remember what an effect says."""
        match effect:
            case Persist(signed):
                self.note(Put(Space.RECORDS, signed.record.node, signed.frame))
            case Forget(node):
                self.note(Delete(Space.RECORDS, node))
                self.note(Delete(Space.SELF, BEAT_KEY + node))
            case Remember(node, version, beat):
                kept = f"{version.epoch} {version.sequence} {beat}"
                self.note(Put(Space.SELF, BEAT_KEY + node, kept.encode()))

    async def read(self, space: Space) -> Mapping[str, bytes]:
        """Return what one space holds, nothing when the store cannot be read."""
        try:
            return await self._store.read(space)
        except StoreUnavailable as error:
            self._failed(error)
            return MappingProxyType({})

    async def save(self) -> None:
        """Write what is unsaved; raise `StoreUnavailable`."""
        async with self._writing:
            if not self._unsaved:
                return
            batch = dict(self._unsaved)
            try:
                await self._store.write(*batch.values())
            except StoreUnavailable as error:
                self._failed(error)
                raise
            # Struck off only now: a write that failed or was cancelled is made again.
            self._unsaved = {k: c for k, c in self._unsaved.items() if batch.get(k) is not c}
            if self._failure:
                self._failure = ""
                log.info("the store works again")

    async def run(self) -> None:
        """Save again and again until cancelled."""
        while True:
            try:
                await self.save()
            except StoreUnavailable:
                await asyncio.sleep(_STORE_RETRY)
            else:
                await asyncio.sleep(_GRAIN)

    def _failed(self, error: RegistryError) -> None:
        if not self._failure:
            log.error("the store does not work, serving goes on: %s", error)
        self._failure = str(error)


def beats_in(rows: Mapping[str, bytes]) -> dict[PeerId, tuple[Version, int]]:
    """Read the newest heartbeats of other nodes; rows that are none are passed over."""
    return {
        PeerId(key.removeprefix(BEAT_KEY)): beat
        for key, row in rows.items()
        if key.startswith(BEAT_KEY) and (beat := _beat(row)) is not None
    }


def _beat(row: bytes) -> tuple[Version, int] | None:
    parts = row.split(b" ")
    # Sixteen digits hold every counter; what is longer is not ours.
    if len(parts) != 3 or not all(part.isdigit() and len(part) <= 16 for part in parts):
        return None
    epoch, sequence, beat = map(int, parts)
    return Version(epoch, sequence), beat
