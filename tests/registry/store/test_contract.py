"""Contract of every store, tested on every store that exists."""

import asyncio
from itertools import count
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from registry.errors import LimitReached, StoreUnavailable
from registry.store import (
    MAX_KEY_BYTES,
    MAX_VALUE_BYTES,
    Change,
    Delete,
    Put,
    Space,
    Store,
    names,
    open_store,
)
from tests.postgres_server import PostgresServer
from tests.redis_server import RedisServer
from tests.registry.store.conftest import ALICE, Opening

KINDS = sorted(names())


@pytest.fixture(params=KINDS)
def url(request: pytest.FixtureRequest) -> str:
    if request.param == "redis":
        server: RedisServer = request.getfixturevalue("redis")
        return server.url
    if request.param == "postgres":
        database: PostgresServer = request.getfixturevalue("postgres")
        return database.url
    return str(request.param)


@pytest.fixture
def store(url: str, opened: Opening) -> Store:
    return opened(url)


def test_the_four_stores_are_found_by_their_names() -> None:
    assert KINDS == ["memory", "postgres", "redis", "sqlite"]


async def test_a_new_store_is_empty_in_every_space(store: Store) -> None:
    for space in Space:
        assert dict(await store.read(space)) == {}


async def test_a_value_is_read_in_its_own_space_only(store: Store) -> None:
    await store.write(*(Put(space, "key", space.encode()) for space in Space))
    for space in Space:
        assert dict(await store.read(space)) == {"key": space.encode()}


async def test_a_later_value_replaces_an_earlier_one(store: Store) -> None:
    await store.write(Put(Space.SELF, "epoch", b"1"))
    await store.write(Put(Space.SELF, "epoch", b"2"))
    assert dict(await store.read(Space.SELF)) == {"epoch": b"2"}


async def test_within_one_batch_the_last_change_of_a_key_stays(store: Store) -> None:
    await store.write(
        Put(Space.SELF, "a", b"1"),
        Delete(Space.SELF, "a"),
        Delete(Space.SELF, "b"),
        Put(Space.SELF, "b", b"2"),
        Put(Space.SELF, "b", b"3"),
    )
    assert dict(await store.read(Space.SELF)) == {"b": b"3"}


async def test_deleting_what_is_not_there_is_harmless(store: Store) -> None:
    await store.write(Delete(Space.PEERS, "nobody"))
    assert dict(await store.read(Space.PEERS)) == {}


async def test_writing_nothing_is_harmless(store: Store) -> None:
    await store.write()


@pytest.mark.parametrize("value", [b"", bytes(range(256)), b"\r\n$-1\r\n", b"\x00" * 70_000])
async def test_any_bytes_come_back_as_they_were(store: Store, value: bytes) -> None:
    await store.write(Put(Space.RECORDS, "frame", value))
    assert dict(await store.read(Space.RECORDS)) == {"frame": value}


@pytest.mark.parametrize(
    "key", ["a b", "/ip4/1.2.3.4/tcp/1", "模型", "x\x00y", "k'; DROP TABLE entry"]
)
async def test_any_text_may_be_a_key(store: Store, key: str) -> None:
    await store.write(Put(Space.WORKERS, key, b"v"), Put(Space.WORKERS, "x", b"other"))
    assert dict(await store.read(Space.WORKERS)) == {key: b"v", "x": b"other"}
    await store.write(Delete(Space.WORKERS, key))
    assert dict(await store.read(Space.WORKERS)) == {"x": b"other"}


async def test_the_largest_value_and_the_longest_key_fit(store: Store) -> None:
    change = Put(Space.RECORDS, "k" * MAX_KEY_BYTES, b"v" * MAX_VALUE_BYTES)
    await store.write(change)
    assert dict(await store.read(Space.RECORDS)) == {change.key: change.value}


