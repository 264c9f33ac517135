"""Store of batches and their lines. A result and the end of its line are one transaction, so each line has one result.

Several providers may share it: each leases lines, and one of them advances a batch. A lease that is not renewed expires. If the
previous provider was only slow, the new one is safe from it: the late writes change nothing.
Calls block; code with an event loop runs them in one thread.
"""

import secrets
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from operator import itemgetter
from pathlib import Path
from typing import Any

import orjson

from node.provide import files
from node.provide.batch.lines import BatchLine
from node.provide.database import Database, DatabaseError, Row, Superseded, migrate
from node.provide.files import FileTable

_TABLES = """
CREATE TABLE IF NOT EXISTS batch (
  {rowid} id TEXT PRIMARY KEY, created_at {int} NOT NULL, status TEXT NOT NULL, expires_at {int} NOT NULL, said TEXT NOT NULL
) {strict};
CREATE TABLE IF NOT EXISTS line (
  batch TEXT NOT NULL, number {int} NOT NULL, custom_id TEXT, prefix {bytes} NOT NULL, body {bytes} NOT NULL,
  attempts {int} NOT NULL DEFAULT 0, due {real} NOT NULL DEFAULT 0, ok {int}, result {bytes},
  PRIMARY KEY (batch, number)
) {keyed};
CREATE UNIQUE INDEX IF NOT EXISTS line_id ON line (batch, custom_id) WHERE custom_id IS NOT NULL;
CREATE INDEX IF NOT EXISTS line_open ON line (batch, prefix, number) WHERE result IS NULL;
"""

_LEASES = """
ALTER TABLE batch ADD COLUMN owner TEXT NOT NULL DEFAULT '';
ALTER TABLE batch ADD COLUMN until {real} NOT NULL DEFAULT 0;
ALTER TABLE line ADD COLUMN owner TEXT NOT NULL DEFAULT '';
ALTER TABLE line ADD COLUMN until {real} NOT NULL DEFAULT 0;
CREATE INDEX line_leased ON line (batch, until) WHERE result IS NULL AND until > 0;
"""

LEASE = 15.0
"""Seconds after which a lease that was not renewed may be taken over by another provider."""

_OPEN = (
    "SELECT prefix, number, custom_id, body, attempts FROM line WHERE batch = ? AND result IS NULL AND due <= ? AND until <= ? "
    "AND prefix > ? ORDER BY prefix, number LIMIT ?"
)

OVER = ("completed", "failed", "expired", "cancelled")
"""Final states of a batch."""

_GOES_ON = f"status NOT IN ({', '.join(repr(status) for status in OVER)})"


@dataclass(frozen=True, slots=True)
class OpenLine:
    """Line to be sent: `attempts` counts its failures; `batch` and `number` say where its result belongs.

    `chain` identifies the lines without a result that begin like it; it is empty if there are no others.
    """

    batch: str
    endpoint: str
    number: int
    custom_id: str
    body: bytes
    attempts: int
    chain: str = ""


def _open_line(id_: str, endpoint: str, row: Row, *, others: bool) -> OpenLine:
    prefix, number, custom_id, body, attempts = row
    prefix_shown = prefix.hex() if others else ""
    return OpenLine(id_, endpoint, number, custom_id, body, attempts, prefix_shown)


