"""Laws of the store of batches: one result for each line, even if it is asked twice, and nothing lost at a restart."""

import sqlite3
from contextlib import closing

import pytest

from node.provide.batch.lines import BatchLine
from node.provide.batch.store import LEASE, BatchStore
from node.provide.database import SqliteDatabase, Superseded
from tests.node.provide.databases import SHARED

SAID = {"endpoint": "/v1/chat/completions", "input_file_id": "f"}


@pytest.fixture
def store(databases):
    return BatchStore(databases.open())


@pytest.fixture
def other(store, databases):
    """Another provider that shares the database."""
    return BatchStore(databases.open())


def filled(store, count=4, id_="b"):
    store.add_batch(id_, 1, 100, SAID)
    store.unfinished(2)
    prefixes = (b"z", b"a")
    lines = [BatchLine(n, f"c{n}", b"{}", prefixes[n % 2]) for n in range(1, count + 1)]
    assert store.fill(id_, 2, lines) == []
    assert store.stand(id_, "in_progress", 2, was="validating")


def test_lines_with_a_common_beginning_go_one_after_the_other(store):
    filled(store, 6)
    one, two = store.lease(5, 2)
    assert (one.number, two.number) == (1, 2)
    store.commit(two, b"x", ok=True)
    (again,) = store.lease(5, 1)
    assert again.number == 4
    store.commit(one, b"x", ok=True)
    assert [line.number for line in store.lease(5, 1)] == [3]


def test_if_no_other_lines_are_open_those_with_a_common_beginning_go_together_and_each_once(store):
    filled(store)
    assert [line.number for line in store.lease(5, 3)] == [1, 2, 3]
    assert [line.number for line in store.lease(5, 3)] == [4]
    assert store.lease(5, 3) == []


def test_with_few_beginnings_equally_many_lines_of_each_go_together(store):
    filled(store, 10)
    assert [line.number for line in store.lease(5, 4)] == [1, 2, 3, 4]
    two, three = store.lease(5, 2)
    assert (two.number, three.number) == (5, 6)
    store.commit(two, b"x", ok=True)
    assert [line.number for line in store.lease(5, 1)] == [7]


def test_a_line_has_a_chain_while_another_with_its_beginning_has_no_result(store):
    filled(store, 3)
    one, two, three = store.lease(5, 3)
    assert [bool(line.chain) for line in (one, two, three)] == [True, False, True]
    assert one.chain == three.chain
    store.commit(three, b"x", ok=True)
    store.put_off(one, 5, counts=False)
    assert store.lease(5, 1)[0].chain == ""


def test_lines_that_are_put_off_delay_no_other_lines(store):
    filled(store, 4)
    one, two = store.lease(5, 2)
    store.put_off(one, 99, counts=False)
    store.put_off(two, 99, counts=False)
    assert [line.number for line in store.lease(5, 2)] == [3, 4]


def test_many_beginnings_that_are_put_off_hide_no_other_beginnings(store):
    store.add_batch("b", 1, 100, SAID)
    store.unfinished(2)
    store.fill("b", 2, [BatchLine(n, f"c{n}", b"{}", b"%03d" % n) for n in range(1, 61)])
    store.stand("b", "in_progress", 2, was="validating")
    for line in store.lease(5, 50):
        store.put_off(line, 99, counts=False)
    assert [store.lease(5, 1)[0].number for _ in range(10)] == list(range(51, 61))
    assert store.lease(5, 1) == []


def test_a_line_has_one_result(store):
    filled(store, 1)
    (line,) = store.lease(5, 1)
    assert store.commit(line, b"one\n", ok=True)
    assert not store.commit(line, b"two\n", ok=False)
    assert list(store.results("b", ok=True)) == [b"one\n"]
    assert store.is_answered("b")


def test_a_line_that_is_put_off_comes_again_when_it_is_due(store):
    filled(store, 1)
    (line,) = store.lease(5, 1)
    store.put_off(line, 9.0, counts=True)
    assert store.lease(8, 1) == []
    (again,) = store.lease(9, 1)
    assert (again.number, again.attempts) == (1, 1)
    store.put_off(again, 10.0, counts=False)
    assert store.lease(10, 1)[0].attempts == 1