@pytest.mark.parametrize(
    "refused",
    [
        Put(Space.RECORDS, "k", b"v" * (MAX_VALUE_BYTES + 1)),
        Put(Space.RECORDS, "é" * (MAX_KEY_BYTES // 2 + 1), b""),
        Put(Space.RECORDS, "", b""),
        Delete(Space.RECORDS, ""),
    ],
    ids=["value too long", "key too long", "empty key", "delete of an empty key"],
)
async def test_a_change_over_a_limit_is_refused_with_its_whole_batch(
    store: Store, refused: Change
) -> None:
    with pytest.raises(LimitReached):
        await store.write(Put(Space.SELF, "epoch", b"1"), refused)
    assert dict(await store.read(Space.SELF)) == {}


async def test_a_thousand_values_come_back(store: Store) -> None:
    expected = {f"peer-{number}": b"%d" % number * 100 for number in range(1_000)}
    await store.write(*(Put(Space.RECORDS, key, value) for key, value in expected.items()))
    assert dict(await store.read(Space.RECORDS)) == expected


async def test_writes_made_at_once_are_applied_in_their_order(store: Store) -> None:
    async with asyncio.TaskGroup() as group:
        for number in range(50):
            group.create_task(store.write(Put(Space.SELF, "epoch", b"%d" % number)))
    assert dict(await store.read(Space.SELF)) == {"epoch": b"49"}


async def test_a_reader_never_sees_half_a_batch(store: Store) -> None:
    keys = [f"key-{number}" for number in range(20)]
    snapshots: list[set[bytes]] = []
    finished = asyncio.Event()

    async def read() -> None:
        while not finished.is_set():
            snapshots.append(set((await store.read(Space.WORKERS)).values()))

    async with asyncio.TaskGroup() as group:
        group.create_task(read())
        for number in range(30):
            await store.write(*(Put(Space.WORKERS, key, b"%d" % number) for key in keys))
        finished.set()
    assert all(len(values) <= 1 for values in snapshots)


async def test_values_that_were_read_do_not_change_when_the_store_does(store: Store) -> None:
    await store.write(Put(Space.SELF, "epoch", b"1"))
    before = await store.read(Space.SELF)
    await store.write(Put(Space.SELF, "epoch", b"2"))
    assert dict(before) == {"epoch": b"1"}


async def test_a_closed_store_says_so_and_closing_again_is_harmless(store: Store) -> None:
    await store.write(Put(Space.SELF, "epoch", b"1"))
    await store.close()
    await store.close()
    with pytest.raises(StoreUnavailable, match="closed"):
        await store.read(Space.SELF)
    with pytest.raises(StoreUnavailable, match="closed"):
        await store.write(Put(Space.SELF, "epoch", b"2"))


async def test_a_store_that_was_never_used_can_be_closed(store: Store) -> None:
    await store.close()


SPACES = st.sampled_from(list(Space))
KEYS = st.sampled_from(["a", "b", "c"])
CHANGES = st.one_of(
    st.builds(Put, SPACES, KEYS, st.binary(max_size=20)), st.builds(Delete, SPACES, KEYS)
)
_folders = count()


@given(batches=st.lists(st.lists(CHANGES, max_size=6), max_size=6))
@settings(
    max_examples=30,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_any_batches_leave_what_a_plain_map_would_hold(
    url: str, tmp_path: Path, batches: list[list[Change]]
) -> None:
    data_dir = tmp_path / str(next(_folders))

    async def play() -> None:
        store = open_store(url, data_dir=data_dir, node=ALICE)
        await store.write(*(Delete(space, key) for space in Space for key in "abc"))
        for batch in batches:
            await store.write(*batch)
        for space in Space:
            assert dict(await store.read(space)) == _replay(space, batches)
        await store.close()

    asyncio.run(play())


def _replay(space: Space, batches: list[list[Change]]) -> dict[str, bytes]:
    stored: dict[str, bytes] = {}
    for change in (change for batch in batches for change in batch if change.space is space):
        stored.pop(change.key, None)
        if isinstance(change, Put):
            stored[change.key] = change.value
    return stored
