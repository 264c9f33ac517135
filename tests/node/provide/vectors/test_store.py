"""Laws of the store of vectors: exact search, separate stores, and nothing left of removed data."""

import pytest

from node.provide.database import Superseded
from node.provide.vectors.store import LEASE, Member, NoStore, VectorStore, WrongVector
from tests.node.provide.databases import SHARED

CHUNK = (800, 400)


@pytest.fixture
def store(databases):
    made = VectorStore(databases.open_vectors())
    for id_ in ("one", "two"):
        made.add(id_, 1, id_, "m", {"a": "b"})
        made.join(id_, [("f", "f.txt"), ("g", "g.txt")], 2, {"of": id_}, CHUNK)
    return made


def put(store, id_, file, *vectors):
    member = Member(id_, file, "m", *CHUNK)
    store.put(member, 5, [f"{id_} {file} {n}" for n in range(len(vectors))], vectors)
    return member


def test_a_search_finds_texts_of_its_own_store_alone_the_nearest_first(store):
    put(store, "one", "f", (1, 0), (0, 1))
    put(store, "one", "g", (1, 1))
    put(store, "two", "f", (1, 0))
    hits = store.search("one", (2, 0), 5)
    assert [hit.text for hit in hits] == ["one f 0", "one g 0", "one f 1"]
    assert hits[0].score == pytest.approx(1)
    assert hits[2].score == pytest.approx(0)
    assert (hits[0].name, hits[0].attributes) == ("f.txt", {"of": "one"})
    assert store.find("one")["last_active_at"] == 5


def test_removing_a_file_from_a_store_removes_its_texts(store):
    put(store, "one", "f", (1, 0))
    put(store, "one", "g", (1, 0))
    store.leave("one", "f")
    assert [one.file for one in store.search("one", (1, 0), 5)] == ["g"]
    assert store.texts("one", "f") == []
    assert [one["id"] for one in store.members("one")] == ["g"]


def test_a_store_that_is_removed_leaves_nothing(store):
    put(store, "one", "f", (1, 0))
    put(store, "two", "f", (1, 0))
    store.remove("one")
    assert store.ids() == ["two"]
    assert store.find("one") is None
    with pytest.raises(NoStore):
        store.search("one", (1, 0), 5)
    assert [hit.text for hit in store.search("two", (1, 0), 5)] == ["two f 0"]
    assert store._database.rows("SELECT count(*) FROM text") == [(1,)]
    assert store._database.rows("SELECT count(*) FROM member WHERE store = 1") == [(0,)]


def test_vectors_of_another_length_are_refused_and_nothing_is_stored(store):
    put(store, "one", "f", (1, 0))
    with pytest.raises(WrongVector, match="3 numbers, not 2"):
        put(store, "one", "g", (1, 0), (1, 0, 0))
    assert store.texts("one", "g") == []
    with pytest.raises(WrongVector):
        store.search("one", (1, 0, 0), 5)
    with pytest.raises(WrongVector):
        put(store, "two", "f", ())


def test_files_wait_in_their_order_and_a_failed_file_has_no_texts(store):
    first = store.waiting(5)
    assert (first.store, first.file, first.chunk) == ("one", "f", 800)
    put(store, "one", "f", (1, 0))
    store.settle(first, "no text")
    assert store.waiting(5).file == "g"
    assert store.texts("one") == []
    (_, failed) = store.members("one")
    assert (failed["status"], failed["last_error"]["message"]) == ("failed", "no text")
    store.settle(store.waiting(5))
    assert store.find("one")["file_counts"] == {
        "in_progress": 0, "completed": 1, "failed": 1, "cancelled": 0, "total": 2,
    }  # fmt: skip


def test_a_file_that_is_put_off_waits_until_it_is_due_and_one_of_a_paused_model_until_that_answers(
    store,
):
    assert store.waiting(5, ["x", "m"]) is None
    first = store.waiting(5, ["x"])
    store.put_off(first, 9)
    assert store.waiting(8).file == "g"
    assert store.waiting(9) == first


def test_a_half_read_file_waits_again_after_a_restart(store, databases):
    store.waiting(5)
    put(store, "one", "f", (1, 0))
    again = VectorStore(databases.open_vectors())
    now = 5 + LEASE if databases.shared else 5
    member = again.waiting(now)
    assert (member.store, member.file) == ("one", "f")
    again.forget(member, now)
    assert again.texts("one") == []


def test_a_file_removed_while_it_was_read_leaves_no_texts(store):
    member = store.waiting(5)
    store.leave("one", "f")
    with pytest.raises(Superseded):
        store.put(member, 6, ["x"], [(1, 0)])
    assert store.texts("one") == []


def test_a_file_cancelled_while_it_was_read_leaves_no_texts(store):
    store.join("one", [("f", "f.txt")], 2, {}, CHUNK, "batch")
    store.join("two", [("g", "g.txt")], 2, {}, CHUNK, "other")
    member = put(store, "one", "f", (1, 0))
    put(store, "two", "g", (1, 0))
    store.cancel("batch")
    assert store.counts_of_batch("batch")["cancelled"] == 1
    with pytest.raises(Superseded):
        store.put(member, 6, ["x"], [(1, 0)])
    store.settle(member)
    assert store.texts("one") == store.search("one", (1, 0), 6) == []
    assert store.texts("two") == ["two g 0"]


@SHARED
def test_each_file_is_read_by_one_provider_and_by_another_when_the_first_is_gone(store, databases):
    other = VectorStore(databases.open_vectors())
    mine = store.waiting(5)
    assert (mine.store, mine.file) == ("one", "f")
    assert other.waiting(5).file == "g"
    assert store.waiting(5) == mine
    late = 6 + LEASE
    assert other.waiting(late) == mine
    with pytest.raises(Superseded):
        store.put(mine, late, ["x"], [(1, 0)])
    store.settle(mine, "too late")
    other.put(mine, late, ["x"], [(1, 0)])
    other.settle(mine)
    assert store.texts("one") == ["x"]


def test_the_newest_texts_of_a_store_come_first(store):
    put(store, "one", "f", (1, 0), (1, 0), (1, 0))
    assert store.texts("one", newest=2) == ["one f 2", "one f 1"]


def test_numbers_that_are_too_large_are_refused_and_a_zero_vector_scores_0(store):
    with pytest.raises(WrongVector, match="too large"):
        put(store, "one", "f", (1e300, 0))
    put(store, "one", "f", (0, 0))
    assert [hit.score for hit in store.search("one", (1, 0), 5)] == [0]


def test_a_store_without_texts_finds_nothing(store):
    assert store.search("one", (1, 0), 5) == []