def test_after_a_restart_lines_under_way_are_open_and_answered_lines_are_not(store, databases):
    filled(store, 3)
    first, second, _ = store.lease(5, 3)
    store.commit(first, b"one\n", ok=True)
    store.put_off(second, 1e9, counts=False)
    again = BatchStore(databases.open())
    later = 1e9 + LEASE if databases.shared else 5
    assert sorted(line.number for line in again.lease(later, 9)) == [2, 3]
    again.unfinished(later)
    assert list(again.results("b", ok=True)) == [b"one\n"]


def test_a_line_with_a_taken_id_is_returned_and_an_error_row_needs_no_id(store):
    store.add_batch("b", 1, 100, SAID)
    store.unfinished(2)
    one, two = BatchLine(1, "a", b"{}", b""), BatchLine(2, "a", b"{}", b"")
    assert store.fill("b", 2, [one, two, (3, None, b"bad\n")]) == [two]
    store.fill("b", 2, [(2, "a", b"twice\n")])
    assert list(store.results("b", ok=False)) == [b"twice\n", b"bad\n"]
    assert store.batch("b")["request_counts"] == {"total": 3, "completed": 0, "failed": 2}


def test_many_results_come_in_the_order_of_their_lines(store):
    store.add_batch("b", 1, 100, SAID)
    store.unfinished(2)
    store.fill("b", 2, [(n, None, b"%d\n" % n) for n in range(1, 1_302)])
    assert list(store.results("b", ok=False)) == [b"%d\n" % n for n in range(1, 1_302)]


def test_a_finished_batch_keeps_its_counts_but_not_its_lines(store, tmp_path):
    filled(store, 2)
    for line in store.lease(5, 2):
        store.commit(line, b"x\n", ok=line.number == 1)
    path = tmp_path / "file-b-output"
    path.write_bytes(b"x\n")
    store.finish("b", "completed", 7, {"output_file_id": path})
    batch = store.batch("b")
    assert (batch["status"], batch["completed_at"]) == ("completed", 7)
    assert batch["request_counts"] == {"total": 2, "completed": 1, "failed": 1}
    assert batch["output_file_id"] == "file-b-output"
    assert store.files.find("file-b-output")["purpose"] == "batch_output"
    assert store.files.find("file-b-output")["bytes"] == 2
    assert store.unfinished(8) == []
    store.unfinished(8)
    assert list(store.results("b", ok=True)) == []


def test_files_and_batches_are_listed_the_newest_first(store, tmp_path):
    (tmp_path / "a").write_bytes(b"12345")
    for n in range(3):
        store.files.add(f"f{n}", 1, "a.jsonl", "batch", tmp_path / "a")
        store.add_batch(f"b{n}", 1, 100, SAID)
    assert [file["id"] for file in store.files.all()] == ["f2", "f1", "f0"]
    assert store.batches() == ["b2", "b1", "b0"]
    assert store.files.remove("f1")
    assert not store.files.remove("f1")
    assert store.files.find("f1") is None
    assert store.batch("none") is None


def test_a_cancelled_batch_does_not_go_on(store):
    filled(store, 1)
    assert store.cancel("b", 3)
    assert not store.stand("b", "finalizing", 4, was="in_progress")
    assert not store.cancel("b", 4)
    assert [status for _, status, _ in store.unfinished(4)] == ["cancelling"]
    assert store.lease(5, 1) == []


@SHARED
def test_several_providers_ask_each_line_once(store, other):
    filled(store, 6)
    first, second = store.lease(5, 3), other.lease(5, 9)
    assert (len(first), len(second)) == (3, 3)
    assert len({line.number for line in (*first, *second)}) == 6
    assert all(other.commit(line, b"x\n", ok=True) for line in second)
    assert not store.is_answered("b")


