"""SQLite as providers use it."""

import pytest

from node.provide.database import DatabaseError, Transaction, connect

SCHEMA = "CREATE TABLE IF NOT EXISTS t (a INTEGER PRIMARY KEY);"


def test_a_transaction_is_whole_or_nothing(tmp_path):
    database = connect(tmp_path / "db", SCHEMA)
    with pytest.raises(DatabaseError), Transaction(database):
        database.executemany("INSERT INTO t VALUES (?)", [(1,), (1,)])
    assert database.execute("SELECT count(*) FROM t").fetchone() == (0,)
    with Transaction(database):
        database.execute("INSERT INTO t VALUES (1)")
    database.close()
    assert connect(tmp_path / "db", SCHEMA).execute("SELECT count(*) FROM t").fetchone() == (1,)
