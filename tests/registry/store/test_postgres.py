"""PostgreSQL beyond the contract: tables for the site, bounded calls, exact counters, and a password that is never shown."""

import asyncio
import logging
import os
import signal
import time
import traceback
from collections.abc import Iterator
from contextlib import suppress

import pytest
import uvloop

from registry.errors import StoreUnavailable
from registry.store import (
    MAX_KEY_BYTES,
    MAX_VALUE_BYTES,
    MAX_VALUES,
    Count,
    Delete,
    Put,
    Space,
    Store,
)
from registry.store.postgres import PAGE_BYTES, PRUNE_EVERY, PostgresStore
from registry.store.postgres.client import SCHEMA
from tests.postgres_server import PASSWORD, PostgresServer
from tests.registry.store.conftest import ALICE, BOB, Opening, say_nothing

EPOCH = Put(Space.SELF, "epoch", b"1")


@pytest.fixture
def store(postgres: PostgresServer, opened: Opening) -> Store:
    return opened(postgres.url)


@pytest.fixture
def counting(store: Store) -> PostgresStore:
    assert isinstance(store, PostgresStore)
    return store


@pytest.mark.parametrize("attempt", range(5))
async def test_nodes_that_start_together_on_an_empty_database_all_come_up(
    postgres: PostgresServer, opened: Opening, attempt: int
) -> None:
    stores = [opened(postgres.url, node=f"node-{number}", timeout=10) for number in range(6)]
    await asyncio.gather(*(s.write(Put(Space.KEYS, f"{n}", b"")) for n, s in enumerate(stores)))
    assert len(await stores[0].read(Space.KEYS)) == 6
    assert postgres.rows("SELECT version FROM modelvine.layout") == [(SCHEMA,)]


async def test_a_newer_layout_is_refused_and_left_alone(
    postgres: PostgresServer, store: Store, opened: Opening
) -> None:
    await store.write(EPOCH)
    postgres.rows(f"INSERT INTO modelvine.layout VALUES ({SCHEMA + 1})")
    older = opened(postgres.url)
    with pytest.raises(StoreUnavailable, match=r"newer modelvine .*upgrade"):
        await older.read(Space.SELF)
    with pytest.raises(StoreUnavailable, match="newer modelvine"):
        await older.write(Put(Space.SELF, "epoch", b"2"))
    assert postgres.rows("SELECT value FROM modelvine.entry") == [(b"1",)]


def test_the_store_works_on_the_event_loop_of_a_node(postgres: PostgresServer) -> None:
    async def play() -> dict[str, bytes]:
        store = PostgresStore(postgres.url, node=ALICE)
        await store.write(EPOCH)
        stored = dict(await store.read(Space.SELF))
        await store.close()
        return stored

    assert uvloop.run(play()) == {"epoch": b"1"}


async def test_a_write_that_was_given_up_never_lands_after_a_later_one(
    postgres: PostgresServer, opened: Opening
) -> None:
    store = opened(postgres.url, timeout=0.3)
    await store.write(EPOCH)
    assert isinstance(store, PostgresStore)
    process = (await store._database._opened()).info.backend_pid
    # The server's process for this connection is stopped with the write still before it; its other processes run.
    os.kill(process, signal.SIGSTOP)
    try:
        for number in (b"2", b"3"):
            with pytest.raises(StoreUnavailable):
                await store.write(Put(Space.SELF, "epoch", number))
    finally:
        os.kill(process, signal.SIGCONT)
    await store.write(Put(Space.SELF, "epoch", b"4"))
    assert postgres.rows(f"SELECT FROM pg_stat_activity WHERE pid = {process}") == []
    assert dict(await store.read(Space.SELF)) == {"epoch": b"4"}


async def test_a_write_that_waits_for_anothers_lock_ends_in_time_and_is_not_done_later(
    postgres: PostgresServer, opened: Opening
) -> None:
    store = opened(postgres.url, timeout=0.3)
    await store.write(EPOCH)
    other = opened(postgres.url, node=BOB)
    assert isinstance(other, PostgresStore)
    await other.write(EPOCH)
    connection = await other._database._opened()
    async with connection.transaction():
        await connection.execute("LOCK TABLE modelvine.entry")
        started = time.monotonic()
        with pytest.raises(StoreUnavailable, match=r"no answer within 0\.3 s"):
            await store.write(Put(Space.SELF, "epoch", b"2"))
        assert time.monotonic() - started < 2
    assert dict(await store.read(Space.SELF)) == {"epoch": b"1"}