@SHARED
def test_one_provider_works_on_a_batch_and_another_takes_over_when_it_is_gone(store, other):
    filled(store, 2)
    assert other.unfinished(5) == []
    assert [id_ for id_, *_ in store.unfinished(2 + LEASE * 0.9)] == ["b"]
    assert other.unfinished(2 + LEASE * 1.1) == []
    assert [id_ for id_, *_ in other.unfinished(2 + LEASE * 2)] == ["b"]
    assert store.unfinished(2 + LEASE * 2) == []


@SHARED
def test_a_provider_that_has_lost_its_lease_by_being_slow_changes_nothing_any_more(
    store, other, tmp_path
):
    filled(store, 2)
    (line, _) = store.lease(5, 2)
    late = 5 + LEASE * 2
    other.unfinished(late)
    with pytest.raises(Superseded):
        store.fill("b", late, [BatchLine(9, "c9", b"{}", b"")])
    with pytest.raises(Superseded):
        store.stand("b", "finalizing", late, was="in_progress")
    with pytest.raises(Superseded):
        store.finish("b", "completed", late, {})
    (again,) = [lease for lease in other.lease(late, 2) if lease.number == line.number]
    store.put_off(line, late + 1e6, counts=True)
    assert other.commit(again, b"x\n", ok=True)
    assert not store.commit(line, b"y\n", ok=True)


@SHARED
def test_a_lease_that_is_renewed_does_not_run_out(store, other):
    filled(store, 2)
    leased = store.lease(5, 2)
    store.renew([(line.batch, line.number) for line in leased[:1]], 5 + LEASE * 0.9)
    (free,) = other.lease(5 + LEASE * 1.1, 2)
    assert free.number == leased[1].number


@SHARED
def test_a_provider_that_closes_in_order_leaves_nothing_leased(store, other):
    filled(store, 2)
    store.lease(5, 2)
    store.close()
    assert len(other.lease(5, 2)) == 2
    assert len(other.unfinished(5)) == 1


BEFORE_LEASES = """
CREATE TABLE file (
  id TEXT PRIMARY KEY, created_at INTEGER NOT NULL, bytes INTEGER NOT NULL, filename TEXT NOT NULL, purpose TEXT NOT NULL
) STRICT;
CREATE TABLE batch (
  id TEXT PRIMARY KEY, created_at INTEGER NOT NULL, status TEXT NOT NULL, expires_at INTEGER NOT NULL, said TEXT NOT NULL
) STRICT;
CREATE TABLE line (
  batch TEXT NOT NULL, number INTEGER NOT NULL, custom_id TEXT, prefix BLOB NOT NULL, body BLOB NOT NULL,
  attempts INTEGER NOT NULL DEFAULT 0, due REAL NOT NULL DEFAULT 0, ok INTEGER, result BLOB,
  PRIMARY KEY (batch, number)
) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX line_id ON line (batch, custom_id) WHERE custom_id IS NOT NULL;
CREATE INDEX line_open ON line (batch, prefix, number) WHERE result IS NULL;
INSERT INTO file VALUES ('file-1', 1, 5, 'lines.jsonl', 'batch');
INSERT INTO batch VALUES ('b', 1, 'in_progress', 100, '{"endpoint":"/v1/chat/completions","input_file_id":"file-1"}');
INSERT INTO line (batch, number, custom_id, prefix, body, ok, result) VALUES ('b', 1, 'c1', x'61', x'7b7d', 1, x'780a');
INSERT INTO line (batch, number, custom_id, prefix, body) VALUES ('b', 2, 'c2', x'61', x'7b7d');
"""


def test_a_database_file_from_before_there_were_leases_is_continued(tmp_path):
    with closing(sqlite3.connect(tmp_path / "batches.db")) as before:
        before.executescript(BEFORE_LEASES)
    store = BatchStore(SqliteDatabase(tmp_path / "batches.db"))
    assert store.files.find("file-1")["filename"] == "lines.jsonl"
    assert store.unfinished(5) == [("b", "in_progress", 100)]
    (line,) = store.lease(5, 9)
    assert line.custom_id == "c2"
    store.commit(line, b"y\n", ok=True)
    assert list(store.results("b", ok=True)) == [b"x\n", b"y\n"]
    store.close()
