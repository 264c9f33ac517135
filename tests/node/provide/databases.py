"""Every database that a provider may have, so that one suite states the laws of all."""

from itertools import count

import pytest

from node.provide.database import SqliteDatabase
from node.provide.database.postgres import PgVectors, PostgresDatabase
from node.provide.vectors.sqlite_vec import SqliteVectors

KINDS = ("sqlite", "postgres")

SHARED = pytest.mark.parametrize("databases", ["postgres"], indirect=True)
"""Marks a law of databases that several providers share."""

_number = count()


class Databases:
    """One database of a kind, which a test may open several times, as several processes do."""

    def __init__(self, kind, folder, server):
        self.shared = kind == "postgres"
        self._path = folder / "database.db"
        self._server = server
        self._schema = f"test_{next(_number)}"
        self._opened = []

    def open(self):
        """Open the database."""
        return self._kept(
            PostgresDatabase(self._server.url, self._schema)
            if self.shared
            else SqliteDatabase(self._path)
        )

    def open_vectors(self):
        """Open the database as one that keeps vectors too."""
        return self._kept(
            PgVectors(self._server.url, self._schema) if self.shared else SqliteVectors(self._path)
        )

    def close(self):
        """Close all that were opened."""
        for database in self._opened:
            database.close()

    def _kept(self, database):
        self._opened.append(database)
        return database