async def test_a_server_that_was_restarted_is_used_again_without_an_error(
    postgres: PostgresServer, store: Store
) -> None:
    await store.write(EPOCH)
    postgres.stop()
    with pytest.raises(StoreUnavailable, match="PostgreSQL at 127"):
        await store.read(Space.SELF)
    postgres.start()
    await store.write(Put(Space.SELF, "epoch", b"2"))
    assert dict(await store.read(Space.SELF)) == {"epoch": b"2"}
    postgres.stop()
    postgres.start()
    await store.write(Put(Space.SELF, "epoch", b"3"))
    assert dict(await store.read(Space.SELF)) == {"epoch": b"3"}


async def test_a_full_disk_refuses_a_batch_whole_and_takes_the_next_when_there_is_room(
    postgres: PostgresServer, store: Store
) -> None:
    await store.write(EPOCH)
    postgres.rows(
        "CREATE FUNCTION modelvine.full() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN RAISE 'no room for %', NEW.value USING ERRCODE = '53100'; END $$;"
        "CREATE TRIGGER disk BEFORE INSERT ON modelvine.entry FOR EACH ROW "
        "WHEN (NEW.key = 'p') EXECUTE FUNCTION modelvine.full()"
    )
    value = b"said-by-the-server"
    with pytest.raises(
        StoreUnavailable, match=r"the server's disk is full \(DiskFull 53100\)"
    ) as refused:
        await store.write(Put(Space.SELF, "epoch", b"2"), Put(Space.PEERS, "p", value))
    assert value.hex() not in "".join(traceback.format_exception(refused.value))
    assert dict(await store.read(Space.SELF)) == {"epoch": b"1"}
    postgres.rows("DROP TRIGGER disk ON modelvine.entry")
    await store.write(Put(Space.SELF, "epoch", b"3"))
    assert dict(await store.read(Space.SELF)) == {"epoch": b"3"}


async def test_tables_that_were_dropped_are_laid_out_again(
    postgres: PostgresServer, store: Store
) -> None:
    await store.write(EPOCH)
    postgres.rows("DROP SCHEMA modelvine CASCADE")
    with pytest.raises(StoreUnavailable, match="UndefinedTable 42P01"):
        await store.read(Space.SELF)
    assert dict(await store.read(Space.SELF)) == {}
    await store.write(Put(Space.SELF, "epoch", b"2"))
    assert dict(await store.read(Space.SELF)) == {"epoch": b"2"}


async def test_nodes_that_write_the_same_rows_in_other_orders_do_not_wait_for_each_other(
    postgres: PostgresServer, opened: Opening
) -> None:
    alice, bob = (opened(postgres.url, node=node, timeout=10) for node in (ALICE, BOB))
    keys = [f"key-{number}" for number in range(300)]

    async def write(store: Store, order: list[str]) -> None:
        half = len(order) // 2
        for number in range(40):
            await store.write(*(Put(Space.RECORDS, key, b"%d" % number) for key in order))
        for _ in range(15):
            # All of them are there, and one half is put while the other goes.
            await store.write(*(Put(Space.RECORDS, key, b"") for key in order))
            puts = (Put(Space.RECORDS, key, b"v") for key in order[:half])
            await store.write(*puts, *(Delete(Space.RECORDS, key) for key in order[half:]))

    # A deadlock would be an error.
    await asyncio.gather(write(alice, keys), write(bob, keys[::-1]))


async def test_values_that_a_node_could_not_have_written_are_left_out(
    postgres: PostgresServer, store: Store
) -> None:
    await store.write(Put(Space.RECORDS, "ours", b"frame"))
    for key, value in (
        (r"'\xfffe'", "'no text for a key'"),
        ("'huge'", f"convert_to(repeat('v', {PAGE_BYTES + 1}), 'UTF8')"),
        ("'long'", f"convert_to(repeat('v', {MAX_VALUE_BYTES + 1}), 'UTF8')"),
        (f"convert_to(repeat('k', {MAX_KEY_BYTES + 1}), 'UTF8')", "'v'"),
        ("''", "'v'"),
    ):
        postgres.rows(f"INSERT INTO modelvine.entry VALUES ('', 'records', {key}, {value})")
    assert dict(await store.read(Space.RECORDS)) == {"ours": b"frame"}


async def test_a_space_with_too_many_values_is_not_read_at_all(
    postgres: PostgresServer, opened: Opening
) -> None:
    store = opened(postgres.url, timeout=10)
    await store.write(EPOCH)
    postgres.rows(
        "INSERT INTO modelvine.entry SELECT '', 'records', convert_to(n::text, 'UTF8'), '' "
        f"FROM generate_series(0, {MAX_VALUES}) AS n"
    )
    with pytest.raises(StoreUnavailable, match="more than 65536 values"):
        await store.read(Space.RECORDS)