class BatchStore:
    """Batches and their lines. Each `now` is Unix time in seconds."""

    def __init__(self, database: Database) -> None:
        """Create missing tables. An unshared database frees all leases, which a process that died may have left."""
        self._database = database
        self._owner = secrets.token_hex(8)
        migrate(database, (files.SCHEMA + _TABLES, _LEASES, files.PIECES))
        self.files = FileTable(database)
        if not database.shared:
            database.change("UPDATE line SET due = 0, until = 0 WHERE result IS NULL")
            database.change("UPDATE batch SET until = 0")

    def close(self) -> None:
        """Free this provider's leases, and close the database."""
        statement = "UPDATE line SET until = 0 WHERE owner = ? AND result IS NULL AND until > 0"
        # If the database does not answer, the leases expire by themselves.
        with suppress(DatabaseError):
            self._database.change(statement, (self._owner,))
            self._database.change("UPDATE batch SET until = 0 WHERE owner = ?", (self._owner,))
        self._database.close()

    # For callers: what they see and change.

    def add_batch(self, id_: str, now: int, expires: int, fields: Mapping[str, Any]) -> None:
        """Add a batch that is to be validated."""
        row = (id_, now, "validating", expires, orjson.dumps(fields).decode())
        statement = (
            "INSERT INTO batch (id, created_at, status, expires_at, said) VALUES (?, ?, ?, ?, ?)"
        )
        self._database.change(statement, row)

    def batch(self, id_: str) -> dict[str, Any] | None:
        """Return a batch in OpenAI's shape, `None` if there is none with this id."""
        statement = "SELECT id, created_at, status, expires_at, said FROM batch WHERE id = ?"
        rows = self._database.rows(statement, (id_,))
        return self._shown(rows[0]) if rows else None

    def batches(self) -> list[str]:
        """Return the ids of all batches, the newest first."""
        rows = self._database.rows("SELECT id FROM batch ORDER BY created_at DESC, rowid DESC")
        return [row[0] for row in rows]

    def cancel(self, id_: str, now: int) -> bool:
        """Cancel a batch; return whether it was still being validated or in progress."""
        with self._database.transaction():
            return self._stand(id_, "cancelling", now, ("validating", "in_progress"))

    # For the provider that has leased a batch. Methods that change it raise `Superseded` if another provider has it now.

    def unfinished(self, now: float) -> list[tuple[str, str, int]]:
        """Lease unfinished batches; return id, status and expiry time of all that this provider has, the oldest first."""
        self._database.change(
            f"UPDATE batch SET owner = ?, until = ? WHERE {_GOES_ON} AND (until <= ? OR owner = ? AND until <= ?)",  # noqa: S608
            (self._owner, now + LEASE, now, self._owner, now + LEASE * 2 / 3),
        )
        statement = f"SELECT id, status, expires_at FROM batch WHERE {_GOES_ON} AND owner = ? ORDER BY rowid"  # noqa: S608
        return [
            (id_, status, expires)
            for id_, status, expires in self._database.rows(statement, (self._owner,))
        ]

    def hold(self, id_: str, now: float) -> None:
        """Renew the lease of a batch; raise `Superseded`."""
        statement = "UPDATE batch SET until = ? WHERE id = ? AND owner = ?"
        if not self._database.change(statement, (now + LEASE, id_, self._owner)):
            raise Superseded(id_)

    def stand(self, id_: str, status: str, now: int, *, was: str, **more: Any) -> bool:
        """Set a batch's status, its time and `more` fields if the status still is `was`; return whether it was."""
        with self._database.transaction():
            self.hold(id_, now)
            return self._stand(id_, status, now, (was,), **more)

    def reset(self, id_: str, now: float) -> None:
        """Delete the lines of a batch whose validation was not completed."""
        with self._database.transaction():
            self.hold(id_, now)
            self._database.change("DELETE FROM line WHERE batch = ?", (id_,))

    def fill(
        self, id_: str, now: float, rows: Iterable[BatchLine | tuple[int, str | None, bytes]]
    ) -> list[BatchLine]:
        """Add lines, and error rows for invalid ones; return the lines whose `custom_id` is taken."""
        lines: dict[int, BatchLine] = {}
        values: list[Any] = []
        for row in rows:
            if isinstance(row, BatchLine):
                lines[row.number] = row
                values += (id_, row.number, row.custom_id, row.prefix, row.body, None, None)
            else:
                values += (id_, row[0], None, b"", b"", 0, row[2])
        placeholders = ", ".join(["(?, ?, ?, ?, ?, ?, ?)"] * (len(values) // 7))
        statement = f"INSERT INTO line (batch, number, custom_id, prefix, body, ok, result) VALUES {placeholders}"  # noqa: S608
        with self._database.transaction():
            self.hold(id_, now)
            added = self._database.rows(
                f"{statement} ON CONFLICT DO NOTHING RETURNING number", values
            )
        for (number,) in added:
            lines.pop(number, None)
        return [*lines.values()]

    def is_answered(self, id_: str) -> bool:
        """Return whether all lines of a batch have a result."""
        statement = "SELECT 1 FROM line WHERE batch = ? AND result IS NULL LIMIT 1"
        return not self._database.rows(statement, (id_,))

    def open_lines(self, id_: str) -> list[tuple[int, str]]:
        """Return number and `custom_id` of the lines of a batch without a result."""
        statement = (
            "SELECT number, custom_id FROM line WHERE batch = ? AND result IS NULL ORDER BY number"
        )
        return [(number, custom_id) for number, custom_id in self._database.rows(statement, (id_,))]

    def results(self, id_: str, *, ok: bool) -> Iterator[bytes]:
        """Yield the results of a batch in the order of its lines."""
        last = 0
        statement = "SELECT number, result FROM line WHERE batch = ? AND ok = ? AND number > ? ORDER BY number LIMIT 500"
        while rows := self._database.rows(statement, (id_, int(ok), last)):
            self.hold(id_, self._database.now())
            yield from (row[1] for row in rows)
            last = rows[-1][0]

    def finish(self, id_: str, status: str, now: int, results: Mapping[str, Path]) -> None:
        """End a batch, whose files of results are given by field, and delete its lines."""
        with self._database.transaction():
            self.hold(id_, now)
            more: dict[str, Any] = {"request_counts": self._counts(id_)}
            for field, path in results.items():
                self.files.add(path.name, now, f"{path.name}.jsonl", "batch_output", path)
                more[field] = path.name
            self._stand(id_, status, now, (), **more)
            self._database.change("DELETE FROM line WHERE batch = ?", (id_,))

    # Lines, which every provider sends.

    def lease(self, now: float, limit: int) -> list[OpenLine]:
        """Lease lines to send now, at most `limit`, which no other provider gets.

        Lines with a common prefix go one after another, so that each finds the prefix in a cache. Several go at a time only if
        there is nothing else to send, and then evenly over the prefixes.
        """
        lines: list[OpenLine] = []
        with self._database.transaction(durable=False):
            for (id_,) in self._database.rows(
                "SELECT id FROM batch WHERE status = 'in_progress' ORDER BY rowid"
            ):
                endpoint = self._said(id_)["endpoint"]
                for take in (self._apart, self._any):
                    for row, others in take(id_, now, limit - len(lines)):
                        self._lease(id_, row[1], now)
                        lines.append(_open_line(id_, endpoint, row, others=others))
        return lines

    def renew(self, keys: Iterable[tuple[str, int]], now: float) -> None:
        """Renew the leases of lines in flight, given by batch and number."""
        statement = "UPDATE line SET until = ? WHERE batch = ? AND number = ? AND owner = ? AND result IS NULL"
        with self._database.transaction(durable=False):
            for id_, number in keys:
                self._database.change(statement, (now + LEASE, id_, number, self._owner))

    def commit(self, line: OpenLine, result: bytes, *, ok: bool) -> bool:
        """Store the one result of a line; return whether the line was still open."""
        written = (
            "UPDATE line SET ok = ?, result = ? WHERE batch = ? AND number = ? AND result IS NULL"
        )
        return self._database.change(written, (int(ok), result, line.batch, line.number)) > 0

    def put_off(self, line: OpenLine, due: float, *, counts: bool) -> None:
        """Free a line to be sent again, not before `due`; `counts` adds a failed attempt."""
        statement = (
            "UPDATE line SET due = ?, until = 0, attempts = attempts + ? "
            "WHERE batch = ? AND number = ? AND owner = ? AND result IS NULL"
        )
        self._database.change(statement, (due, int(counts), line.batch, line.number, self._owner))

    def _apart(self, id_: str, now: float, limit: int) -> list[tuple[Row, bool]]:
        """Return one line for each prefix without a line in flight, and whether there are more lines with it."""
        busy = self._busy(id_, now)
        pages = islice(self._by_beginning(id_, now, 2), limit + len(busy))
        return [(rows[0], len(rows) > 1) for rows in pages if rows[0][0] not in busy][:limit]

    def _any(self, id_: str, now: float, limit: int) -> list[tuple[Row, bool]]:
        """Return any lines that are not in flight, those whose prefix has the fewest in flight first."""
        if limit <= 0:
            return []
        busy = self._busy(id_, now)
        candidates: list[tuple[int, Row]] = []
        for rows in islice(self._by_beginning(id_, now, limit), limit + len(busy)):
            candidates += enumerate(rows, busy[rows[0][0]])
        return [(row, count > 0) for count, row in sorted(candidates, key=itemgetter(0))[:limit]]

    def _busy(self, id_: str, now: float) -> Counter[bytes]:
        """Return the number of lines in flight by prefix."""
        statement = (
            "SELECT prefix, count(*) FROM line "
            "WHERE batch = ? AND result IS NULL AND until > 0 AND until > ? GROUP BY prefix"
        )
        return Counter(dict(self._database.rows(statement, (id_, now))))

    def _by_beginning(self, id_: str, now: float, limit: int) -> Iterator[list[Row]]:
        """Yield the lines to send, prefix by prefix, at most `limit` of each, without reading the rest of its lines."""
        last = b""
        statement = f"{_OPEN} {self._database.words['unlocked']}"
        while rows := self._database.rows(statement, (id_, now, now, last, limit)):
            last = rows[0][0]
            yield [row for row in rows if row[0] == last]

    def _lease(self, id_: str, number: int, now: float) -> None:
        leased = "UPDATE line SET owner = ?, until = ? WHERE batch = ? AND number = ?"
        self._database.change(leased, (self._owner, now + LEASE, id_, number))

    def _said(self, id_: str) -> dict[str, Any]:
        fields: dict[str, Any] = orjson.loads(
            self._database.rows("SELECT said FROM batch WHERE id = ?", (id_,))[0][0]
        )
        return fields

    def _stand(self, id_: str, status: str, now: int, was: tuple[str, ...], **more: Any) -> bool:
        statement = f"SELECT status, said FROM batch WHERE id = ? {self._database.words['locked']}"  # noqa: S608
        ((before, stored),) = self._database.rows(statement, (id_,))
        if was and before not in was:
            return False
        updated = orjson.dumps({**orjson.loads(stored), f"{status}_at": now, **more}).decode()
        self._database.change(
            "UPDATE batch SET status = ?, said = ? WHERE id = ?", (status, updated, id_)
        )
        return True

    def _counts(self, id_: str) -> dict[str, int]:
        statement = "SELECT count(*), count(*) FILTER (WHERE ok = 1), count(*) FILTER (WHERE ok = 0) FROM line WHERE batch = ?"
        total, completed, failed = self._database.rows(statement, (id_,))[0]
        return {"total": total, "completed": completed, "failed": failed}

    def _shown(self, row: Row) -> dict[str, Any]:
        id_, created, status, expires, stored = row
        batch = {
            "id": id_,
            "object": "batch",
            "created_at": created,
            "status": status,
            "expires_at": expires,
        }
        return {**batch, "request_counts": self._counts(id_), **orjson.loads(stored)}
