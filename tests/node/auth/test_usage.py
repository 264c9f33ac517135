"""Usage of keys: counted once, written for a site, summed, bounded, and forgotten in time."""

import orjson
import pytest

from node.auth import usage as module
from node.auth.books import UsageBook
from node.auth.usage import UsageLog
from node.auth.usage_row import NOBODY, UsageRow, sums
from node.faces.access_log import Account
from registry.errors import StoreUnavailable
from registry.store import Put, Space
from router.openai.usage import Usage
from router.requests import Kind
from tests.failing_store import FailingStore

DAY = 86_400.0
NOW = 20_000 * DAY + 100
TODAY, YESTERDAY, TOMORROW = "2024-10-04", "2024-10-03", "2024-10-05"


class Clock:
    now = NOW

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def store():
    return FailingStore()


def row(key="ann", model="m", node="n1", day=TODAY, **fields):
    fields = {"requests": 1, "prompt_tokens": 10, "completion_tokens": 5, "seconds": 0.1, **fields}
    return UsageRow(day, key, model, node, **fields)


def made(store, clock, node="n1", days=35):
    book = UsageBook(clock)
    return book, UsageLog(book, store, node, days=days)


def test_days_are_those_of_utc(clock):
    book = UsageBook(clock)
    assert book.today() == TODAY
    clock.now = 20_001 * DAY - 0.1
    assert book.today() == TODAY
    clock.now = 20_001 * DAY
    assert book.today() == TOMORROW


def ended(key="ann", model="m", node="n1", status=200, used=None):
    account = Account("r", Kind.CHAT, 0.0)
    account.key, account.model, account.node = key, model, node
    account.status, account.used = status, used
    account.seconds, account.first_byte_seconds = 0.5, 0.25
    return account


def test_a_request_counts_for_the_day_on_which_it_ended(clock):
    book = UsageBook(clock)
    for now in (NOW, NOW + 1, NOW + DAY, NOW + DAY + 1):
        clock.now = now
        book.count(ended())
    clock.now = NOW + 2 * DAY
    assert book.today() == "2024-10-06"
    assert [(row.day, row.requests) for row in book.take()] == [(TODAY, 2), (TOMORROW, 2)]
    assert book.take() == ()


def test_tokens_and_seconds_of_requests_are_summed(clock):
    book = UsageBook(clock)
    reported, guessed = Usage(7, 5, cached=3), Usage(0, 2, estimated=True)
    for _ in range(2):
        for account in (ended(used=reported), ended(used=guessed), ended(status=499)):
            book.count(account)
    assert book.take() == (
        UsageRow(TODAY, "ann", "m", "n1", 6, 2, 14, 14, 6, 4, seconds=3.0, first_seconds=1.5),
    )


def test_an_unknown_model_and_a_caller_without_a_key_have_no_name(clock):
    book = UsageBook(clock)
    book.count(ended(key="", model="made up", node=NOBODY, status=404, used=Usage(0, 0)))
    [row] = book.take()
    assert (row.key, row.model, row.node, row.failed, row.estimated) == (NOBODY,) * 3 + (1, 0)


async def test_requests_are_summed_by_day_key_model_and_node(store, clock):
    book, log = made(store, clock)
    for one in (row(), row(failed=1), row(model="x"), row(key="bob")):
        book.add(one)
    rows = await log.rows(TODAY, TODAY)
    assert [(r.key, r.model, r.requests, r.failed, r.prompt_tokens, r.seconds) for r in rows] == [
        ("ann", "m", 2, 1, 20, 0.2),
        ("ann", "x", 1, 0, 10, 0.1),
        ("bob", "m", 1, 0, 10, 0.1),
    ]
    assert await log.rows(YESTERDAY, YESTERDAY) == []


async def test_each_node_of_a_site_sees_what_all_nodes_have_counted(store, clock):
    (one, first), (two, second) = made(store, clock), made(store, clock, "n2")
    one.add(row())
    two.add(row())
    await first.write()
    for log in (second, first):
        [total] = await log.rows(TODAY, TODAY)
        assert total.requests == 2