async def test_a_large_space_is_read_in_pages_and_whole(
    postgres: PostgresServer, opened: Opening
) -> None:
    store = opened(postgres.url, timeout=30)
    await store.write(EPOCH)
    many = PAGE_BYTES // MAX_VALUE_BYTES + 1
    postgres.rows(
        "INSERT INTO modelvine.entry SELECT '', 'records', convert_to(n::text, 'UTF8'), "
        f"convert_to(repeat('v', {MAX_VALUE_BYTES}), 'UTF8') FROM generate_series(1, {many}) AS n"
    )
    stored = await store.read(Space.RECORDS)
    assert set(stored) == {str(number) for number in range(1, many + 1)}
    assert {len(value) for value in stored.values()} == {MAX_VALUE_BYTES}


@pytest.mark.parametrize("columns", ["key text, value bytea", "key bytea, value int", "other int"])
async def test_tables_of_another_shape_are_an_error(
    postgres: PostgresServer, opened: Opening, columns: str
) -> None:
    postgres.rows(
        "CREATE SCHEMA modelvine; CREATE TABLE modelvine.layout (version int);"
        f"INSERT INTO modelvine.layout VALUES ({SCHEMA});"
        f"CREATE TABLE modelvine.entry (owner text, space text, {columns});"
        "INSERT INTO modelvine.entry VALUES ('', 'records', '1')"
    )
    store = opened(postgres.url)
    with pytest.raises(StoreUnavailable, match="PostgreSQL at"):
        await store.read(Space.RECORDS)
    with pytest.raises(StoreUnavailable, match="PostgreSQL at"):
        await store.write(Put(Space.RECORDS, "key", b"v"))


@pytest.fixture
def stranger(postgres: PostgresServer) -> Iterator[str]:
    """Give the URL of a user who may log in and nothing else."""
    postgres.rows("CREATE ROLE stranger LOGIN PASSWORD 'strange-word'")
    yield postgres.url.replace(f"us:{PASSWORD}", "stranger:strange-word")
    postgres.rows("DROP SCHEMA IF EXISTS modelvine CASCADE; DROP ROLE stranger")


async def test_the_error_for_a_user_without_rights_says_what_helps_and_it_does(
    postgres: PostgresServer, opened: Opening, stranger: str
) -> None:
    store = opened(stranger)
    with pytest.raises(StoreUnavailable, match="CREATE SCHEMA modelvine AUTHORIZATION") as refused:
        await store.write(EPOCH)
    assert "stranger" not in str(refused.value)
    postgres.rows("CREATE SCHEMA modelvine AUTHORIZATION stranger")
    await store.write(EPOCH)
    assert dict(await store.read(Space.SELF)) == {"epoch": b"1"}
    await store.close()


