"""Key ring of a site: its keys are kept in its store, known to each of its nodes, and looked up by hash.

A change is made durable first, then takes effect at this node, then at the other nodes that share the store: each looks for the
mark of a change twice a second. While the store does not answer, known keys stay valid.
"""

import asyncio
import logging
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from pydantic import ValidationError

from node.auth import grants
from node.auth.errors import GrantRefused, KeyExists, NoSuchKey
from node.auth.grants import GRANT_PREFIX, Grant, Terms
from node.auth.key_table import GrantRules, KeyTable
from node.auth.keys import (
    HINT_CHARACTERS,
    MAX_KEYS,
    Allowance,
    ApiKey,
    Role,
    hash_of,
    new_secret,
)
from registry.clock import Clock
from registry.errors import LimitReached, StoreUnavailable
from registry.records import PeerId, Revocation
from registry.signing import Identity
from registry.store import Delete, Put, Space, Store
from registry.wire import MAX_REVOKED

log = logging.getLogger("modelvine.keys")

PERIOD = 0.5
"""Seconds between two checks for changes by other nodes."""

KEPT_SECONDS = 30 * 86_400.0
"""How long an ended key is remembered, so that its holder is told that it ended."""

MAX_REVOCATIONS = 16_384
"""Revocations of other nodes that are remembered; beyond that, those that end first are forgotten first."""

CONTROL_TOKEN = "control.token"  # noqa: S105 (a file's name)
"""Name of the node's control token among its keys; the token is the first operator's key."""

_MARK = "keys"
_EXPIRES_DIGITS = 13


