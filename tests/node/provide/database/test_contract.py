"""Laws of every database of a provider."""

import pytest

from node.provide.database import DatabaseError, cid_of, migrate

TABLE = "CREATE TABLE t (a {int} PRIMARY KEY, b {bytes}, c {real}, d TEXT) {strict};"


@pytest.fixture
def database(databases):
    opened = databases.open()
    migrate(opened, (TABLE,))
    return opened


def test_a_transaction_is_whole_or_nothing(database, databases):
    with pytest.raises(DatabaseError), database.transaction():  # noqa: PT012
        assert database.change("INSERT INTO t (a) VALUES (?)", (1,)) == 1
        database.change("INSERT INTO t (a) VALUES (?)", (1,))
    assert database.rows("SELECT count(*) FROM t") == [(0,)]
    with database.transaction():
        database.change("INSERT INTO t (a) VALUES (1)")
    assert databases.open().rows("SELECT count(*) FROM t") == [(1,)]


def test_a_nested_transaction_is_part_of_the_outer_one(database):
    with pytest.raises(ZeroDivisionError), database.transaction():  # noqa: PT012
        with database.transaction():
            database.change("INSERT INTO t (a) VALUES (1)")
        raise ZeroDivisionError
    assert database.rows("SELECT * FROM t") == []


def test_values_come_back_as_they_were(database):
    row = (70_000_000_000, b"\0\xff", 0.1, "über % ?")
    database.change("INSERT INTO t VALUES (?, ?, ?, ?)", row)
    assert database.rows("SELECT * FROM t WHERE d = ?", (row[3],)) == [row]
    database.change("UPDATE t SET b = ?, c = ?, d = ?", (None, None, "a\0b"))
    assert database.rows("SELECT b, c, substr(d, 1, 1) FROM t") == [(None, None, "a")]


def test_each_migration_step_is_applied_once_and_later_ones_are_added(database, databases):
    again = databases.open()
    migrate(again, (TABLE,))
    migrate(again, (TABLE, "ALTER TABLE t ADD COLUMN e TEXT; UPDATE t SET e = 'x'"))
    assert again.rows("SELECT e FROM t") == []


def test_providers_that_share_a_database_have_one_cid_for_it(databases):
    one, other = cid_of(databases.open()), cid_of(databases.open())
    assert one == other
    assert bool(one) == databases.shared
