"""Bootstrap addresses: those that a node keeps connected besides those it finds, and which of them answer.

Callers may add to the configured ones, and remove some. That survives a restart; a removal also covers a configured address until
it is added again. A node whose bootstrap addresses are wrong runs well but alone; only the warnings here tell its operator.
"""

import asyncio
import logging
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any, Protocol

from multiaddr import Multiaddr
from multiaddr.exceptions import Error as MultiaddrError

from registry.clock import Clock
from registry.errors import InvalidSignature, LimitReached
from registry.mesh import Mesh, peer_in
from registry.persistence import Persistence
from registry.records import PeerId
from registry.signing import public_of
from registry.store import Change, Delete, Put, Space, Store

log = logging.getLogger("modelvine.node")

MAX_ADDRESSES = 256
MAX_ADDRESS_CHARACTERS = 256

_KEPT, _REMOVED = b"kept", b"removed"


def peer_at(address: str) -> PeerId:
    """Return the peer id that a multiaddr ends in; raise `ValueError` with a readable sentence when it is invalid."""
    if len(address) > MAX_ADDRESS_CHARACTERS:
        raise ValueError(f"a node address has at most {MAX_ADDRESS_CHARACTERS} characters")
    head, separator, peer = address.rpartition("/p2p/")
    if not (head and separator):
        raise ValueError("a node address ends in /p2p/<peer id>")
    try:
        public_of(peer)
        Multiaddr(head)
    except InvalidSignature as error:
        raise ValueError(str(error)) from error
    except (MultiaddrError, ValueError) as error:
        raise ValueError(f"{head!r} is not a multiaddr: {error}") from error
    return PeerId(peer)


class Dialler(Protocol):
    """The mesh, which keeps addresses connected."""

    def set_bootstrap(self, addresses: tuple[str, ...]) -> None:
        """Replace the addresses that are kept connected."""


class Bootstrap:
    """The addresses that the redial loop keeps connected."""

    def __init__(
        self, store: Store, saving: Persistence, mesh: Dialler, *, configured: Iterable[str]
    ) -> None:
        self._store = store
        self._saving = saving
        self._configured = tuple(configured)
        self._mesh = mesh
        self._choices: dict[str, bytes] = {}
        self._change_lock = asyncio.Lock()

    @property
    def addresses(self) -> tuple[str, ...]:
        """The addresses that are kept connected now, the configured ones first."""
        every = dict.fromkeys((*self._configured, *self._choices))
        return tuple(a for a in every if self._choices.get(a, _KEPT) == _KEPT)

    def changes(self) -> Iterator[Change]:
        """Yield the changes that restore these choices in a store that was emptied."""
        return (Put(Space.PEERS, address, choice) for address, choice in self._choices.items())

    async def restore(self) -> None:
        """Load the callers' choices of earlier runs, and keep them connected; raise `StoreUnavailable`."""
        self._choices = dict(await self._store.read(Space.PEERS))
        self._mesh.set_bootstrap(self.addresses)

    async def add(self, address: str) -> None:
        """Keep an address connected from now on; raise `ValueError`, `LimitReached` or `StoreUnavailable`."""
        peer_at(address)
        async with self._change_lock:
            if len(self._choices) >= MAX_ADDRESSES and address not in self._choices:
                raise LimitReached(f"{MAX_ADDRESSES} bootstrap addresses are the maximum")
            await self._choose(address, _KEPT)
            self._mesh.set_bootstrap(self.addresses)

    async def remove(self, address: str) -> bool:
        """Stop keeping an address connected; return whether it was kept; raise `StoreUnavailable`."""
        async with self._change_lock:
            if address not in self.addresses:
                return False
            await self._choose(address, _REMOVED if address in self._configured else None)
            self._mesh.set_bootstrap(self.addresses)
            return True

    async def _choose(self, address: str, choice: bytes | None) -> None:
        change = _choice(address, choice)
        await self._saving.write([change], undo=[_choice(address, self._choices.get(address))])
        if choice is None:
            del self._choices[address]
        else:
            self._choices[address] = choice


def _choice(address: str, choice: bytes | None) -> Change:
    return Delete(Space.PEERS, address) if choice is None else Put(Space.PEERS, address, choice)


GRACE = 5.0
"""Seconds that an address may fail before a warning: nodes that are started together miss each other at first."""

SILENCE = 8.0
"""Seconds before that warning where the reason for the failure is not known yet; a dial may take longer."""

AGAIN = 600.0
"""Seconds until the same warning is repeated."""

NEWS = 60.0
"""Seconds until a changed reason is logged."""

STEADY = 5.0
"""Seconds that a connection has to last to count as an answer: a node that does not admit this one ends each at once."""

MAX_REASONS = 3

_LOOK = 1.0
_OWN = "it is this node's own address"
_NO_ANSWER = "no answer yet"
_ENDED = "it ends each connection at once, so it may not admit this node (its registry.deny or registry.allow)"


