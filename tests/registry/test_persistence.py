"""Write-behind to a store that may be away, or lose everything."""

import asyncio

import pytest

from registry.errors import StoreUnavailable
from registry.persistence import BEAT_KEY, Persistence, StoreIntervals, beat_row, beats_in
from registry.records import Version
from registry.store import Change, Delete, Put, Space
from registry.store.memory import MemoryStore
from tests.strategies import IDENTITIES

MARK = Put(Space.SELF, "epoch", b"7")
RECORD = Put(Space.RECORDS, "node", b"frame")


class Faulty(MemoryStore):
    """A store that can be away, or lose everything."""

    away = False
    mute = False
    writes = 0

    async def write(self, *changes: Change) -> None:
        if self.away:
            raise StoreUnavailable("/the/store is away", public_reason="it is away")
        self.writes += 1
        await super().write(*changes)
        if self.mute:
            self.away = True
            raise StoreUnavailable("the answer was lost")

    async def read(self, space: Space):
        if self.away:
            raise StoreUnavailable("/the/store is away", public_reason="it is away")
        return await super().read(space)

    def forget(self) -> None:
        for space in self._spaces.values():
            space.clear()


async def until(holds) -> None:
    async with asyncio.timeout(5):
        while not await holds():  # noqa: ASYNC110  (what is awaited is in a store, which has no events)
            await asyncio.sleep(0.005)


@pytest.fixture
async def running():
    """Run a persistence with short pauses on a faulty store; give the store and the persistence."""
    store = Faulty()
    await store.write(MARK)
    persistence = Persistence(store, MARK, StoreIntervals(grain=0.005, retry=0.005, check=0.005))
    persistence.add_source(lambda: [RECORD])
    async with asyncio.TaskGroup() as group:
        work = group.create_task(persistence.run())
        yield store, persistence
        work.cancel()


async def holds_record(store: Faulty) -> bool:
    return (await store.read(Space.RECORDS)) == {"node": b"frame"}


async def test_a_change_is_written(running):
    store, persistence = running
    persistence.queue_change(RECORD)
    await until(lambda: holds_record(store))


async def test_a_store_that_is_away_is_noticed_though_nothing_is_written(running):
    store, persistence = running

    async def failing() -> bool:
        return persistence.failure == "it is away"

    async def well() -> bool:
        return persistence.failure == ""

    store.away = True
    await until(failing)
    store.away = False
    await until(well)


async def test_a_store_that_was_emptied_is_told_everything_again(running):
    store, _ = running
    store.forget()
    await until(lambda: holds_record(store))
    assert (await store.read(Space.SELF)) == {"epoch": b"7"}


async def test_a_change_that_could_not_be_written_is_written_when_the_store_is_back(running):
    store, persistence = running
    store.away = True
    persistence.queue_change(RECORD)
    await asyncio.sleep(0.02)
    store.away = False
    await until(lambda: holds_record(store))


async def test_a_write_whose_answer_was_lost_is_undone_when_the_store_is_back(running):
    store, persistence = running
    store.mute = True
    with pytest.raises(StoreUnavailable, match="the answer was lost"):
        await persistence.write([RECORD], undo=[Delete(Space.RECORDS, "node")])
    store.mute = store.away = False
    assert await holds_record(store)

    async def undone() -> bool:
        return not await store.read(Space.RECORDS)

    await until(undone)


async def test_a_store_that_is_known_to_be_away_is_not_written_to(running):
    store, persistence = running
    store.away = True
    with pytest.raises(StoreUnavailable):
        await persistence.write([RECORD], undo=[Delete(Space.RECORDS, "node")])
    before = store.writes
    with pytest.raises(StoreUnavailable):
        await persistence.write([RECORD], undo=[Delete(Space.RECORDS, "node")])
    assert store.writes == before
    store.away = False
    await persistence.write([RECORD], undo=[Delete(Space.RECORDS, "node")])
    assert await holds_record(store)


def test_heartbeats_that_were_written_down_are_read_back_and_other_rows_passed_over():
    node, version = IDENTITIES[0].peer, Version(2**53 - 1, 7)
    row = beat_row(node, version, 42)
    noise = {
        "epoch": b"7",
        BEAT_KEY + "a": b"",
        BEAT_KEY + "b": b"1 2",
        BEAT_KEY + "c": b"1 -2 3",
        BEAT_KEY + "d": b"1 2 " + b"9" * 5_000,
    }
    assert beats_in({row.key: row.value, **noise}) == {node: (version, 42)}