class KeyRing:
    """The keys that this node knows, and the operations that change them. Lives on one event loop."""

    def __init__(
        self,
        store: Store,
        wall: Clock,
        *,
        token: str = "",
        identity: Identity | None = None,
        trusted: Iterable[PeerId] = (),
    ) -> None:
        """`wall` returns Unix time; the holder of `token` is an operator.

        `identity` signs grants; grants that `trusted` nodes signed are valid here too.
        """
        self._store = store
        self._wall = wall
        self._token = token
        self._identity = identity
        self._rules = GrantRules(identity.peer if identity else "", frozenset(trusted))
        self._revocations: dict[str, Revocation] = {}
        self._unsaved: list[Revocation] = []
        self._dropped_names: set[str] = set()
        self._mark = b""
        self._is_store_reached = True
        self._change_lock = asyncio.Lock()
        self._listeners: list[Callable[[KeyTable], None]] = []
        self.table = self._tabled(())

    @property
    def keys(self) -> Sequence[ApiKey]:
        """All keys of users, sorted by name."""
        by_name = self.table.by_name
        return [by_name[name] for name in sorted(by_name) if name != CONTROL_TOKEN]

    def now(self) -> float:
        """Return Unix time."""
        return self._wall()

    def find(self, secret: str) -> ApiKey | None:
        """Return the key for a secret, ended or not; raise `GrantRefused` for a grant that is not valid here."""
        return self.table.find(secret)

    def granted(self, text: str, holder: PeerId | None = None) -> ApiKey:
        """Return the key for a grant that `holder` shows, ended or not; raise `GrantRefused`."""
        return self.table.granted(text, holder)

    def on_change(self, listener: Callable[[KeyTable], None]) -> None:
        """Call `listener` with the table whenever it changes."""
        self._listeners.append(listener)

    async def restore(self) -> None:
        """Load what the store holds; raise `StoreUnavailable`."""
        self._mark = (await self._store.read(Space.MARKS)).get(_MARK, b"")
        rows = await self._store.read(Space.KEYS)
        if not self._revocations:
            self._add_revocations(_revocations(await self._store.read(Space.REVOKED)))
        self._replace(
            key for name, row in rows.items() if (key := _key_of_row(name, row)) is not None
        )

    async def follow(self) -> None:
        """Apply the changes of other nodes, until cancelled."""
        while True:
            await asyncio.sleep(PERIOD)
            await self.sync()

    async def sync(self) -> None:
        """Apply the changes that other nodes of the site have made, if any, and store the revocations that were heard."""
        try:
            await self.save()
            if not self._store.shared:
                return
            mark = (await self._store.read(Space.MARKS)).get(_MARK, b"")
            if mark != self._mark:
                async with self._change_lock:
                    count = len(self.keys)
                    await self.restore()
                if count and not self.keys:
                    log.error(
                        "the store has none of the %d keys that this node knew; their callers get 401 until you restore it",
                        count,
                    )
        except StoreUnavailable as error:
            if self._is_store_reached:
                log.warning("keys may be out of date: %s; known keys stay valid", error)
            self._is_store_reached = False
        else:
            if not self._is_store_reached:
                log.info("the store is available again; keys are up to date")
            self._is_store_reached = True

    async def create(self, allowances: Mapping[str, Allowance]) -> Mapping[str, str]:
        """Create keys, all or none, and return their secrets by name.

        Raise `KeyExists` for a name whose key has not ended, `LimitReached`, or `StoreUnavailable`.
        """
        async with self._change_lock:
            now = self._wall()
            by_name = self.table.by_name
            for name in allowances:
                if name == CONTROL_TOKEN or (name in by_name and not by_name[name].end_reason(now)):
                    raise KeyExists(
                        f"the key {name!r} already exists: rotate or revoke it, or choose another name"
                    )
            current = {key.name for key in self.keys if not _is_over(key, now)}
            if len(current | set(allowances)) > MAX_KEYS:
                raise LimitReached(f"a site can have at most {MAX_KEYS:,} keys; revoke some first")
            created = {name: new_secret() for name in allowances}
            await self._store_keys(
                _new_key(name, created[name], allowances[name], now) for name in allowances
            )
            return created

    async def grant(self, name: str, terms: Terms) -> Grant:
        """Sign a grant, which counts among the keys of this site.

        Raise as `create` does, and `GrantRefused` if the node has no identity to sign with.
        """
        if self._identity is None:
            raise GrantRefused("this node has no key to sign with")
        async with self._change_lock:
            now, existing = self._wall(), self.table.by_name.get(name)
            if name == CONTROL_TOKEN or (existing is not None and not existing.end_reason(now)):
                raise KeyExists(f"the key {name!r} already exists: choose another name")
            unexpired = [
                k for k in self.keys if k.issuer == self._identity.peer and k.expires > now
            ]
            if len(unexpired) >= MAX_REVOKED or len(self.keys) >= MAX_KEYS:
                raise LimitReached(f"a node can have at most {MAX_REVOKED:,} unexpired grants")
            grant = grants.issue(self._identity, terms)
            allowed = terms.allowance().model_dump()
            key = ApiKey(
                **allowed,
                name=name,
                hash=hash_of(grant.id),
                hint=GRANT_PREFIX[:HINT_CHARACTERS],
                created=now,
                issuer=grant.peer,
                grant=grant.id,
            )
            await self._store_keys([key])
            return grant

    def revocations(self) -> tuple[Revocation, ...]:
        """Return the revocations of grants that this node itself signed and that have not expired."""
        now, own_node = self._wall(), self._rules.node
        revoked = (k for k in self.keys if k.issuer == own_node and k.revoked and k.expires > now)
        return tuple(sorted(Revocation(k.grant, int(k.expires)) for k in revoked))

    def take_revocations(self, issuer: PeerId, revoked: Iterable[Revocation]) -> None:
        """Take in another node's revocations of grants, which are permanent; ignore those of nodes that are not trusted."""
        if issuer not in self._rules.trusted:
            return
        now = self._wall()
        news = [
            revocation
            for revocation in revoked
            if revocation.expires > now and revocation.grant not in self._revocations
        ]
        if news:
            self._add_revocations(news)
            self._unsaved += news
            self._replace(self.keys)

    async def save(self) -> None:
        """Store the revocations that were heard since the last call; raise `StoreUnavailable`."""
        if self._unsaved:
            news, now = tuple(self._unsaved), self._wall()
            ended = [
                grant
                for grant, revocation in self._revocations.items()
                if revocation.expires <= now
            ]
            removed = {*ended, *self._dropped_names}
            saved = (revocation for revocation in news if revocation.grant not in removed)
            rows = (
                Put(Space.REVOKED, revocation.grant, b"%d" % revocation.expires)
                for revocation in saved
            )
            await self._store.write(*rows, *(Delete(Space.REVOKED, grant) for grant in removed))
            del self._unsaved[: len(news)]
            self._dropped_names -= removed
            for grant in ended:
                self._revocations.pop(grant, None)

    async def rotate(self, name: str) -> str:
        """Replace a key by a new one that allows the same, and return its secret; the old key is no longer valid.

        Raise `NoSuchKey`, `KeyExists` for a grant, or `StoreUnavailable`.
        """
        async with self._change_lock:
            key = self._key(name)
            if key.issuer:
                raise KeyExists(f"{name!r} is a grant: revoke it, and create a new invitation")
            secret = new_secret()
            await self._store_keys([_new_key(name, secret, key, self._wall())])
            return secret

    async def revoke(self, name: str) -> None:
        """End a key, at once and permanently; raise `NoSuchKey`."""
        async with self._change_lock:
            key = self._key(name)
            if not key.revoked:
                await self._store_keys([key.model_copy(update={"revoked": self._wall()})])

    def _key(self, name: str) -> ApiKey:
        key = self.table.by_name.get(name)
        if key is None or name == CONTROL_TOKEN:
            raise NoSuchKey(f"there is no key {name!r}; `modelvine key list` shows all keys")
        return key

    async def _store_keys(self, keys: Iterable[ApiKey]) -> None:
        changed = {key.name: key for key in keys}
        now, mark = self._wall(), secrets.token_bytes(8)
        expired = {key.name for key in self.keys if _is_over(key, now)} - changed.keys()
        rows = [Put(Space.KEYS, n, key.model_dump_json().encode()) for n, key in changed.items()]
        deletes = (Delete(Space.KEYS, name) for name in expired)
        await self._store.write(*rows, *deletes, Put(Space.MARKS, _MARK, mark))
        # In a shared store another node may have changed other keys meanwhile: the next `sync` compares the mark again.
        if not self._store.shared:
            self._mark = mark
        unchanged = (
            key for key in self.keys if key.name not in changed and key.name not in expired
        )
        self._replace([*unchanged, *changed.values()])

    def _replace(self, keys: Iterable[ApiKey]) -> None:
        self.table = self._tabled(keys)
        for listener in self._listeners:
            listener(self.table)

    def _add_revocations(self, revoked: Iterable[Revocation]) -> None:
        self._revocations.update({one.grant: one for one in revoked})
        if (beyond := len(self._revocations) - MAX_REVOCATIONS) > 0:
            for one in sorted(self._revocations.values(), key=lambda one: one.expires)[:beyond]:
                del self._revocations[one.grant]
                self._dropped_names.add(one.grant)
        self._rules = replace(self._rules, revoked=frozenset(self._revocations))

    def _tabled(self, keys: Iterable[ApiKey]) -> KeyTable:
        if not self._token:
            return KeyTable(keys, self._rules)
        control_key = ApiKey(name=CONTROL_TOKEN, hash=hash_of(self._token), role=Role.OPERATOR)
        return KeyTable([*keys, control_key], self._rules)


def _is_over(key: ApiKey, now: float) -> bool:
    """Return whether a key ended so long ago that it can be forgotten; for a grant, the time counts from its expiry."""
    ends = key.expires if key.issuer else key.revoked or key.expires
    return bool(ends) and now - ends > KEPT_SECONDS


def _revocations(rows: Mapping[str, bytes]) -> Iterator[Revocation]:
    """Read the revocations in a store; rows that no version wrote are skipped."""
    for name, row in rows.items():
        if row.isdigit() and len(row) <= _EXPIRES_DIGITS:
            yield Revocation(name, int(row))


def _new_key(name: str, secret: str, allowed: Allowance, now: float) -> ApiKey:
    terms = {field: getattr(allowed, field) for field in Allowance.model_fields}
    hint = secret[:HINT_CHARACTERS]
    return ApiKey(**terms, name=name, hash=hash_of(secret), hint=hint, created=now)


def _key_of_row(name: str, row: bytes) -> ApiKey | None:
    """Read a key in a store; return `None` for a row that no version wrote."""
    try:
        key = ApiKey.model_validate_json(row)
    except ValidationError:
        key = None
    if key is None or key.name != name:
        log.warning("a key in the store cannot be read, and is not valid")
        return None
    return key