@dataclass(frozen=True, slots=True)
class Contact:
    """One bootstrap address. `why` says why it does not answer, where that is known."""

    address: str
    answers: bool
    why: str = ""


def contacts(addresses: Sequence[str], mesh: Mesh) -> tuple[Contact, ...]:
    """Return the state of every bootstrap address; a node's own counts only where it has no other."""
    connected = {connection.peer for connection in mesh.connections()}
    failures = mesh.bootstrap_failures()
    listed = [_contact(address, mesh.peer, connected, failures) for address in addresses]
    # Operators often give all nodes the same list, and each node is on it.
    others = [contact for contact in listed if peer_in(contact.address) != mesh.peer]
    return tuple(others or listed)


def _contact(
    address: str, own_peer: PeerId, connected: Collection[PeerId], failures: Mapping[str, str]
) -> Contact:
    peer = peer_in(address)
    if peer == own_peer:
        return Contact(address, answers=False, why=_OWN)
    answers = peer in connected
    return Contact(address, answers, "" if answers else failures.get(address, ""))


def summary(contacts: Sequence[Contact]) -> str:
    """Return in words how many addresses answer, and why the others do not; empty where there are none."""
    if not contacts:
        return ""
    silent = [contact for contact in contacts if not contact.answers]
    text = f"{len(contacts) - len(silent)} of {len(contacts)} bootstrap addresses answer"
    reasons = [*dict.fromkeys(contact.why or _NO_ANSWER for contact in silent)]
    more = "; …" if len(reasons) > MAX_REASONS else ""
    return f"{text}: {'; '.join(reasons[:MAX_REASONS])}{more}" if reasons else text


def shown(contacts: Sequence[Contact]) -> dict[str, Any]:
    """Return the state of the addresses as the faces show it."""
    rows = [{"address": c.address, "answers": c.answers, "why": c.why} for c in contacts]
    return {"summary": summary(contacts), "addresses": rows}


@dataclass(slots=True)
class _Wait:
    """Wait for one address, until it has answered for a while. `why` is the reason of the last warning."""

    since: float
    warned: bool = False
    told: float = 0.0
    why: str = ""
    answers_since: float = inf
    ended_at: float = -inf
    """When a connection was last seen to have come about and not to last."""


class ContactWaits:
    """Chooses which addresses are logged now; time is an argument."""

    def __init__(self) -> None:
        self._waits: dict[str, _Wait] = {}

    def overdue(self, contacts: Sequence[Contact], now: float) -> list[Contact]:
        """Return the addresses to warn about: soon at first, rarely afterwards, and again when the reason changes."""
        self._waits = {c.address: w for c in contacts if (w := self._updated(c, now)) is not None}
        silent = (self._with_reason(contact, now) for contact in contacts if not contact.answers)
        due = [contact for contact in silent if self._is_due(contact, now)]
        for contact in due:
            wait = self._waits[contact.address]
            wait.warned, wait.told, wait.why = True, now, contact.why
        return due

    def recovered(self, contacts: Sequence[Contact], now: float) -> list[Contact]:
        """Return the addresses that have answered for a while after a warning; `overdue` then forgets them."""
        answering = [contact for contact in contacts if contact.answers]
        warned = {address for address, wait in self._waits.items() if wait.warned}
        return [
            contact
            for contact in answering
            if contact.address in warned
            and now - self._waits[contact.address].answers_since >= STEADY
        ]

    def _updated(self, contact: Contact, now: float) -> _Wait | None:
        """Return the wait for an address, `None` if it is over."""
        wait = self._waits.get(contact.address)
        if wait is not None and now - wait.answers_since >= STEADY:
            wait = None
        if contact.answers:
            if wait is not None:
                wait.answers_since = min(wait.answers_since, now)
            return wait
        if wait is None:
            return _Wait(now)
        if wait.answers_since < inf:
            wait.answers_since, wait.ended_at = inf, now
        return wait

    def _with_reason(self, contact: Contact, now: float) -> Contact:
        # Dials between such connections may fail for reasons that mislead.
        was_ended = now - self._waits[contact.address].ended_at < AGAIN
        return replace(contact, why=_ENDED) if was_ended else contact

    def _is_due(self, contact: Contact, now: float) -> bool:
        wait = self._waits[contact.address]
        if not wait.warned:
            return now - wait.since >= (GRACE if contact.why else SILENCE)
        news = contact.why != wait.why
        return now - wait.told >= (NEWS if news else AGAIN)


async def watch(bootstrap: Bootstrap, mesh: Mesh, clock: Clock) -> None:
    """Warn about bootstrap addresses that do not answer, until cancelled."""
    waits = ContactWaits()
    while True:
        current = contacts(bootstrap.addresses, mesh)
        now = clock()
        for contact in waits.recovered(current, now):
            log.info("bootstrap address %s answers now", contact.address)
        for contact in waits.overdue(current, now):
            reason = contact.why or _NO_ANSWER
            log.warning("bootstrap address %s does not answer: %s", contact.address, reason)
        await asyncio.sleep(_LOOK)
