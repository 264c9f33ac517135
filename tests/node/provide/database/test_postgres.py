"""PostgreSQL as the providers of a site use it: away, frozen, and back."""

import pytest

from node.provide.batch.store import BatchStore
from node.provide.database import DatabaseError, postgres
from node.provide.database.postgres import PgVectors, PostgresDatabase
from node.provide.vectors.store import VectorStore
from tests.postgres_server import PASSWORD, PostgresServer


@pytest.fixture(scope="module")
def mortal():
    with PostgresServer() as server:
        yield server


@pytest.fixture
def database(mortal):
    opened = PostgresDatabase(mortal.url, "away")
    yield opened
    opened.close()


def test_a_connection_that_broke_is_opened_again(mortal, database):
    database.change("CREATE TABLE t (a INT)")
    mortal.stop()
    for _ in range(2):
        with pytest.raises(DatabaseError, match="PostgreSQL: "):
            database.rows("SELECT 1")
    mortal.start()
    assert database.rows("SELECT count(*) FROM t") == [(0,)]


def test_a_transaction_whose_connection_broke_is_not_continued(mortal, database):
    database.change("CREATE TABLE u (a INT)")
    with pytest.raises(DatabaseError), database.transaction():  # noqa: PT012
        database.change("INSERT INTO u VALUES (1)")
        mortal.stop()
        mortal.start()
        with pytest.raises(DatabaseError):
            database.rows("SELECT 1")
        database.change("INSERT INTO u VALUES (2)")
    assert database.rows("SELECT * FROM u") == []


def test_a_call_to_a_frozen_server_times_out(mortal, database, monkeypatch):
    monkeypatch.setattr(postgres, "LONGEST_CALL", 0.3)
    mortal.freeze()
    with pytest.raises(DatabaseError, match="timeout"):
        database.rows("SELECT 1")
    mortal.thaw()
    assert database.rows("SELECT 1") == [(1,)]


def test_an_error_names_no_password(mortal):
    with pytest.raises(DatabaseError, match="password authentication failed") as failed:
        PostgresDatabase(mortal.url.replace(PASSWORD, "another-word"), "x")
    assert "another-word" not in str(failed.value)
    with pytest.raises(DatabaseError) as failed:
        PostgresDatabase("postgresql://us:another-word@[", "x")
    assert "another-word" not in str(failed.value)


@pytest.mark.parametrize("made", [(BatchStore, PostgresDatabase), (VectorStore, PgVectors)])
def test_a_store_can_be_closed_while_the_server_is_away(mortal, made):
    make, connect = made
    store = make(connect(mortal.url, f"ends_{make.__name__.lower()}"))
    mortal.stop()
    try:
        store.close()
    finally:
        mortal.start()
