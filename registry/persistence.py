"""Persistence (write-behind) of the registry.

Collects changes, writes them in batches, and reports when the store does not work.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from registry import store
from registry.catalog import Catalog
from registry.effects import Forget, Persist, Remember
from registry.errors import StoreUnavailable
from registry.members.liveness import MemberHealth
from registry.records import PeerId, Version
from registry.store import Change, Delete, Put, Space, Store

log = logging.getLogger("modelvine.registry")

EPOCH_KEY = "epoch"

BEAT_KEY = "beat:"
"""Prefix of the keys under which the newest heartbeat of each node is kept: epoch, sequence, beat."""


async def next_epoch(store: Store, wall_clock: float) -> int:
    """Return an epoch above all that were used before, durable already; raise `StoreUnavailable`.

    The wall clock only matters when the store was lost: it puts the new epoch above those that the node used before.
    """
    stored = (await store.read(Space.SELF)).get(EPOCH_KEY, b"0")
    last = int(stored) if stored.isdigit() and len(stored) < 16 else 0
    epoch = max(last + 1, int(wall_clock))
    await store.write(Put(Space.SELF, EPOCH_KEY, str(epoch).encode()))
    return epoch


@dataclass(frozen=True, slots=True)
class StoreIntervals:
    """Intervals at which the store is accessed, in seconds."""

    grain: float = 0.25
    """Changes within this time go into one write."""

    retry: float = 2.0
    """Between two tries while the store does not work."""

    check: float = 2.5
    """Between two checks when there is nothing to save: otherwise an idle node would never notice that the store failed."""


Source = Callable[[], Iterable[Change]]
"""Yields everything that one part of the node wants to find in the store after a restart."""


class Persistence:
    """Write-behind buffer: serving never waits for the store. Of two changes to one value the later is written."""

    def __init__(
        self, store: Store, mark: Put, intervals: StoreIntervals = StoreIntervals()
    ) -> None:
        """Start. A store in which `mark` is missing was emptied."""
        self._store = store
        self._intervals = intervals
        self._mark = mark
        self._sources: list[Source] = []
        self._unsaved: dict[tuple[Space, str], Change] = {}
        self._write_lock = asyncio.Lock()
        self._failure = ""

    @property
    def failure(self) -> str:
        """The reason why the store does not work now; empty when it does."""
        return self._failure

    def add_source(self, source: Source) -> None:
        """Write what `source` yields again whenever the store was emptied."""
        self._sources.append(source)

    def queue_change(self, change: Change) -> None:
        """Queue a change, which is written soon."""
        self._unsaved[change.space, change.key] = change

    async def write(self, changes: Sequence[Change], *, undo: Iterable[Change]) -> None:
        """Write changes now or never; raise `StoreUnavailable`, or `LimitReached` for what is too long.

        A write whose answer was lost may have happened, or may happen yet: `undo` is written when the store is back.
        """
        store.check_limits(changes)
        if self._failure:
            # Only a store that has just answered is written to, so that changes to undo cannot pile up.
            await self._check()
        for change in changes:
            self.queue_change(change)
        written = False
        try:
            await self.save()
            written = True
        finally:
            if not written:
                for change in undo:
                    self.queue_change(change)

    def queue_effect(self, effect: Persist | Forget | Remember) -> None:
        """Queue the changes that an effect asks for."""
        match effect:
            case Persist(signed):
                self.queue_change(Put(Space.RECORDS, signed.record.node, signed.frame))
            case Forget(node):
                self.queue_change(Delete(Space.RECORDS, node))
                self.queue_change(Delete(Space.SELF, BEAT_KEY + node))
            case Remember(node, version, beat):
                self.queue_change(beat_row(node, version, beat))

    async def read(self, space: Space) -> Mapping[str, bytes]:
        """Return the values of one space; none when the store cannot be read."""
        try:
            return await self._store.read(space)
        except StoreUnavailable as error:
            self._note_failure(error)
            return MappingProxyType({})

    async def save(self) -> None:
        """Write what is unsaved; raise `StoreUnavailable`."""
        async with self._write_lock:
            if not self._unsaved:
                return
            batch = dict(self._unsaved)
            try:
                await self._store.write(*batch.values())
            except StoreUnavailable as error:
                self._note_failure(error)
                raise
            # Removed only now: a write that failed or was cancelled is made again.
            self._unsaved = {k: c for k, c in self._unsaved.items() if batch.get(k) is not c}
            self._note_success()

    async def run(self) -> None:
        """Save repeatedly until cancelled, and check that the store works and was not emptied."""
        clock = asyncio.get_running_loop().time
        checked = clock()
        while True:
            pause = self._intervals.grain
            try:
                if self._failure or clock() >= checked + self._intervals.check:
                    await self._check()
                    checked = clock()
                await self.save()
            except StoreUnavailable:
                pause = self._intervals.retry
            await asyncio.sleep(pause)

    async def _check(self) -> None:
        """Check the store; queue everything again when it was emptied. Raise `StoreUnavailable`."""
        try:
            stored = await self._store.read(self._mark.space)
            if self._failure:
                # A store that can be read cannot always be written: a full disk, a read replica.
                await self._store.write(self._mark)
        except StoreUnavailable as error:
            self._note_failure(error)
            raise
        if self._mark.key not in stored:
            log.warning("the store was emptied; writing this node's data again")
            for change in (self._mark, *(c for source in self._sources for c in source())):
                self.queue_change(change)
        self._note_success()

    def _note_success(self) -> None:
        if self._failure:
            self._failure = ""
            log.info("the store works again")

    def _note_failure(self, error: StoreUnavailable) -> None:
        if not self._failure:
            log.error("the store does not work; the node keeps serving: %s", error)
        self._failure = error.public_reason


def rows_of(catalog: Catalog, members: Mapping[PeerId, MemberHealth]) -> Iterable[Change]:
    """Yield the rows for what is known of all nodes."""
    yield from (Put(Space.RECORDS, node, signed.frame) for node, signed in catalog.held.items())
    yield from (beat_row(node, p.version, p.beat) for node, p in members.items() if p.beat >= 0)


def beat_row(node: PeerId, version: Version, beat: int) -> Put:
    """Return the row for the newest heartbeat of a node."""
    value = f"{version.epoch} {version.sequence} {beat}"
    return Put(Space.SELF, BEAT_KEY + node, value.encode())


def beats_in(rows: Mapping[str, bytes]) -> dict[PeerId, tuple[Version, int]]:
    """Read the newest heartbeats of other nodes; rows that hold none are skipped."""
    return {
        PeerId(key.removeprefix(BEAT_KEY)): beat
        for key, row in rows.items()
        if key.startswith(BEAT_KEY) and (beat := _beat(row)) is not None
    }


def _beat(row: bytes) -> tuple[Version, int] | None:
    parts = row.split(b" ")
    # Sixteen digits hold every counter; a longer number was not written by this program.
    if len(parts) != 3 or not all(part.isdigit() and len(part) <= 16 for part in parts):
        return None
    epoch, sequence, beat = map(int, parts)
    return Version(epoch, sequence), beat
