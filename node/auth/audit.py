"""Audit log: who changed what at a node, each entry chained to the one before by its hash. Nothing of what was said to models.

Entries are in the site's store, those of each node under its own id; every node shows all. Whoever changes one, or leaves one
out, breaks its node's chain. Who can write to the store may write a whole chain anew, or leave out the last entries: note the
last hash elsewhere where that matters.
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
"""Entries that are kept of one node; the oldest go first."""

MAX_PENDING = 1_000
"""Entries that wait for a store that does not work; of more the newest are lost, which the log says."""

MAX_TARGET = 200
"""Characters of what was changed that are kept."""

NOTHING = "0" * 64
"""What the first entry of a node is chained to."""


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """One change. `at` is Unix time, `number` counts the entries of `node`, `before` is the hash of the entry before."""

    node: str
    number: int
    at: float
    who: str
    action: str
    target: str
    before: str
    hash: str = ""


def chained(entry: AuditEntry) -> str:
    """Return the hash that an entry has: SHA-256 of all its other fields, as JSON with sorted names."""
    said = {name: value for name, value in asdict(entry).items() if name != "hash"}
    text = json.dumps(said, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def faults(entries: Iterable[AuditEntry]) -> Sequence[str]:
    """Say where the chains of nodes are broken: an entry that was changed, one that is missing; nothing where all is well."""
    found: list[str] = []
    last: dict[str, AuditEntry] = {}
    for entry in sorted(entries, key=lambda one: (one.node, one.number)):
        place = f"entry {entry.number} of {entry.node}"
        if entry.hash != chained(entry):
            found.append(f"{place} was changed")
        before = last.get(entry.node)
        if before is not None and entry.number != before.number + 1:
            found.append(f"{entry.number - before.number - 1} before {place} are missing")
        elif before is not None and entry.before != before.hash:
            found.append(f"{place} does not follow the previous one")
        last[entry.node] = entry
    return found


_ENTRY = TypeAdapter(AuditEntry)
_SHOWN = TypeAdapter(dict[str, str])
_SETTINGS = "settings"


class AuditLog:
    """The entries of a site: written for this node, read for all. Lives on one event loop."""

    def __init__(self, store: Store, node: PeerId, wall: Clock) -> None:
        """`wall` returns Unix time."""
        self._store = store
        self._node = node
        self._wall = wall
        self._number, self._hash = 0, NOTHING
        self._kept: list[str] = []
        self._pending: list[Put] = []
        self._turn = asyncio.Lock()
        self._settings: Put | None = None

    def changes(self) -> Iterator[Change]:
        """Yield what a store that was emptied has to be told: the entries are gone with it."""
        if self._settings is not None:
            yield self._settings

    async def restore(self) -> None:
        """Find the end of this node's chain; raise `StoreUnavailable`."""
        own = [one for one in await self.entries() if one.node == self._node]
        self._kept = [_name(one.node, one.number) for one in own]
        if own:
            self._number, self._hash = own[-1].number, own[-1].hash

    async def add(self, who: str, action: str, target: str = "") -> None:
        """Write who did what; where the store does not work, with what comes next."""
        async with self._turn:
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
            whole = {**asdict(entry), "hash": self._hash}
            name = _name(entry.node, entry.number)
            self._pending.append(Put(Space.AUDIT, name, json.dumps(whole).encode()))
            self._kept.append(name)
            await self._write()

    async def note_settings(self, shown: Mapping[str, str], who: str) -> None:
        """Write which settings are others than at the last start; raise `StoreUnavailable`. `shown` holds no secrets."""
        held = (await self._store.read(Space.SELF)).get(_SETTINGS, b"")
        try:
            before = _SHOWN.validate_json(held) if held else shown
        except ValidationError:
            before = {}
        for name in sorted(shown.keys() | before.keys()):
            was, now = before.get(name, ""), shown.get(name, "")
            if was != now:
                await self.add(who, "set", f"{name} {was or 'nothing'} -> {now or 'nothing'}")
        self._settings = Put(Space.SELF, _SETTINGS, json.dumps(dict(shown)).encode())
        await self._store.write(self._settings)

    async def entries(self) -> Sequence[AuditEntry]:
        """Return the entries of all nodes of the site, those of each in order; raise `StoreUnavailable`."""
        held = await self._store.read(Space.AUDIT)
        found = (_thaw(name, value) for name, value in held.items())
        return sorted((one for one in found if one), key=lambda one: (one.node, one.number))

    async def _write(self) -> None:
        old = self._kept[:-MAX_ENTRIES]
        gone: list[Change] = [Delete(Space.AUDIT, name) for name in old]
        try:
            await self._store.write(*self._pending, *gone)
        except StoreUnavailable as error:
            log.error("%d entries of the audit log wait: %s", len(self._pending), error)  # noqa: TRY400 (a sentence)
            return
        self._pending.clear()
        del self._kept[: len(old)]


def _name(node: str, number: int) -> str:
    return f"{node}:{number:012}"


def _thaw(name: str, value: bytes) -> AuditEntry | None:
    try:
        found = _ENTRY.validate_json(value)
    except ValidationError:
        found = None
    if found is None or _name(found.node, found.number) != name:
        log.warning("an entry of the audit log cannot be read")
        return None
    return found


def read(rows: Iterable[Mapping[str, object]]) -> Sequence[AuditEntry]:
    """Read entries as the interface shows them; raise `ValueError` for what is none."""
    return [_ENTRY.validate_python(row) for row in rows]
