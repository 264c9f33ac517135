"""Laws of the store of batches: one result for each line, whatever is asked twice, and nothing lost at a restart."""

import pytest

from node.provide.batch.lines import Line
from node.provide.batch.store import BatchStore

SAID = {"endpoint": "/v1/chat/completions", "input_file_id": "f"}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "batches.db"


@pytest.fixture
def store(path):
    store = BatchStore(path)
    yield store
    store.close()


def filled(store, count=4, id_="b"):
    store.add_batch(id_, 1, 100, SAID)
    prefixes = (b"z", b"a")
    lines = [Line(n, f"c{n}", b"{}", prefixes[n % 2]) for n in range(1, count + 1)]
    assert store.fill(id_, lines) == []
    store.stand(id_, "in_progress", 2)


def test_lines_with_a_common_beginning_go_one_after_the_other(store):
    filled(store, 6)
    one, two = store.lease(5, 2)
    assert (one.number, two.number) == (1, 2)
    store.commit(two, b"x", ok=True)
    (again,) = store.lease(5, 1)
    assert again.number == 4
    store.commit(one, b"x", ok=True)
    assert [line.number for line in store.lease(5, 1)] == [3]


def test_where_nothing_else_is_to_be_asked_they_go_together_and_each_once(store):
    filled(store)
    assert [line.number for line in store.lease(5, 3)] == [1, 2, 3]
    assert [line.number for line in store.lease(5, 3)] == [4]
    assert store.lease(5, 3) == []


def test_what_is_put_off_holds_no_other_beginning_up(store):
    filled(store, 4)
    one, two = store.lease(5, 2)
    store.put_off(one, 99, counts=False)
    store.put_off(two, 99, counts=False)
    assert [line.number for line in store.lease(5, 2)] == [3, 4]


def test_a_line_has_one_result(store):
    filled(store, 1)
    (line,) = store.lease(5, 1)
    assert store.commit(line, b"one\n", ok=True)
    assert not store.commit(line, b"two\n", ok=False)
    assert list(store.results("b", ok=True)) == [b"one\n"]
    assert store.is_answered("b")


def test_what_is_put_off_comes_again_when_it_is_due(store):
    filled(store, 1)
    (line,) = store.lease(5, 1)
    store.put_off(line, 9.0, counts=True)
    assert store.lease(8, 1) == []
    (again,) = store.lease(9, 1)
    assert (again.number, again.attempts) == (1, 1)
    store.put_off(again, 10.0, counts=False)
    assert store.lease(10, 1)[0].attempts == 1


def test_what_was_under_way_is_open_after_a_restart_and_what_was_answered_is_not(store, path):
    filled(store, 3)
    first, second, _ = store.lease(5, 3)
    store.commit(first, b"one\n", ok=True)
    store.put_off(second, 1e9, counts=False)
    again = BatchStore(path)
    assert sorted(line.number for line in again.lease(5, 9)) == [2, 3]
    assert list(again.results("b", ok=True)) == [b"one\n"]
    again.close()


def test_an_id_that_is_taken_is_told_and_an_error_row_needs_none(store):
    store.add_batch("b", 1, 100, SAID)
    one, two = Line(1, "a", b"{}", b""), Line(2, "a", b"{}", b"")
    assert store.fill("b", [one, two, (3, None, b"bad\n")]) == [two]
    store.fill("b", [(2, "a", b"twice\n")])
    assert list(store.results("b", ok=False)) == [b"twice\n", b"bad\n"]
    assert store.batch("b")["request_counts"] == {"total": 3, "completed": 0, "failed": 2}


def test_many_results_come_in_the_order_of_their_lines(store):
    store.add_batch("b", 1, 100, SAID)
    store.fill("b", [(n, None, b"%d\n" % n) for n in range(1, 1_302)])
    assert list(store.results("b", ok=False)) == [b"%d\n" % n for n in range(1, 1_302)]


def test_a_batch_that_is_over_keeps_its_counts_and_not_its_lines(store):
    filled(store, 2)
    for line in store.lease(5, 2):
        store.commit(line, b"x\n", ok=line.number == 1)
    store.finish("b", "completed", 7, [("output_file_id", 2, "file-b-output")])
    found = store.batch("b")
    assert (found["status"], found["completed_at"]) == ("completed", 7)
    assert found["request_counts"] == {"total": 2, "completed": 1, "failed": 1}
    assert found["output_file_id"] == "file-b-output"
    assert store.files.find("file-b-output")["purpose"] == "batch_output"
    assert store.unfinished() == []
    assert list(store.results("b", ok=True)) == []


def test_files_and_batches_are_listed_the_newest_first(store):
    for n in range(3):
        store.files.add(f"f{n}", 1, 5, "a.jsonl", "batch")
        store.add_batch(f"b{n}", 1, 100, SAID)
    assert [file["id"] for file in store.files.all()] == ["f2", "f1", "f0"]
    assert store.batches() == ["b2", "b1", "b0"]
    assert store.files.remove("f1")
    assert not store.files.remove("f1")
    assert store.files.find("f1") is None
    assert store.batch("none") is None
