"""Audit log: the changes made to a node and their authors, as a hash chain. It holds nothing of what models were asked.

Entries are in the site's store, those of each node under its own id; every node shows all. To change an entry or to leave one
out breaks its node's chain. A person with write access to the store could rewrite a whole chain, or leave out the last entries:
where that matters, note the last hash elsewhere.
"""

import asyncio
import hashlib
import json
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass

from pydantic import TypeAdapter, ValidationError

from registry.clock import Clock
from registry.errors import StoreUnavailable
from registry.records import PeerId
from registry.store import Change, Delete, Put, Space, Store

log = logging.getLogger("modelvine.audit")

MAX_ENTRIES = 1_000
"""Entries that are kept of one node; beyond that, the oldest are deleted."""

MAX_PENDING = 1_000
"""Entries that wait for a store that does not work; beyond that, new entries are lost, and an error is logged."""

MAX_TARGET = 200
"""Characters that are kept of an entry's target."""

NOTHING = "0" * 64
"""Predecessor hash of a node's first entry."""


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """One change. `at` is Unix time, `number` counts the entries of `node`, `before` is the previous entry's hash."""

    node: str
    number: int
    at: float
    who: str
    action: str
    target: str
    before: str
    hash: str = ""


def chained(entry: AuditEntry) -> str:
    """Return the hash of an entry: SHA-256 of all its other fields, as JSON with sorted names."""
    fields = {name: value for name, value in asdict(entry).items() if name != "hash"}
    text = json.dumps(fields, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def faults(entries: Iterable[AuditEntry]) -> Sequence[str]:
    """Return where the chains of nodes are broken: entries that were changed or are missing; empty if all are intact."""
    problems: list[str] = []
    last: dict[str, AuditEntry] = {}
    for entry in sorted(entries, key=lambda one: (one.node, one.number)):
        label = f"entry {entry.number} of {entry.node}"
        if entry.hash != chained(entry):
            problems.append(f"{label} was changed")
        before = last.get(entry.node)
        if before is not None and entry.number != before.number + 1:
            problems.append(f"{entry.number - before.number - 1} before {label} are missing")
        elif before is not None and entry.before != before.hash:
            problems.append(f"{label} does not follow the previous one")
        last[entry.node] = entry
    return problems


_ENTRY = TypeAdapter(AuditEntry)
_SHOWN = TypeAdapter(dict[str, str])
_SETTINGS = "settings"


class AuditLog:
    """Audit log of a site: writes this node's entries, reads those of all nodes. Lives on one event loop."""

    def __init__(self, store: Store, node: PeerId, wall: Clock) -> None:
        """`wall` returns Unix time."""
        self._store = store
        self._node = node
        self._wall = wall
        self._number, self._hash = 0, NOTHING
        self._names: list[str] = []
        self._pending: list[Put] = []
        self._lock = asyncio.Lock()
        self._settings: Put | None = None

    def changes(self) -> Iterator[Change]:
        """Yield the changes to repeat in a store that was emptied; the entries were lost with its content."""
        if self._settings is not None:
            yield self._settings

    async def restore(self) -> None:
        """Find the end of this node's chain; raise `StoreUnavailable`."""
        entries = [entry for entry in await self.entries() if entry.node == self._node]
        self._names = [_name(entry.node, entry.number) for entry in entries]
        if entries:
            self._number, self._hash = entries[-1].number, entries[-1].hash

    async def add(self, who: str, action: str, target: str = "") -> None:
        """Write an entry; where the store does not work, the entry is written together with the next one."""
        async with self._lock:
            entry = AuditEntry(
                self._node,
                self._number + 1,
                round(self._wall(), 3),
                who,
                action,
                target[:MAX_TARGET].encode(errors="replace").decode(),
                self._hash,
            )
            if len(self._pending) >= MAX_PENDING:
                log.error("the store does not work: %r of %s is not in the audit log", action, who)
                return
            self._number, self._hash = entry.number, chained(entry)
            row = {**asdict(entry), "hash": self._hash}
            name = _name(entry.node, entry.number)
            self._pending.append(Put(Space.AUDIT, name, json.dumps(row).encode()))
            self._names.append(name)
            await self._write()

    async def note_settings(self, settings: Mapping[str, str], who: str) -> None:
        """Write an entry for each setting that differs from the last start; raise `StoreUnavailable`.

        `settings` holds no secrets.
        """
        stored = (await self._store.read(Space.SELF)).get(_SETTINGS, b"")
        try:
            before = _SHOWN.validate_json(stored) if stored else settings
        except ValidationError:
            before = {}
        for name in sorted(settings.keys() | before.keys()):
            was, now = before.get(name, ""), settings.get(name, "")
            if was != now:
                await self.add(who, "set", f"{name} {was or 'nothing'} -> {now or 'nothing'}")
        self._settings = Put(Space.SELF, _SETTINGS, json.dumps(dict(settings)).encode())
        await self._store.write(self._settings)

    async def entries(self) -> Sequence[AuditEntry]:
        """Return the entries of all nodes of the site, by node and number; raise `StoreUnavailable`."""
        rows = await self._store.read(Space.AUDIT)
        parsed = (_entry_of(name, value) for name, value in rows.items())
        return sorted((one for one in parsed if one), key=lambda one: (one.node, one.number))

    async def _write(self) -> None:
        old = self._names[:-MAX_ENTRIES]
        deletes: list[Change] = [Delete(Space.AUDIT, name) for name in old]
        try:
            await self._store.write(*self._pending, *deletes)
        except StoreUnavailable as error:
            log.error("%d entries of the audit log wait: %s", len(self._pending), error)  # noqa: TRY400 (a sentence)
            return
        self._pending.clear()
        del self._names[: len(old)]


def _name(node: str, number: int) -> str:
    return f"{node}:{number:012}"


def _entry_of(name: str, value: bytes) -> AuditEntry | None:
    try:
        entry = _ENTRY.validate_json(value)
    except ValidationError:
        entry = None
    if entry is None or _name(entry.node, entry.number) != name:
        log.warning("an entry of the audit log cannot be read")
        return None
    return entry


def read(rows: Iterable[Mapping[str, object]]) -> Sequence[AuditEntry]:
    """Read entries in the form that the API shows them; raise `ValueError` for an invalid one."""
    return [_ENTRY.validate_python(row) for row in rows]
