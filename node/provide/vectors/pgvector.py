"""PostgreSQL with pgvector, searched without an index, so that results are exact."""

import math
import struct

from node.provide.database import DatabaseError
from node.provide.database.postgres import PostgresDatabase


class PgVectors(PostgresDatabase):
    """One schema of a database that has the extension, or allows creating it."""

    def __init__(self, url: str, schema: str) -> None:
        super().__init__(url, schema)
        with self.transaction(alone=True):
            try:
                self.change("CREATE EXTENSION IF NOT EXISTS vector WITH SCHEMA public")
            except DatabaseError as error:
                why = (
                    "install it on the server, where a superuser says once: CREATE EXTENSION vector"
                )
                raise DatabaseError(f"{error}; vectors need pgvector: {why}") from error
            self.change(
                "CREATE TABLE IF NOT EXISTS near (text BIGINT PRIMARY KEY, store BIGINT NOT NULL, vector vector NOT NULL)"
            )
            self.change("CREATE INDEX IF NOT EXISTS near_of ON near (store)")

    def keep_vector(self, text: int, store: int, size: int, vector: bytes) -> None:
        """Store the vector of a text; `vector` is `size` little-endian 32-bit floats."""
        self.change("INSERT INTO near VALUES (?, ?, ?::vector)", (text, store, _told(vector, size)))

    def drop_vectors(self, store: int, size: int, file: str) -> None:  # noqa: ARG002 (one table for all lengths)
        """Delete the vectors of a file's texts."""
        inside = "SELECT id FROM text WHERE store = ? AND file = ?"
        self.change(f"DELETE FROM near WHERE text IN ({inside})", (store, file))  # noqa: S608

    def nearest(self, store: int, size: int, vector: bytes, most: int) -> list[tuple[int, float]]:
        """Return the numbers of the nearest texts, each with its distance: 1 minus the cosine."""
        asked = "SELECT text, vector <=> ?::vector AS distance FROM near WHERE store = ? ORDER BY distance, text LIMIT ?"
        rows = self.rows(asked, (_told(vector, size), store, most))
        return [(text, 1.0 if math.isnan(distance) else distance) for text, distance in rows]


def _told(vector: bytes, size: int) -> str:
    """Return a vector in pgvector's text form."""
    return f"[{','.join(map(repr, struct.unpack(f'<{size}f', vector)))}]"
