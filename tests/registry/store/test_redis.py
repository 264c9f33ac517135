"""Redis beyond the contract: one hash for the site, bounded calls, and a password that is never shown."""

import asyncio
import logging
import traceback
from pathlib import Path

import pytest

from registry.errors import StoreUnavailable
from registry.store import (
    MAX_KEY_BYTES,
    MAX_VALUE_BYTES,
    MAX_VALUES,
    Count,
    Counters,
    Put,
    Space,
    Store,
)
from registry.store.redis import RedisStore
from tests.redis_server import RedisServer
from tests.registry.store.conftest import ALICE, BOB, Opening

EPOCH = Put(Space.SELF, "epoch", b"1")
PASSWORD = "correct-horse-7"


@pytest.fixture
def store(redis: RedisServer, opened: Opening) -> Store:
    return opened(redis.url)


async def test_two_sites_share_a_server_under_two_prefixes(redis: RedisServer) -> None:
    stores = [RedisStore(redis.url, node=ALICE, prefix=prefix) for prefix in ("north", "south")]
    await stores[0].write(Put(Space.RECORDS, "key", b"north's"))
    assert dict(await stores[1].read(Space.RECORDS)) == {}
    assert redis.command("KEYS", "*") == b"*1\r\n$13\r\nnorth:records\r\n"
    for store in stores:
        await store.close()


async def test_of_two_writers_the_later_write_stays(redis: RedisServer, opened: Opening) -> None:
    alice, bob = opened(redis.url, node=ALICE), opened(redis.url, node=BOB)
    await alice.write(Put(Space.RECORDS, ALICE, b"newer frame"))
    await bob.write(Put(Space.RECORDS, ALICE, b"older frame"))
    assert dict(await alice.read(Space.RECORDS)) == {ALICE: b"older frame"}
    await alice.write(Put(Space.RECORDS, ALICE, b"newer frame"))
    assert dict(await bob.read(Space.RECORDS)) == {ALICE: b"newer frame"}


async def test_a_unix_socket_leads_to_the_same_values(redis: RedisServer, opened: Opening) -> None:
    await opened(redis.url).write(EPOCH)
    assert dict(await opened(redis.unix_url).read(Space.SELF)) == {"epoch": b"1"}


async def test_an_answer_that_comes_late_is_never_taken_for_the_next_one(
    redis: RedisServer, opened: Opening
) -> None:
    store = opened(redis.url, timeout=0.2)
    await store.write(Put(Space.SELF, "epoch", b"self"), Put(Space.PEERS, "peer", b"peers"))
    for _ in range(5):
        redis.freeze()
        with pytest.raises(StoreUnavailable):
            await store.read(Space.SELF)
        redis.thaw()
        assert dict(await store.read(Space.PEERS)) == {"peer": b"peers"}


async def test_a_server_that_was_restarted_is_used_again_without_an_error(
    tmp_path: Path, opened: Opening
) -> None:
    with RedisServer(tmp_path) as server:
        store = opened(server.url)
        await store.write(EPOCH)
        server.stop()
        with pytest.raises(StoreUnavailable):
            await store.read(Space.SELF)
        server.start()
        await store.write(Put(Space.SELF, "epoch", b"2"))
        assert dict(await store.read(Space.SELF)) == {"epoch": b"2"}
        server.stop()
        server.start()
        for _ in range(5):
            await asyncio.sleep(0)  # The loop hears that the old connection is closed.
        await store.write(Put(Space.SELF, "epoch", b"3"))


async def test_a_full_server_refuses_a_batch_whole_and_takes_the_next_when_there_is_room(
    redis: RedisServer, store: Store
) -> None:
    await store.write(EPOCH)
    redis.command("CONFIG", "SET", "maxmemory", "1")
    try:
        with pytest.raises(StoreUnavailable, match="memory is full"):
            await store.write(Put(Space.SELF, "epoch", b"2"), Put(Space.PEERS, "p", b"v"))
        assert dict(await store.read(Space.SELF)) == {"epoch": b"1"}
    finally:
        redis.command("CONFIG", "SET", "maxmemory", "256mb")
    await store.write(Put(Space.SELF, "epoch", b"3"))
    assert dict(await store.read(Space.SELF)) == {"epoch": b"3"}


async def test_values_that_a_node_could_not_have_written_are_left_out(
    redis: RedisServer, store: Store
) -> None:
    await store.write(Put(Space.RECORDS, "ours", b"frame"))
    name = "modelvine:records"
    redis.command("HSET", name, b"\xff\xfe", "no text for a key")
    redis.command("HSET", name, "huge", b"v" * (MAX_VALUE_BYTES + 1))
    redis.command("HSET", name, "k" * (MAX_KEY_BYTES + 1), "v")
    redis.command("HSET", name, "", "v")
    assert dict(await store.read(Space.RECORDS)) == {"ours": b"frame"}


async def test_a_space_with_too_many_values_is_not_read_at_all(
    redis: RedisServer, store: Store
) -> None:
    fill = f"for i = 0, {MAX_VALUES} do redis.call('HSET', 'modelvine:records', i, '') end"
    redis.command("EVAL", fill, "0")
    with pytest.raises(StoreUnavailable, match="more than 65536 values"):
        await store.read(Space.RECORDS)


