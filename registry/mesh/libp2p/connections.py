"""Connection manager: it dials whom the dialler chooses, has strangers prove themselves, notes where each is from."""

from collections.abc import Awaitable, Callable, Mapping

import trio

from registry.mesh import Origin
from registry.mesh.discovered import Strangers
from registry.mesh.libp2p.dial import NobodyAnswered
from registry.mesh.libp2p.dial_plan import Dialer, Target, peer_in
from registry.mesh.libp2p.topic_check import STRANGE, Introductions
from registry.mesh.libp2p.watch import Watch
from registry.records import PeerId
from registry.settings import MeshSettings

DIAL_TICK = 0.25
"""Seconds between looks at whom to dial."""

Origins = dict[PeerId, Origin]


class Company:
    """Everybody that this node dials of its own accord, in the trio thread.

    `dial` tries a peer's addresses and raises `NobodyAnswered`; `unanswered` is told why those of a bootstrap peer failed.
    """

    def __init__(
        self,
        strangers: Strangers,
        settings: MeshSettings,
        *,
        watch: Watch,
        origins: Origins,
        members: Callable[[], set[PeerId]],
        dial: Callable[[tuple[str, ...]], Awaitable[object]],
        unanswered: Callable[[Mapping[str, str]], object],
        disconnect: Callable[[PeerId], Awaitable[None]],
    ) -> None:
        self._watch = watch
        self._origins = origins
        self._dial = dial
        self._unanswered = unanswered
        self._dialer = Dialer(strangers.own, settings.degree, settings.redial)
        self._bootstrap: tuple[str, ...] = ()
        self._kept: tuple[str, ...] = ()
        self._strangers = Introductions(
            strangers,
            speaks=lambda peer: peer in members(),
            callers=watch.callers,
            disconnect=disconnect,
            changed=self._aim,
        )

    def pin(self, addresses: tuple[str, ...]) -> None:
        """Replace the bootstrap addresses."""
        self._bootstrap = addresses
        self._aim()

    def keep(self, addresses: tuple[str, ...]) -> None:
        """Replace the addresses that records name."""
        self._kept = addresses
        self._aim()

    def claim(self, origin: Origin, addresses: tuple[str, ...]) -> None:
        """Replace the addresses of strangers that one source claims to be of our mesh."""
        self._strangers.claim(origin, addresses)

    async def run(self) -> None:
        """Dial whoever is due, until cancelled."""
        dialling: set[PeerId] = set()
        connected: set[PeerId] = set()
        async with trio.open_nursery() as self._nursery:
            self._nursery.start_soon(self._strangers.reconsider_forever)
            while True:
                before, connected, now = connected, self._watch.peers(), trio.current_time()
                for peer in before - connected:
                    self._dialer.lost(peer, now)
                    self._origins.pop(peer, None)
                for peer in connected - before:
                    self._dialer.succeeded(peer)
                for target in self._dialer.due(connected | dialling, now):
                    dialling.add(target.peer)
                    self._nursery.start_soon(self._meet, target, dialling)
                with trio.move_on_after(DIAL_TICK):
                    await self._watch.changed.wait()

    def _aim(self) -> None:
        self._dialer.aim(self._bootstrap, (*self._kept, *self._strangers.addresses()))

    async def _meet(self, target: Target, dialling: set[PeerId]) -> None:
        origin = self._origin_of(target)
        # Noted before: a connection is told of sooner than its dial returns.
        self._origins[target.peer] = origin
        try:
            await self._dial(target.addresses)
            self._dialer.succeeded(target.peer)
            if origin in STRANGE:
                self._nursery.start_soon(self._strangers.prove, target.peer)
        except NobodyAnswered as error:
            if target.bootstrap:
                self._unanswered(error.reasons)
            self._dialer.failed(target.peer, trio.current_time())
            if origin in STRANGE:
                self._strangers.failed(target.peer)
        finally:
            dialling.discard(target.peer)

    def _origin_of(self, target: Target) -> Origin:
        if target.bootstrap:
            return Origin.BOOTSTRAP
        vouched = any(peer_in(address) == target.peer for address in self._kept)
        return (not vouched and self._strangers.origin(target.peer)) or Origin.RECORD
