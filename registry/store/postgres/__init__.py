"""Store in PostgreSQL, which the nodes of one site share: a table of values and one of counters, in a schema of our own.

A node serves on without its store. Values are opaque here, as in Redis: of two nodes that write one value the later write
stays. Every user who may read the database sees what nodes store about their workers.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from registry.errors import StoreUnavailable
from registry.records import PeerId
from registry.store import (
    MAX_KEY_BYTES,
    MAX_VALUE_BYTES,
    MAX_VALUES,
    OF_THE_SITE,
    Change,
    Count,
    Delete,
    Put,
    Space,
    Store,
    check_limits,
    within_limits,
)
from registry.store.postgres.client import PostgresClient, Row

PAGE_BYTES = 64 * 1024 * 1024
"""Bytes of values that are read at a time."""

PRUNE_EVERY = 600
"""Rounds of counting between two deletions of expired counters: about a minute where there are limits."""

_PRUNED_AT_ONCE = 1_000
_WRITE_LOCK = 0x6D6F64656C77

# The server checks lengths, so that a program that can write there cannot fill our memory; the first row always fits.
_PAGE = f"""
SELECT key, value FROM (
    SELECT key, value, sum(octet_length(value)) OVER (ORDER BY key) AS bytes FROM modelvine.entry
    WHERE owner = %s AND space = %s AND key > %b
        AND octet_length(key) <= {MAX_KEY_BYTES} AND octet_length(value) <= {MAX_VALUE_BYTES}
    ORDER BY key LIMIT {MAX_VALUES + 1}
) AS page WHERE bytes <= %s ORDER BY key
"""  # noqa: S608 (constants)

# All nodes put rows in the same order, and a node deletes shared rows under an exclusive lock: otherwise two could deadlock.
_WRITE = """
WITH turn AS MATERIALIZED (
    SELECT CASE WHEN %s THEN pg_advisory_xact_lock(%s) ELSE pg_advisory_xact_lock_shared(%s) END
), put AS (
    SELECT * FROM unnest(%b::text[], %b::text[], %b::bytea[], %b::bytea[]) AS put (owner, space, key, value)
), gone AS (
    SELECT * FROM unnest(%b::text[], %b::text[], %b::bytea[]) AS gone (owner, space, key)
), deleted AS (
    DELETE FROM modelvine.entry AS held USING gone
    WHERE held.owner = gone.owner AND held.space = gone.space AND held.key = gone.key
)
INSERT INTO modelvine.entry (owner, space, key, value)
SELECT owner, space, key, value FROM put WHERE (SELECT count(*) FROM turn) = 1
ON CONFLICT (owner, space, key) DO UPDATE SET value = excluded.value
"""

_NOW = "extract(epoch FROM statement_timestamp())::float8"
_OURS = f"held.expires > {_NOW} AND held.amount BETWEEN -1e15 AND 1e15"

# An amount out of range was not written by this program, and counts as nothing. A crash of the server may lose the last
# half second of counting, and no count waits for its disk.
_COUNT = f"""
WITH quickly AS MATERIALIZED (
    SELECT set_config('synchronous_commit', 'off', true)
), told AS (
    SELECT name, amount, ttl, due, {_NOW} AS now
    FROM quickly, unnest(%b::bytea[], %b::float8[], %b::float8[], %b::boolean[]) AS told (name, amount, ttl, due)
), added AS (
    INSERT INTO modelvine.counter AS held (name, amount, due, expires)
    SELECT name, CASE WHEN due THEN now + amount ELSE amount END, due,
        now + greatest(ttl, CASE WHEN due THEN amount END) FROM told ORDER BY name
    ON CONFLICT (name) DO UPDATE SET due = excluded.due, expires = greatest(excluded.expires, CASE
        WHEN excluded.due AND {_OURS} THEN greatest(held.amount, {_NOW}) + (excluded.amount - {_NOW})
    END), amount = CASE
        WHEN NOT ({_OURS}) THEN excluded.amount
        WHEN excluded.due THEN greatest(held.amount, {_NOW}) + (excluded.amount - {_NOW})
        ELSE held.amount + excluded.amount
    END
    RETURNING name, amount
)
SELECT name, amount, {_NOW} FROM added
UNION ALL SELECT name, amount, {_NOW} FROM modelvine.counter AS held WHERE name = ANY(%b::bytea[]) AND {_OURS}
"""  # noqa: S608 (constants)

_PRUNE = f"""
DELETE FROM modelvine.counter WHERE name IN (
    SELECT name FROM modelvine.counter WHERE expires <= {_NOW} LIMIT {_PRUNED_AT_ONCE} FOR UPDATE SKIP LOCKED
)
"""  # noqa: S608 (constants)


class PostgresStore:
    """Keeps values in a PostgreSQL database: some spaces for the whole site, others for `node` alone."""

    shared = True

    def __init__(self, url: str, *, node: PeerId, timeout: float = 1.0) -> None:
        self._node = node
        self._database = PostgresClient(url, timeout=timeout)
        self._rounds = 0

    def __repr__(self) -> str:
        return f"PostgresStore({self._database.place})"

    async def read(self, space: Space) -> Mapping[str, bytes]:
        """Return everything in one space; raise `StoreUnavailable`.

        A space of more than 64 MiB is read in several steps, between which other nodes may write.
        """
        entries: dict[bytes, object] = {}
        last, more = b"", True
        while more:
            parameters = self._owner(space), space.value, last, PAGE_BYTES
            rows = self._require_columns(await self._database.rows(_PAGE, parameters), bytes, bytes)
            entries |= {key: value for key, value in rows}  # noqa: C416 (rows have any width to mypy)
            if len(entries) > MAX_VALUES:
                raise StoreUnavailable(
                    f"PostgreSQL at {self._database.place} holds more than {MAX_VALUES} values in {space}"
                )
            # A page with room for one more value of any size is the last.
            more = sum(len(value) for _, value in rows) > PAGE_BYTES - MAX_VALUE_BYTES
            last = rows[-1][0] if rows else b""
        return within_limits(entries)

    async def write(self, *changes: Change) -> None:
        """Apply all changes or none; raise `StoreUnavailable`, or `LimitReached` for what is too long.

        As durable as the server is set up to be. When the answer is lost the write may have happened;
        writing again is harmless.
        """
        check_limits(changes)
        if not changes:
            return
        last = {(self._owner(c.space), c.space.value, c.key.encode()): c for c in changes}
        keys = sorted(last)
        puts = [(*key, c.value) for key in keys if isinstance(c := last[key], Put)]
        deletes = [key for key in keys if isinstance(last[key], Delete)]
        alone = any(space in OF_THE_SITE for _, space, _ in deletes)
        lock = alone, _WRITE_LOCK, _WRITE_LOCK
        await self._database.rows(_WRITE, [*lock, *_columns(puts, 4), *_columns(deletes, 3)])

    async def count(self, counts: Sequence[Count]) -> Sequence[float]:
        """Add to counters of the site, by the server's clock; raise `StoreUnavailable`.

        A name that occurs twice takes one more round trip.
        """
        stands = [0.0] * len(counts)
        for indexes in _without_duplicates(counts):
            # Before, not after: a caller that sees a failure counts again.
            if self._rounds % PRUNE_EVERY == 0:
                await self._database.rows(_PRUNE)
            self._rounds += 1
            amounts = await self._counted([counts[index] for index in indexes])
            for index in indexes:
                count = counts[index]
                amount, now = amounts.get(count.name.encode(), (0.0, 0.0))
                stands[index] = max(amount - now, 0.0) if count.due else amount
        return stands

    async def close(self) -> None:
        """Close the connection; harmless when called twice."""
        await self._database.close()

    def _owner(self, space: Space) -> str:
        return "" if space in OF_THE_SITE else self._node

    async def _counted(self, counts: Sequence[Count]) -> Mapping[bytes, tuple[float, float]]:
        """Return by name the amounts of counters, and the server's time; a counter without an addition is missing."""
        added = [
            (o.name.encode(), float(o.amount), float(o.ttl), o.due) for o in counts if o.amount
        ]
        looked = [count.name.encode() for count in counts if not count.amount]
        answer = await self._database.rows(_COUNT, (*_columns(added, 4), looked or None))
        rows = self._require_columns(answer, bytes, float, float)
        return {name: (amount, now) for name, amount, now in rows}

    def _require_columns(self, rows: Sequence[Row], *kinds: type) -> Sequence[Row]:
        """Return the rows if their columns are of these kinds; raise `StoreUnavailable` otherwise."""
        if not all(tuple(map(type, row)) == kinds for row in rows):
            raise StoreUnavailable(
                f"PostgreSQL at {self._database.place}: an answer of the wrong kind"
            )
        return rows


def _columns(rows: Sequence[Row], width: int) -> Sequence[object]:
    """Return rows as columns. None stands for no rows: an empty array has no type."""
    return [list(column) for column in zip(*rows, strict=True)] or [None] * width


def _without_duplicates(counts: Sequence[Count]) -> Iterable[Sequence[int]]:
    """Return groups of places of counts, such that no name occurs twice in a group."""
    seen = Counter[str]()
    batches: list[list[int]] = []
    for index, count in enumerate(counts):
        number = seen[count.name]
        seen[count.name] += 1
        if number == len(batches):
            batches.append([])
        batches[number].append(index)
    return batches


def open_url(url: str, *, data_dir: Path, node: PeerId, timeout: float) -> Store:
    """Return a store for `postgresql://…` or `postgres://…`."""
    del data_dir  # Nothing is kept on this machine.
    return PostgresStore(url, node=node, timeout=timeout)