async def test_a_key_of_ours_that_holds_another_type_is_an_error(
    redis: RedisServer, store: Store
) -> None:
    redis.command("SET", "modelvine:records", "somebody's")
    with pytest.raises(StoreUnavailable, match="WRONGTYPE"):
        await store.read(Space.RECORDS)


async def test_a_user_without_rights_or_a_wrong_server_is_named_in_a_sentence(
    redis: RedisServer, opened: Opening
) -> None:
    redis.command("ACL", "SETUSER", "reader", "on", ">x", "~*", "+@read", "+select")
    url = f"redis://reader:x@127.0.0.1:{redis.port}/0"
    with pytest.raises(StoreUnavailable, match="this user may not do that"):
        await opened(url).write(EPOCH)
    with pytest.raises(StoreUnavailable, match="no database of this number"):
        await opened(f"{redis.url[:-1]}99").read(Space.SELF)
    page = await asyncio.start_server(_page, "127.0.0.1", 0)
    async with page:
        port = page.sockets[0].getsockname()[1]
        with pytest.raises(StoreUnavailable, match="not a Redis server"):
            await opened(f"redis://127.0.0.1:{port}/0").read(Space.SELF)
        with pytest.raises(StoreUnavailable, match="the TLS handshake failed"):
            await opened(f"rediss://127.0.0.1:{port}/0").read(Space.SELF)


async def test_the_password_opens_the_server_and_is_in_no_error_and_no_log(
    tmp_path: Path, opened: Opening, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    complaints: list[str] = []
    with RedisServer(tmp_path, password=PASSWORD) as server:
        good = opened(server.url)
        await good.write(EPOCH)
        assert dict(await opened(server.unix_url).read(Space.SELF)) == {"epoch": b"1"}
        complaints.append(await _complaint(opened(server.url.replace("horse-7", "horse-8"))))
        complaints.append(await _complaint(opened(server.url.replace(f":{PASSWORD}@", ""))))
        complaints.append(repr(good))
        server.stop()
        complaints.append(await _complaint(good))
    # A server that quotes what it does not know, as old ones do with AUTH.
    quoting = await asyncio.start_server(_quote, "127.0.0.1", 0)
    async with quoting:
        port = quoting.sockets[0].getsockname()[1]
        store = opened(f"redis://:{PASSWORD}@127.0.0.1:{port}/0")
        complaints.append(await _complaint(store))
        await store.close()
    assert len(complaints) == 5
    assert "wrong user or password" in complaints[0]
    assert "requires a password" in complaints[1]
    assert "127.0.0.1" in complaints[0]
    assert not [text for text in [*complaints, caplog.text] if "correct" in text or "horse" in text]


async def _complaint(store: Store) -> str:
    """Return all that a log could show of a failed write."""
    with pytest.raises(StoreUnavailable) as failed:
        await store.write(EPOCH)
    return "".join(traceback.format_exception(failed.value))


async def _quote(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    request = (await reader.read(4096)).replace(b"\r\n", b" ")
    writer.write(b"-ERR unknown command with args beginning with: %s\r\n" % request)
    await writer.drain()
    writer.close()


@pytest.mark.parametrize(
    "url",
    [
        "redis://",
        "redis:",
        "unix://",
        f"redis://:{PASSWORD}/slash@host:1/0",
        f"redis://:{PASSWORD}@host:port/0",
        f"redis://:{PASSWORD}@host:1/0?socket_timeout=3600",
        f"redis://:{PASSWORD}@host:1/0?decode_responses=1",
        f"redis://:{PASSWORD}@host:1/0?db=x",
        f"redis://:{PASSWORD}@[host:1/0",
    ],
)
def test_a_wrong_url_is_explained_without_its_password(opened: Opening, url: str) -> None:
    with pytest.raises(ValueError, match="use redis://HOST") as refused:
        opened(url)
    assert PASSWORD not in "".join(traceback.format_exception(refused.value))


async def test_a_counter_has_a_time_to_live_and_reading_creates_none(
    redis: RedisServer, opened: Opening
) -> None:
    store = opened(redis.url)
    assert isinstance(store, Counters)
    await store.count([Count("short", 1, ttl=60), Count("looked", 0, ttl=60)])
    assert redis.command("EXISTS", "modelvine:count:looked") == b":0\r\n"
    assert int(redis.command("PTTL", "modelvine:count:short")[1:]) > 50_000


async def test_a_counter_that_holds_text_counts_as_nothing_and_one_of_another_type_is_an_error(
    redis: RedisServer, opened: Opening
) -> None:
    store = opened(redis.url)
    assert isinstance(store, Counters)
    redis.command("SET", "modelvine:count:odd", "many")
    assert [*await store.count([Count("odd", 1, ttl=60)])] == [1]
    redis.command("RPUSH", "modelvine:count:list", "x")
    with pytest.raises(StoreUnavailable, match="ResponseError"):
        await store.count([Count("list", 1, ttl=60)])


async def _page(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read(1)
    writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    writer.close()
