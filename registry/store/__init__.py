"""Store for data that must survive a restart: small named values in spaces.

`memory`, `sqlite`, `redis` and `postgres` keep them; one contract suite runs over all four.

The setting chooses the store: the word before the first colon names a module of this package. A new store is one new file
here with `open_url`; it is imported only when the setting names it.

Every store has the same limits of a key, a value and a space. Writing more is refused. Values beyond the limits that are found
in a store were not written by this program and are skipped.
"""

import importlib
import pkgutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Protocol, cast, runtime_checkable

import registry.store
from registry.errors import LimitReached
from registry.records import PeerId

# Redis has three URL schemes: plain, over TLS, and through a Unix socket. libpq has two for the same thing.
_ALIASES = {"rediss": "redis", "unix": "redis", "postgresql": "postgres"}


def names() -> frozenset[str]:
    """Return the names of the stores that exist: the modules of this package."""
    return frozenset(module.name for module in pkgutil.iter_modules(registry.store.__path__))


def open_store(url: str, *, data_dir: Path, node: PeerId, timeout: float = 1.0) -> "Store":
    """Return the store that `url` means, without touching disk or network yet.

    `url` is `memory`, `sqlite` (in `data_dir`), `sqlite:PATH`, `redis://…`, `rediss://…`,
    `unix://SOCKET?db=N`, `postgresql://…` or `postgres://…`. `timeout` is seconds for each round
    trip. Raise `ValueError` with a sentence that never repeats a password.
    """
    scheme = url.partition(":")[0]
    name = _ALIASES.get(scheme, scheme)
    if name not in names():
        raise ValueError(
            f"there is no store {scheme!r}: use memory, sqlite, sqlite:PATH, redis://HOST:PORT/N, "
            "rediss://HOST:PORT/N, unix://SOCKET or postgresql://HOST:PORT/DATABASE"
        )
    try:
        module = importlib.import_module(f"registry.store.{name}")
    except ImportError as missing:
        # The error has no name if psycopg is installed but none of its implementations is.
        if missing.name not in {None, "psycopg"}:
            raise
        raise ValueError(
            'PostgreSQL as a store needs an extra: make extras, or pip install "modelvine[postgres]"'
        ) from missing
    opened = module.open_url(url, data_dir=data_dir, node=node, timeout=timeout)
    return cast("Store", opened)


MAX_KEY_BYTES = 512
"""Most bytes of a key in UTF-8; a peer id has 52, a project with its model and cid a few hundred."""

MAX_VALUE_BYTES = 512 * 1024
"""Most bytes of one value: twice the largest frame of the mesh."""

MAX_VALUES = 65_536
"""Most values of a space that can be read: six times the nodes that a registry remembers by default."""


def check_limits(changes: "Iterable[Change]") -> None:
    """Raise `LimitReached` unless every key and value is within its limit."""
    for change in changes:
        if not 0 < len(change.key.encode()) <= MAX_KEY_BYTES:
            raise LimitReached(f"a key in {change.space} has 1 to {MAX_KEY_BYTES} bytes")
        if isinstance(change, Put) and len(change.value) > MAX_VALUE_BYTES:
            raise LimitReached(
                f"{len(change.value)} bytes for {change.key!r} in {change.space}, "
                f"where a value has at most {MAX_VALUE_BYTES}"
            )


def within_limits(entries: Mapping[bytes, object]) -> dict[str, bytes]:
    """Return the entries of a store's content that are within the limits, and so may be this program's."""
    checked: dict[str, bytes] = {}
    for key, value in entries.items():
        if not 0 < len(key) <= MAX_KEY_BYTES:
            continue
        if not isinstance(value, bytes) or len(value) > MAX_VALUE_BYTES:
            continue
        try:
            checked[key.decode()] = value
        except UnicodeDecodeError:
            continue
    return checked


class Space(StrEnum):
    """The subject of a value."""

    RECORDS = "records"
    """Frames of signed records by peer id."""

    WORKERS = "workers"
    """This machine's workers: private, never gossiped."""

    PEERS = "peers"
    """Addresses that this node is configured to keep connected."""

    SELF = "self"
    """This node's own counters, the epoch first of all."""

    KEYS = "keys"
    """Users' API keys, hashed, by name."""

    REVOKED = "revoked"
    """Grants that other nodes have revoked, by id, and when each would have expired."""

    USAGE = "usage"
    """Usage of API keys, by day and node."""

    RECEIPTS = "receipts"
    """Receipts of what a node asked of others and answered them, by peer and page."""

    AUDIT = "audit"
    """Who changed what, by node and number."""

    MARKS = "marks"
    """Values that change whenever another space does, and are cheap to read."""


OF_THE_SITE = frozenset({Space.RECORDS, Space.KEYS, Space.USAGE, Space.AUDIT, Space.MARKS})
"""Spaces that all nodes with one store share; each node has its own of the others."""


@dataclass(frozen=True, slots=True)
class Put:
    """Write one value."""

    space: Space
    key: str
    value: bytes


@dataclass(frozen=True, slots=True)
class Delete:
    """Remove one value; harmless when there is none."""

    space: Space
    key: str


Change = Put | Delete


@dataclass(frozen=True, slots=True)
class Count:
    """An amount to be added to a counter of the site, which is forgotten after `ttl` seconds without a change.

    If it is `due`, the counter is a point in time, never before now, and the amount is seconds; it is kept until then at least.
    """

    name: str
    amount: float
    ttl: float
    due: bool = False


@runtime_checkable
class Counters(Protocol):
    """Counters that the nodes of a site share."""

    async def count(self, counts: "Sequence[Count]") -> "Sequence[float]":
        """Add to counters, in one round trip, and return the value of each: its sum, or its seconds ahead of now.

        Raise `StoreUnavailable`; then the amounts may have been added.
        """


class Store(Protocol):
    """A small durable map. Every call is bounded in time and raises `StoreUnavailable` when that bound is hit."""

    @property
    def shared(self) -> bool:
        """Whether other nodes may write to the spaces of the site."""

    async def read(self, space: Space) -> Mapping[str, bytes]:
        """Return everything in one space."""

    async def write(self, *changes: Change) -> None:
        """Apply all changes or none; durable when it returns."""

    async def close(self) -> None:
        """Close files and connections; harmless when called twice."""
