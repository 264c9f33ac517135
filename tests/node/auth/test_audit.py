"""Audit log: entries are kept in chains that show whether they were tampered with."""

from dataclasses import replace

import orjson
import pytest

from node.auth import audit as module
from node.auth.audit import NOTHING, AuditLog, chained, faults
from registry.store import Delete, Put, Space
from tests.failing_store import FailingStore


class Clock:
    now = 1_000.0

    def __call__(self):
        self.now += 1
        return self.now


@pytest.fixture
def store():
    return FailingStore()


@pytest.fixture
def log(store):
    return AuditLog(store, "n1", Clock())


async def fill(log, times=5):
    for index in range(times):
        await log.add("ann", "drain", f"t{index}")


async def test_entries_are_numbered_and_each_holds_the_hash_of_the_one_before(log):
    await fill(log, 3)
    entries = await log.entries()
    assert [(e.node, e.number, e.who, e.action, e.target) for e in entries] == [
        ("n1", number, "ann", "drain", f"t{number - 1}") for number in (1, 2, 3)
    ]
    assert [e.before for e in entries] == [NOTHING, entries[0].hash, entries[1].hash]
    assert all(e.hash == chained(e) for e in entries)
    assert faults(entries) == []


async def test_the_chain_goes_on_after_a_restart(log, store):
    await fill(log, 2)
    again = AuditLog(store, "n1", Clock())
    await again.restore()
    await fill(again, 2)
    entries = await again.entries()
    assert [e.number for e in entries] == [1, 2, 3, 4]
    assert faults(entries) == []


async def test_each_node_of_a_site_has_its_own_chain_and_shows_all_chains(log, store):
    other = AuditLog(store, "n2", Clock())
    await fill(log, 2)
    await fill(other, 1)
    entries = await other.entries()
    assert [(e.node, e.number) for e in entries] == [("n1", 1), ("n1", 2), ("n2", 1)]
    assert faults(entries) == []


@pytest.mark.parametrize("field", ["at", "who", "action", "target", "before"])
async def test_a_change_to_any_field_is_seen(log, field):
    await fill(log)
    entries = [*await log.entries()]
    value = 7.0 if field == "at" else "x"
    entries[2] = replace(entries[2], **{field: value})
    assert faults(entries)
    # With a hash that fits the changed entry, the next entry does not fit.
    entries[2] = replace(entries[2], hash=chained(entries[2]))
    assert faults(entries)


async def test_an_entry_that_is_missing_is_seen(log):
    await fill(log)
    entries = [*await log.entries()]
    assert faults([*entries[:2], *entries[3:]]) == ["1 before entry 4 of n1 are missing"]
    # The oldest entries are deleted in regular operation: that they are missing is no fault.
    assert faults(entries[2:]) == []


async def test_entries_that_the_store_did_not_take_are_written_with_the_next_one(
    log, store, caplog
):
    await fill(log, 1)
    store.broken = True
    await fill(log, 2)
    assert "2 entries of the audit log wait" in caplog.text
    store.broken = False
    await fill(log, 1)
    entries = await log.entries()
    assert len(entries) == 4
    assert faults(entries) == []


async def test_the_number_of_waiting_entries_is_bounded_and_a_lost_one_is_logged(
    log, store, caplog, monkeypatch
):
    monkeypatch.setattr(module, "MAX_PENDING", 2)
    store.broken = True
    await fill(log, 3)
    assert "'drain' of ann is not in the audit log" in caplog.text
    store.broken = False
    monkeypatch.setattr(module, "MAX_PENDING", 3)
    await fill(log, 1)
    entries = await log.entries()
    assert [e.number for e in entries] == [1, 2, 3]
    assert faults(entries) == []


async def test_beyond_the_most_entries_the_oldest_are_deleted(log, store, monkeypatch):
    monkeypatch.setattr(module, "MAX_ENTRIES", 3)
    await fill(log, 8)
    entries = await log.entries()
    assert [e.number for e in entries] == [6, 7, 8]
    assert faults(entries) == []


async def test_a_long_target_is_cut_and_invalid_text_is_replaced(log):
    await log.add("ann", "register", "x" * 1_000)
    await log.add("ann", "register", "\udcff")
    assert [len(e.target) for e in await log.entries()] == [200, 1]


@pytest.mark.parametrize("value", [b"", b"{}", b"[]", b"\xff"])
async def test_a_value_that_the_log_did_not_write_is_no_entry(log, store, value):
    await fill(log, 1)
    await store.write(Put(Space.AUDIT, "n1:000000000002", value), Put(Space.AUDIT, "x", b"{}"))
    assert len(await log.entries()) == 1
    entry = orjson.loads((await store.read(Space.AUDIT))["n1:000000000001"])
    await store.write(Put(Space.AUDIT, "n1:000000000009", orjson.dumps(entry)))
    await store.write(Delete(Space.AUDIT, "n1:000000000001"))
    assert await log.entries() == []


async def test_settings_that_changed_since_the_last_start_are_logged(log):
    await log.note_settings({"node.open": "machine", "node.name": "a"}, "user 5")
    assert await log.entries() == []
    await log.note_settings({"node.open": "everybody", "web.names": "x"}, "user 5")
    assert [(entry.who, entry.action, entry.target) for entry in await log.entries()] == [
        ("user 5", "set", "node.name a -> nothing"),
        ("user 5", "set", "node.open machine -> everybody"),
        ("user 5", "set", "web.names nothing -> x"),
    ]
    await log.note_settings({"node.open": "everybody", "web.names": "x"}, "user 5")
    assert len(await log.entries()) == 3
