"""Store of batches: one SQLite file. A result and the end of its line are one transaction, so each line has one result.

Plain calls that block; whoever has an event loop runs them in one thread.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from node.provide import files
from node.provide.batch.lines import Line
from node.provide.database import Transaction, connect
from node.provide.files import FileTable

SCHEMA = f"""{files.SCHEMA}
CREATE TABLE IF NOT EXISTS batch (
  id TEXT PRIMARY KEY, created_at INTEGER NOT NULL, status TEXT NOT NULL, expires_at INTEGER NOT NULL, said TEXT NOT NULL
) STRICT;
CREATE TABLE IF NOT EXISTS line (
  batch TEXT NOT NULL, number INTEGER NOT NULL, custom_id TEXT, prefix BLOB NOT NULL, body BLOB NOT NULL,
  attempts INTEGER NOT NULL DEFAULT 0, due REAL NOT NULL DEFAULT 0, ok INTEGER, result BLOB,
  PRIMARY KEY (batch, number)
) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX IF NOT EXISTS line_id ON line (batch, custom_id) WHERE custom_id IS NOT NULL;
CREATE INDEX IF NOT EXISTS line_open ON line (batch, prefix, number) WHERE result IS NULL;
"""

_OPEN = "SELECT prefix, number, custom_id, body, attempts FROM line WHERE batch = ? AND result IS NULL AND due <= ?"

OVER = ("completed", "failed", "expired", "cancelled")
"""What a batch is at its end."""


@dataclass(frozen=True, slots=True)
class OpenLine:
    """A line that is to be asked: how often it was, and where its result belongs."""

    batch: str
    endpoint: str
    number: int
    custom_id: str
    body: bytes
    attempts: int


class BatchStore:
    """Batches and their lines. `now` is Unix time in seconds wherever it is asked for."""

    def __init__(self, path: Path) -> None:
        """Open the file, or make it; every line that was leased when the last process died is open again."""
        self._database = connect(path, SCHEMA)
        self.files = FileTable(self._database)
        self._database.execute("UPDATE line SET due = 0 WHERE result IS NULL")
        self._leased: dict[tuple[str, int], bytes] = {}

    def close(self) -> None:
        """Close the file."""
        self._database.close()

    def add_batch(self, id_: str, now: int, expires: int, said: Mapping[str, Any]) -> None:
        """Take in a batch that is to be validated."""
        row = (id_, now, "validating", expires, orjson.dumps(said).decode())
        self._database.execute("INSERT INTO batch VALUES (?, ?, ?, ?, ?)", row)

    def batch(self, id_: str) -> dict[str, Any] | None:
        """Return a batch as OpenAI shows it."""
        row = self._database.execute("SELECT * FROM batch WHERE id = ?", (id_,)).fetchone()
        return None if row is None else self._shown(row)

    def batches(self) -> list[str]:
        """Return the ids of all batches, the newest first."""
        rows = self._database.execute("SELECT id FROM batch ORDER BY created_at DESC, rowid DESC")
        return [row[0] for row in rows]

    def unfinished(self) -> list[tuple[str, str, int]]:
        """Return id, status and time to expire of what is not over, the oldest first."""
        marks = ",".join("?" * len(OVER))
        asked = (
            f"SELECT id, status, expires_at FROM batch WHERE status NOT IN ({marks}) ORDER BY rowid"  # noqa: S608
        )
        return self._database.execute(asked, OVER).fetchall()

    def stand(self, id_: str, status: str, now: int, **more: Any) -> None:
        """Give a batch another status, note when, and what else there is to say of it."""
        with Transaction(self._database):
            self._stand(id_, status, now, more)

    def reset(self, id_: str) -> None:
        """Forget the lines that were read of a batch whose validation did not come to its end."""
        self._database.execute("DELETE FROM line WHERE batch = ?", (id_,))

    def fill(self, id_: str, rows: Iterable[Line | tuple[int, str | None, bytes]]) -> list[Line]:
        """Add lines, and error rows for what is none; return the lines whose `custom_id` is taken."""
        taken: list[Line] = []
        with Transaction(self._database):
            for row in rows:
                if not isinstance(row, Line):
                    number, _, result = row
                    self._put((id_, number, None, b"", b"", 0, result))
                elif not self._put(
                    (id_, row.number, row.custom_id, row.prefix, row.body, None, None)
                ):
                    taken.append(row)
        return taken

    def _put(self, row: tuple[Any, ...]) -> bool:
        added = "INSERT OR IGNORE INTO line (batch, number, custom_id, prefix, body, ok, result) VALUES (?, ?, ?, ?, ?, ?, ?)"
        return self._database.execute(added, row).rowcount > 0

    def lease(self, now: float, most: int) -> list[OpenLine]:
        """Return lines to ask now, which nobody else gets.

        Of lines with a common beginning one goes after the other, so that each finds in a cache what the one before has read;
        several go at one time only where there is nothing else to ask.
        """
        found: list[OpenLine] = []
        for id_, status, _ in self.unfinished():
            if status != "in_progress" or len(found) >= most:
                continue
            endpoint = self._said(id_)["endpoint"]
            for take in (self._apart, self._any):
                for prefix, number, custom_id, body, attempts in take(id_, now, most - len(found)):
                    self._leased[id_, number] = prefix
                    found.append(OpenLine(id_, endpoint, number, custom_id, body, attempts))
        return found

    def _apart(self, id_: str, now: float, most: int) -> list[tuple[Any, ...]]:
        """Return a line each of beginnings of which none is under way."""
        busy = {prefix for (batch, _), prefix in self._leased.items() if batch == id_}
        found: list[tuple[Any, ...]] = []
        last = b""
        for _ in range(2 * (most + len(busy))):
            if len(found) >= most:
                break
            # From one beginning to the next, whatever the number of lines with each.
            seen = "SELECT prefix FROM line WHERE batch = ? AND result IS NULL AND prefix > ? ORDER BY prefix LIMIT 1"
            row = self._database.execute(seen, (id_, last)).fetchone()
            if row is None:
                break
            last = row[0]
            if last not in busy:
                asked = f"{_OPEN} AND prefix = ? ORDER BY number LIMIT 1"
                found += self._database.execute(asked, (id_, now, last)).fetchall()
        return found

    def _any(self, id_: str, now: float, most: int) -> list[tuple[Any, ...]]:
        """Return any lines that are not under way."""
        if most <= 0:
            return []
        asked = f"{_OPEN} ORDER BY prefix, number LIMIT ?"
        rows = self._database.execute(asked, (id_, now, most + len(self._leased))).fetchall()
        return [row for row in rows if (id_, row[1]) not in self._leased][:most]

    def commit(self, line: OpenLine, result: bytes, *, ok: bool) -> bool:
        """Write the one result of a line; say whether it was still open."""
        # Given back first: where the write fails the line is asked again.
        self._leased.pop((line.batch, line.number), None)
        written = (
            "UPDATE line SET ok = ?, result = ? WHERE batch = ? AND number = ? AND result IS NULL"
        )
        row = (int(ok), result, line.batch, line.number)
        return self._database.execute(written, row).rowcount > 0

    def put_off(self, line: OpenLine, due: float, *, counts: bool) -> None:
        """Have a line asked again, not before `due`; `counts` says that it failed."""
        self._leased.pop((line.batch, line.number), None)
        self._database.execute(
            "UPDATE line SET due = ?, attempts = attempts + ? WHERE batch = ? AND number = ?",
            (due, int(counts), line.batch, line.number),
        )

    def is_answered(self, id_: str) -> bool:
        """Say whether no line of a batch is open."""
        asked = "SELECT 1 FROM line WHERE batch = ? AND result IS NULL LIMIT 1"
        return self._database.execute(asked, (id_,)).fetchone() is None

    def open_lines(self, id_: str) -> list[tuple[int, str]]:
        """Return number and `custom_id` of the lines of a batch without a result."""
        asked = (
            "SELECT number, custom_id FROM line WHERE batch = ? AND result IS NULL ORDER BY number"
        )
        return self._database.execute(asked, (id_,)).fetchall()

    def results(self, id_: str, *, ok: bool) -> Iterator[bytes]:
        """Go through the results of a batch in the order of its lines."""
        last = 0
        asked = "SELECT number, result FROM line WHERE batch = ? AND ok = ? AND number > ? ORDER BY number LIMIT 500"
        while rows := self._database.execute(asked, (id_, int(ok), last)).fetchall():
            yield from (row[1] for row in rows)
            last = rows[-1][0]

    def finish(
        self, id_: str, status: str, now: int, files: Iterable[tuple[str, int, str]]
    ) -> None:
        """End a batch: its files of results are there, so its lines need not be. `files` are field, bytes and id of each."""
        with Transaction(self._database):
            counts = self._counts(id_)
            more: dict[str, Any] = {"request_counts": counts}
            for field, size, file in files:
                self.files.add(file, now, size, f"{file}.jsonl", "batch_output")
                more[field] = file
            self._stand(id_, status, now, more)
            self.reset(id_)

    def _said(self, id_: str) -> dict[str, Any]:
        row = self._database.execute("SELECT said FROM batch WHERE id = ?", (id_,)).fetchone()
        said: dict[str, Any] = orjson.loads(row[0])
        return said

    def _stand(self, id_: str, status: str, now: int, more: Mapping[str, Any]) -> None:
        said = {**self._said(id_), f"{status}_at": now, **more}
        row = (status, orjson.dumps(said).decode(), id_)
        self._database.execute("UPDATE batch SET status = ?, said = ? WHERE id = ?", row)

    def _counts(self, id_: str) -> dict[str, int]:
        asked = "SELECT count(*), coalesce(sum(ok = 1), 0), coalesce(sum(ok = 0), 0) FROM line WHERE batch = ?"
        total, completed, failed = self._database.execute(asked, (id_,)).fetchone()
        return {"total": total, "completed": completed, "failed": failed}

    def _shown(self, row: tuple[Any, ...]) -> dict[str, Any]:
        id_, created, status, expires, said = row
        shown = {
            "id": id_,
            "object": "batch",
            "created_at": created,
            "status": status,
            "expires_at": expires,
        }
        return {**shown, "request_counts": self._counts(id_), **orjson.loads(said)}
