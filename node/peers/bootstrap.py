"""Bootstrap peers, which a node keeps connected besides those it finds: the configured ones, and those added by callers.

Additions and removals survive a restart; a removal also covers a configured address until it is added again.
"""

import asyncio
from collections.abc import Iterable, Iterator
from typing import Protocol

from multiaddr import Multiaddr
from multiaddr.exceptions import Error as MultiaddrError

from registry.errors import InvalidSignature, LimitReached
from registry.persistence import Persistence
from registry.records import PeerId
from registry.signing import public_of
from registry.store import Change, Delete, Put, Space, Store

MAX_ADDRESSES = 256
MAX_ADDRESS_CHARACTERS = 256

_KEPT, _REMOVED = b"kept", b"removed"


def peer_at(address: str) -> PeerId:
    """Return the peer id that a multiaddr ends in; raise `ValueError` with a readable sentence when it is invalid."""
    if len(address) > MAX_ADDRESS_CHARACTERS:
        raise ValueError(f"a node address has at most {MAX_ADDRESS_CHARACTERS} characters")
    head, found, peer = address.rpartition("/p2p/")
    if not (head and found):
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

    def pin(self, addresses: tuple[str, ...]) -> None:
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
        self._changing = asyncio.Lock()

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
        self._mesh.pin(self.addresses)

    async def add(self, address: str) -> None:
        """Keep an address connected from now on; raise `ValueError`, `LimitReached` or `StoreUnavailable`."""
        peer_at(address)
        async with self._changing:
            if len(self._choices) >= MAX_ADDRESSES and address not in self._choices:
                raise LimitReached(f"{MAX_ADDRESSES} bootstrap addresses are the maximum")
            await self._choose(address, _KEPT)
            self._mesh.pin(self.addresses)

    async def remove(self, address: str) -> bool:
        """Stop keeping an address connected; return whether it was kept; raise `StoreUnavailable`."""
        async with self._changing:
            if address not in self.addresses:
                return False
            await self._choose(address, _REMOVED if address in self._configured else None)
            self._mesh.pin(self.addresses)
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