async def test_counts_survive_a_restart_and_go_on(store, clock):
    book, log = made(store, clock)
    book.add(row())
    await log.close()
    book, log = made(store, clock)
    await log.restore()
    book.add(row())
    [total] = await log.rows(TODAY, TODAY)
    assert total.requests == 2


async def test_nothing_is_written_where_nothing_was_counted(store, clock):
    book, log = made(store, clock)
    book.add(row())
    await log.write()
    await log.write()
    assert store.writes == 1


async def test_usage_that_cannot_be_written_is_written_later(store, clock):
    book, log = made(store, clock)
    book.add(row())
    store.broken = True
    with pytest.raises(StoreUnavailable):
        await log.write()
    book.add(row())
    store.broken = False
    [total] = await log.rows(TODAY, TODAY)
    assert total.requests == 2


async def test_usage_that_is_lost_at_the_end_is_logged(store, clock, caplog):
    book, log = made(store, clock)
    book.add(row())
    store.broken = True
    await log.close()
    assert "the last usage was lost" in caplog.text


async def test_usage_that_another_process_counted_before_midnight_may_come_after_it(store, clock):
    book, log = made(store, clock)
    book.add(row())
    await log.write()
    clock.now += DAY
    book.add(row(day=TOMORROW))
    await log.write()
    book.add(row())
    assert [r.requests for r in await log.rows(TODAY, TOMORROW)] == [2, 1]


async def test_days_that_are_too_old_are_forgotten(store, clock):
    book, log = made(store, clock, days=2)
    await store.write(Put(Space.USAGE, "garbage", b"[]"))
    book.add(row())
    await log.write()
    assert [*await store.read(Space.USAGE)] != ["garbage"]
    clock.now += 2 * DAY
    book.add(row(day="2024-10-06"))
    await log.write()
    assert {name[:10] for name in await store.read(Space.USAGE)} == {"2024-10-06"}
    assert all(name[:10] == "2024-10-06" for name in log._parts)


async def test_more_rows_than_there_is_room_for_are_summed_up(store, clock, monkeypatch):
    monkeypatch.setattr(module, "MAX_ROWS", 2)
    monkeypatch.setattr(module, "PARTS", 1)
    book, log = made(store, clock)
    for index in range(50):
        book.add(row(key=f"k{index}", model=f"m{index}"))
    rows = await log.rows(TODAY, TODAY)
    assert sum(r.requests for r in rows) == 50
    assert len(rows) == 4
    assert {(r.key, r.model) for r in rows} >= {("k0", "m0"), ("k1", "m1"), (NOBODY, NOBODY)}


async def test_a_long_name_is_cut_and_a_whole_part_fits_into_the_store(store, clock):
    book, log = made(store, clock)
    for index in range(3 * module.PARTS * module.MAX_ROWS):
        book.add(row(key=f"{index}".rjust(64, "k"), model="模" * 300, node="n" * 52))
    await log.write()
    stored = await store.read(Space.USAGE)
    assert all(len(value) < 512 * 1024 for value in stored.values())


@pytest.mark.parametrize("value", [b"", b"{}", b"[1]", b'[{"day":"x"}]', b"\xff"])
async def test_invalid_rows_of_the_store_count_as_nothing(store, clock, value):
    await store.write(Put(Space.USAGE, f"{TODAY}:n1:3", value))
    _, log = made(store, clock)
    await log.restore()
    assert await log.rows(TODAY, TODAY) == []


def test_sums_are_grouped_by_the_columns_that_are_asked_for():
    rows = [row(), row(model="x"), row(key="bob", day=YESTERDAY)]
    assert [(r.key, r.requests, r.day) for r in sums(rows, ["key"])] == [
        ("ann", 2, ""),
        ("bob", 1, ""),
    ]
    assert [(r.day, r.requests) for r in sums(rows, ["day"])] == [(YESTERDAY, 1), (TODAY, 2)]
    [total] = sums(rows, [])
    assert total.requests == 3


def test_a_row_has_no_field_for_prompts_or_answers():
    assert set(orjson.loads(orjson.dumps(row()))) == {
        "day", "key", "model", "node", "requests", "failed", "prompt_tokens", "completion_tokens", "cached_tokens", "cost",
        "estimated", "seconds", "first_seconds",
    }  # fmt: skip
