"""Check that strangers speak our topic: those that do stay; the others are let go, and left alone if it was us who dialled."""

from collections.abc import Awaitable, Callable

import trio

from registry.mesh import Origin
from registry.mesh.discovered import Strangers
from registry.records import PeerId

STRANGE = frozenset({Origin.MDNS, Origin.RENDEZVOUS})
"""The sources that nobody answers for."""

PROOF_SECONDS = 10.0
"""Seconds after a dial within which a stranger must have subscribed to our topic."""

CALLER_SECONDS = 30.0
"""Seconds that who dialled us may stay without subscribing: enough for whatever else it wants to ask."""

_POLL = 0.25
_RECONSIDER_SECONDS = 15.0


class Introductions:
    """Turns strangers into peers, in the trio thread. `changed` is called when others may be dialled than before."""

    def __init__(
        self,
        strangers: Strangers,
        *,
        speaks: Callable[[PeerId], bool],
        callers: Callable[[], set[PeerId]],
        disconnect: Callable[[PeerId], Awaitable[None]],
        changed: Callable[[], None],
    ) -> None:
        self._strangers = strangers
        self._speaks = speaks
        self._callers = callers
        self._came: dict[PeerId, float] = {}
        self._disconnect = disconnect
        self._changed = changed

    def claim(self, origin: Origin, addresses: tuple[str, ...]) -> None:
        """Replace what a source claims."""
        self._strangers.claim(origin, addresses)
        self._changed()

    def addresses(self) -> tuple[str, ...]:
        """Return what may be dialled now."""
        return self._strangers.addresses(trio.current_time())

    def origin(self, peer: PeerId) -> Origin | None:
        """Say which source claims a peer."""
        return self._strangers.origin(peer)

    def failed(self, peer: PeerId) -> None:
        """Note that a stranger did not answer."""
        self._strangers.refuse(peer, trio.current_time())
        self._changed()

    async def prove(self, peer: PeerId) -> None:
        """Wait until a stranger that was dialled speaks our topic, and let it go when it does not."""
        with trio.move_on_after(PROOF_SECONDS) as patience:
            # Polled: the library tells nobody of a subscription.
            while not self._speaks(peer):  # noqa: ASYNC110
                await trio.sleep(_POLL)
            self._strangers.accept(peer)
        if patience.cancelled_caught:
            self.failed(peer)
            await self._disconnect(peer)

    async def reconsider_forever(self) -> None:
        """Let those be dialled again whose time of being left alone has passed, and close what is of no use."""
        while True:
            await trio.sleep(_RECONSIDER_SECONDS)
            self._changed()
            await self._part_with_callers()

    async def _part_with_callers(self) -> None:
        """Close connections that others opened and that never spoke our topic: held, they would count as company."""
        now = trio.current_time()
        self._came = {
            peer: self._came.get(peer, now) for peer in self._callers() if not self._speaks(peer)
        }
        for peer, came in self._came.items():
            if now - came >= CALLER_SECONDS:
                await self._disconnect(peer)
