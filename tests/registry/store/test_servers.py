"""Stores on a server, Redis or PostgreSQL: shared by the site, bounded calls, exact counters."""

import asyncio
import time
from typing import cast

import pytest

from registry.errors import StoreUnavailable
from registry.store import OF_THE_SITE, Count, Counters, Delete, Put, Space
from tests.postgres_server import PostgresServer
from tests.redis_server import RedisServer, free_port
from tests.registry.store.conftest import ALICE, BOB, Opening, say_nothing

EPOCH = Put(Space.SELF, "epoch", b"1")
URLS = ["redis://127.0.0.1:{}/0", "postgresql://127.0.0.1:{}/db"]
NONSENSE = [
    b"HTTP/1.1 400 Bad Request\r\n\r\n",
    b"\x00\xff\xfe\r\n",
    b":abc\r\n",
    b"*-7\r\n",
    b"$-9\r\n",
    b"N" * 64,
    b"R\x7f\xff\xff\xff\x00\x00\x00\x00",
    b"NR\x00\x00\x00\x08\x00\x00\x00\x00Z\x00\x00\x00\x05I",
    b"",
]


@pytest.fixture(params=["redis", "postgres"])
def server(request: pytest.FixtureRequest) -> RedisServer | PostgresServer:
    return cast("RedisServer | PostgresServer", request.getfixturevalue(request.param))


async def test_records_are_shared_by_the_site_and_nothing_else_is(
    server: RedisServer | PostgresServer, opened: Opening
) -> None:
    alice, bob = opened(server.url, node=ALICE), opened(server.url, node=BOB)
    await alice.write(*(Put(space, "key", b"alice's") for space in Space))
    for space in OF_THE_SITE:
        assert dict(await bob.read(space)) == {"key": b"alice's"}
    for space in set(Space) - OF_THE_SITE:
        assert dict(await bob.read(space)) == {}
    await bob.write(Delete(Space.RECORDS, "key"), Put(Space.SELF, "key", b"bob's"))
    assert dict(await alice.read(Space.RECORDS)) == {}
    assert dict(await alice.read(Space.SELF)) == {"key": b"alice's"}


@pytest.mark.parametrize("url", URLS)
async def test_a_dead_port_is_tried_once_and_given_up_at_once(opened: Opening, url: str) -> None:
    store = opened(url.format(free_port()))
    started = time.monotonic()
    with pytest.raises(StoreUnavailable, match="Connection refused"):
        await store.write(EPOCH)
    # A library's own retries take several seconds.
    assert time.monotonic() - started < 2


@pytest.mark.parametrize("url", URLS)
async def test_a_server_that_accepts_and_says_nothing_costs_one_timeout(
    opened: Opening, url: str
) -> None:
    silent = await asyncio.start_server(say_nothing, "127.0.0.1", 0)
    async with silent:
        store = opened(url.format(silent.sockets[0].getsockname()[1]), timeout=0.2)
        for call in (store.read(Space.SELF), store.write(EPOCH)):
            started = time.monotonic()
            with pytest.raises(StoreUnavailable, match=r"no answer within 0\.2 s"):
                await call
            assert 0.15 < time.monotonic() - started < 2
        await store.close()


@pytest.mark.parametrize("url", URLS)
@pytest.mark.parametrize("answer", NONSENSE)
async def test_a_server_of_another_protocol_makes_the_store_unavailable(
    opened: Opening, url: str, answer: bytes
) -> None:
    async def answer_once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(4096)
        writer.write(answer)
        await writer.drain()
        writer.close()

    other = await asyncio.start_server(answer_once, "127.0.0.1", 0)
    async with other:
        store = opened(url.format(other.sockets[0].getsockname()[1]), timeout=0.3)
        with pytest.raises(StoreUnavailable):
            await store.read(Space.RECORDS)
        with pytest.raises(StoreUnavailable):
            await store.write(EPOCH)
        await store.close()


async def test_a_frozen_server_costs_one_timeout_for_all_and_is_used_again_when_it_thaws(
    server: RedisServer | PostgresServer, opened: Opening
) -> None:
    store = opened(server.url, timeout=0.5)
    await store.write(EPOCH)
    server.freeze()
    try:
        started = time.monotonic()
        results = await asyncio.gather(
            *(store.write(Put(Space.SELF, f"{number}", b"2")) for number in range(10)),
            store.read(Space.SELF),
            return_exceptions=True,
        )
        # One after the other they would cost 5.5 s.
        assert time.monotonic() - started < 2.5
        assert {type(result) for result in results} == {StoreUnavailable}
    finally:
        server.thaw()
    await store.write(Put(Space.SELF, "epoch", b"3"))
    assert (await store.read(Space.SELF))["epoch"] == b"3"


async def test_a_caller_that_leaves_in_the_middle_harms_no_later_call(
    server: RedisServer | PostgresServer, opened: Opening
) -> None:
    store = opened(server.url)
    await store.write(Put(Space.SELF, "epoch", b"self"), Put(Space.PEERS, "peer", b"peers"))
    for turns in range(12):
        reading = asyncio.ensure_future(store.read(Space.SELF))
        for _ in range(turns):
            await asyncio.sleep(0)
        reading.cancel()
        await asyncio.wait([reading])
        assert dict(await store.read(Space.PEERS)) == {"peer": b"peers"}


async def test_counters_are_summed_over_the_site_and_due_times_never_lie_in_the_past(
    server: RedisServer | PostgresServer, opened: Opening
) -> None:
    alice, bob = opened(server.url, node=ALICE), opened(server.url, node=BOB)
    assert isinstance(alice, Counters)
    assert isinstance(bob, Counters)
    assert [*await alice.count([Count("sum", 2.5, ttl=60)])] == [2.5]
    assert [*await bob.count([Count("sum", 1, ttl=60), Count("sum", -0.5, ttl=60)])] == [3.5, 3.0]
    [ahead] = await alice.count([Count("due", 10, ttl=60, due=True)])
    assert ahead == pytest.approx(10, abs=0.01)
    [ahead] = await bob.count([Count("due", 0, ttl=60, due=True)])
    assert 9 < ahead < 10
    [ahead] = await bob.count([Count("due", -100, ttl=60, due=True)])
    assert ahead == 0
    [ahead] = await bob.count([Count("due", 3, ttl=60, due=True)])
    assert ahead == pytest.approx(3, abs=0.01)
    assert await alice.count([]) == []


async def test_a_due_time_further_ahead_than_its_time_to_live_is_kept(
    server: RedisServer | PostgresServer, opened: Opening
) -> None:
    alice = opened(server.url, node=ALICE)
    assert isinstance(alice, Counters)
    for amount in (600, 600, -199):
        await alice.count([Count("far", amount, ttl=0.05, due=True)])
    await asyncio.sleep(0.1)
    [ahead] = await alice.count([Count("far", 0, ttl=0.05, due=True)])
    assert ahead == pytest.approx(1_001, abs=1)
    [ahead] = await alice.count([Count("far", -2_000, ttl=60, due=True)])
    assert ahead == 0
