"""Keys of a site: kept in its store, known to each of its nodes, looked up by hash.

A change is durable first, then holds here, then at the other nodes that share the store: they look for its mark twice a second.
While the store does not answer, the keys that are known go on to hold.
"""

import asyncio
import logging
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType

from pydantic import ValidationError

from node.auth.errors import KeyExists, NoSuchKey
from node.auth.keys import (
    HINT_CHARACTERS,
    MAX_KEY_CHARACTERS,
    MAX_KEYS,
    Allowance,
    ApiKey,
    Role,
    hash_of,
    new_secret,
)
from registry.clock import Clock
from registry.errors import LimitReached, StoreUnavailable
from registry.store import Put, Space, Store

log = logging.getLogger("modelvine.keys")

PERIOD = 0.5
"""Seconds between two looks at what other nodes have changed."""

KEPT_SECONDS = 30 * 86_400.0
"""How long a revoked key is remembered, so that its holder is told so."""

CONTROL_TOKEN = "control.token"  # noqa: S105 (a file's name)
"""Name of the node's own token among its keys: the first operator."""

_MARK = "keys"


class KeyTable:
    """Keys by hash, and by name. Read on the path of every request; replaced whole when anything changes."""

    __slots__ = ("_by_hash", "by_name")

    def __init__(self, keys: Iterable[ApiKey] = ()) -> None:
        self.by_name: Mapping[str, ApiKey] = MappingProxyType({key.name: key for key in keys})
        self._by_hash = {key.hash: key for key in self.by_name.values()}

    @property
    def keys(self) -> tuple[ApiKey, ...]:
        """All of them."""
        return tuple(self.by_name.values())

    def find(self, secret: str) -> ApiKey | None:
        """Return the key that is shown, ended or not."""
        if len(secret) > MAX_KEY_CHARACTERS:
            return None
        return self._by_hash.get(hash_of(secret))


class KeyRing:
    """The keys that this node knows, and how they are changed. Lives on one event loop."""

    def __init__(self, store: Store, wall: Clock, *, token: str = "") -> None:
        """`wall` returns Unix time; the holder of `token` is an operator."""
        self._store = store
        self._wall = wall
        self._token = token
        self._mark = b""
        self._reached = True
        self._changing = asyncio.Lock()
        self._listeners: list[Callable[[KeyTable], None]] = []
        self.table = self._tabled(())

    @property
    def keys(self) -> Sequence[ApiKey]:
        """All keys of users, by name."""
        found = self.table.by_name
        return [found[name] for name in sorted(found) if name != CONTROL_TOKEN]

    def find(self, secret: str) -> ApiKey | None:
        """Return the key that is shown, ended or not."""
        return self.table.find(secret)

    def on_change(self, listener: Callable[[KeyTable], None]) -> None:
        """Have `listener` told of the table whenever it changes."""
        self._listeners.append(listener)

    async def restore(self) -> None:
        """Load what the store holds; raise `StoreUnavailable`."""
        self._mark = (await self._store.read(Space.MARKS)).get(_MARK, b"")
        rows = await self._store.read(Space.KEYS)
        self._take(key for name, row in rows.items() if (key := _thaw(name, row)) is not None)

    async def follow(self) -> None:
        """Take in what other nodes change, until cancelled."""
        while True:
            await asyncio.sleep(PERIOD)
            if self._store.shared:
                await self.look()

    async def look(self) -> None:
        """Take in what other nodes have changed, if anything."""
        try:
            mark = (await self._store.read(Space.MARKS)).get(_MARK, b"")
            if mark != self._mark:
                async with self._changing:
                    await self.restore()
        except StoreUnavailable as error:
            if self._reached:
                log.warning("keys may be behind: %s; those that are known hold", error)
            self._reached = False
        else:
            if not self._reached:
                log.info("the store answers again; keys are as it has them")
            self._reached = True

    async def create(self, wanted: Mapping[str, Allowance]) -> Mapping[str, str]:
        """Make keys, all or none, and return them by name.

        Raise `KeyExists` for a name that has a key which opens something, `LimitReached`, or `StoreUnavailable`.
        """
        async with self._changing:
            now = self._wall()
            held = self.table.by_name
            for name in wanted:
                if name == CONTROL_TOKEN or (name in held and not held[name].ended(now)):
                    raise KeyExists(
                        f"there is a key {name!r} already: rotate or revoke it, or choose another name"
                    )
            kept = [key for key in self.keys if not key.revoked or now - key.revoked < KEPT_SECONDS]
            if len({key.name for key in kept} | set(wanted)) > MAX_KEYS:
                raise LimitReached(f"a site has at most {MAX_KEYS:,} keys; revoke some first")
            made = {name: new_secret() for name in wanted}
            await self._put(_made(name, made[name], wanted[name], now) for name in wanted)
            return made

    async def rotate(self, name: str) -> str:
        """Replace a key by a new one that allows the same; the old one opens nothing any more. Raise `NoSuchKey`."""
        async with self._changing:
            held = self._held(name)
            secret = new_secret()
            await self._put([_made(name, secret, held, self._wall())])
            return secret

    async def revoke(self, name: str) -> None:
        """End a key, at once and for good; raise `NoSuchKey`."""
        async with self._changing:
            held = self._held(name)
            if not held.revoked:
                await self._put([held.model_copy(update={"revoked": self._wall()})])

    def _held(self, name: str) -> ApiKey:
        found = self.table.by_name.get(name)
        if found is None or name == CONTROL_TOKEN:
            raise NoSuchKey(
                f"there is no key {name!r}; `modelvine key list` shows those that there are"
            )
        return found

    async def _put(self, keys: Iterable[ApiKey]) -> None:
        changed = {key.name: key for key in keys}
        mark = secrets.token_bytes(8)
        rows = [Put(Space.KEYS, n, key.model_dump_json().encode()) for n, key in changed.items()]
        await self._store.write(*rows, Put(Space.MARKS, _MARK, mark))
        # Another node may have changed other keys meanwhile: its mark was not ours, and is looked for again.
        if not self._store.shared:
            self._mark = mark
        self._take([*(key for key in self.keys if key.name not in changed), *changed.values()])

    def _take(self, keys: Iterable[ApiKey]) -> None:
        self.table = self._tabled(keys)
        for listener in self._listeners:
            listener(self.table)

    def _tabled(self, keys: Iterable[ApiKey]) -> KeyTable:
        if not self._token:
            return KeyTable(keys)
        own = ApiKey(name=CONTROL_TOKEN, hash=hash_of(self._token), role=Role.OPERATOR)
        return KeyTable([*keys, own])


def _made(name: str, secret: str, allowed: Allowance, now: float) -> ApiKey:
    said = {field: getattr(allowed, field) for field in Allowance.model_fields}
    hint = secret[:HINT_CHARACTERS]
    return ApiKey(**said, name=name, hash=hash_of(secret), hint=hint, created=now)


def _thaw(name: str, row: bytes) -> ApiKey | None:
    """Read what a store holds; what no version wrote opens nothing."""
    try:
        found = ApiKey.model_validate_json(row)
    except ValidationError:
        found = None
    if found is None or found.name != name:
        log.warning("a key in the store cannot be read, and opens nothing")
        return None
    return found