async def test_the_password_opens_the_server_and_is_in_no_error_and_no_log(
    postgres: PostgresServer, opened: Opening, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    good = opened(postgres.url)
    await good.write(EPOCH)
    wrong = "wrong-password"
    complaints = [
        repr(good),
        await _complaint(opened(postgres.url.replace(PASSWORD, wrong))),
        await _complaint(opened(postgres.url.replace(f":{PASSWORD}@", "@"))),
        await _complaint(opened(postgres.url.replace("/postgres", "/nowhere"))),
    ]
    postgres.stop()
    complaints.append(await _complaint(good))
    postgres.start()
    quoting = await asyncio.start_server(_quote, "127.0.0.1", 0)
    async with quoting:
        port = quoting.sockets[0].getsockname()[1]
        store = opened(f"postgresql://us:{PASSWORD}@127.0.0.1:{port}/db")
        complaints.append(await _complaint(store))
        await store.close()
    assert "wrong user or password" in complaints[1]
    assert "the server requires a password" in complaints[2]
    assert "no such database" in complaints[3]
    assert "OperationalError" in complaints[5]
    assert all("127.0.0.1" in text for text in complaints)
    assert not [text for text in [*complaints, caplog.text] if PASSWORD in text or wrong in text]


async def _complaint(store: Store) -> str:
    """Return all that a log could show of a failed write."""
    with pytest.raises(StoreUnavailable) as failed:
        await store.write(EPOCH)
    return "".join(traceback.format_exception(failed.value)) + failed.value.public_reason


async def _quote(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Ask for the password in plain text, and repeat what comes in an error."""
    await reader.read(4096)
    writer.write(b"N")
    await reader.read(4096)
    writer.write(b"R\x00\x00\x00\x08\x00\x00\x00\x03")
    password = (await reader.read(4096))[5:-1]
    assert password == PASSWORD.encode()
    error = b"SFATAL\0C28000\0Mnobody takes " + password + b"\0\0"
    writer.write(b"E" + (len(error) + 4).to_bytes(4) + error)
    await writer.drain()
    writer.close()


async def test_of_several_hosts_a_silent_one_does_not_block_the_others(
    postgres: PostgresServer, opened: Opening
) -> None:
    silent = await asyncio.start_server(say_nothing, "127.0.0.1", 0)
    async with silent:
        hosts = f"127.0.0.1:{silent.sockets[0].getsockname()[1]},127.0.0.1:{postgres.port}"
        url = f"postgresql://us:{PASSWORD}@{hosts}/postgres?target_session_attrs=read-write"
        store = opened(url, timeout=0.3)
        for _ in range(30):
            with suppress(StoreUnavailable):
                await store.write(EPOCH)
                break
        assert dict(await store.read(Space.SELF)) == {"epoch": b"1"}
        await store.close()


async def test_a_host_that_does_not_exist_is_reported_as_such(opened: Opening) -> None:
    store = opened("postgresql://us:hush@nowhere.invalid/db", timeout=10)
    with pytest.raises(StoreUnavailable, match=r"at nowhere\.invalid:5432/db: no such host"):
        await store.read(Space.SELF)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql:",
        "postgresql://",
        "postgresql:///db",
        f"postgresql://us:{PASSWORD}@/db",
        f"postgresql://us:{PASSWORD}@host/db?connect_timeout=3600",
        f"postgresql://us:{PASSWORD}@host/db?options=-cstatement_timeout%3D0",
        f"postgresql://us:{PASSWORD}@host/db?client_encoding=LATIN1",
        f"postgresql://us:{PASSWORD}@host/db?nothing=1",
        f"postgresql://us:{PASSWORD}@[host:1/db",
        f"postgresql://us:{PASSWORD}%zz@host/db",
    ],
)
def test_a_wrong_url_is_explained_without_its_password(opened: Opening, url: str) -> None:
    with pytest.raises(ValueError, match="use postgresql://USER") as refused:
        opened(url)
    assert PASSWORD not in "".join(traceback.format_exception(refused.value))


async def test_counters_are_exact_however_many_nodes_count_at_once(
    postgres: PostgresServer, opened: Opening
) -> None:
    stores = [opened(postgres.url, node=f"node-{number}", timeout=30) for number in range(8)]
    names = [f"key-{number}" for number in range(30)]

    async def count(store: Store, number: int) -> None:
        assert isinstance(store, PostgresStore)
        # Each in an order of its own: a deadlock would be an error.
        own_names = names[number:] + names[:number] if number % 2 else names[::-1]
        for _ in range(25):
            await store.count([Count(name, 1, ttl=60) for name in own_names])

    await asyncio.gather(*(count(store, number) for number, store in enumerate(stores)))
    assert isinstance(stores[0], PostgresStore)
    assert set(await stores[0].count([Count(name, 0, ttl=60) for name in names])) == {200.0}


async def test_a_counter_that_is_not_touched_is_forgotten_and_reading_creates_none(
    postgres: PostgresServer, counting: PostgresStore
) -> None:
    await counting.count([Count("short", 5, ttl=60), Count("looked", 0, ttl=60)])
    assert postgres.rows("SELECT name FROM modelvine.counter") == [(b"short",)]
    postgres.rows("UPDATE modelvine.counter SET expires = expires - 61")
    assert [*await counting.count([Count("short", 0, ttl=60)])] == [0]
    assert [*await counting.count([Count("short", 2, ttl=60)])] == [2]


async def test_expired_counters_are_removed_a_bounded_number_at_a_time(
    postgres: PostgresServer, counting: PostgresStore
) -> None:
    await counting.count([Count("kept", 1, ttl=60)])
    postgres.rows(
        "INSERT INTO modelvine.counter SELECT convert_to(n::text, 'UTF8'), 1, false, 1 FROM generate_series(1, 1500) AS n"
    )
    for _ in range(PRUNE_EVERY):
        await counting.count([Count("kept", 0, ttl=60)])
    assert postgres.rows("SELECT count(*) FROM modelvine.counter") == [(501,)]
    for _ in range(PRUNE_EVERY):
        await counting.count([Count("kept", 0, ttl=60)])
    assert postgres.rows("SELECT name FROM modelvine.counter") == [(b"kept",)]


@pytest.mark.parametrize("odd", ["NaN", "Infinity", "-Infinity", "1e300"])
async def test_a_counter_value_that_a_node_cannot_have_written_counts_as_nothing(
    postgres: PostgresServer, counting: PostgresStore, odd: str
) -> None:
    await counting.count([Count("odd", 1, ttl=60)])
    postgres.rows(f"UPDATE modelvine.counter SET amount = '{odd}'")
    assert [*await counting.count([Count("odd", 0, ttl=60)])] == [0]
    assert [*await counting.count([Count("odd", 1, ttl=60)])] == [1]


async def test_counters_of_another_shape_are_an_error(
    postgres: PostgresServer, counting: PostgresStore
) -> None:
    await counting.write(EPOCH)
    postgres.rows("ALTER TABLE modelvine.counter ALTER amount TYPE text")
    with pytest.raises(StoreUnavailable, match="PostgreSQL at"):
        await counting.count([Count("odd", 1, ttl=60)])
