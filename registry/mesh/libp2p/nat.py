"""NAT traversal of this node: asks to be dialled back, holds places at relays, is a relay if told so."""

from collections.abc import Callable, Sequence

import trio
from libp2p.abc import IHost

from registry.errors import PeerUnreachable
from registry.intake import dialable
from registry.mesh.libp2p.autonat import DIALBACK, Dialback
from registry.mesh.libp2p.circuit import Circuits
from registry.mesh.libp2p.guards import indifferent
from registry.mesh.libp2p.reachability import Reachability
from registry.mesh.libp2p.relay import HOP, STOP, Relay
from registry.mesh.libp2p.relay_book import RelayBook, RelayLimits
from registry.mesh.libp2p.reservations import Reservations
from registry.mesh.libp2p.watch import Watch
from registry.records import PeerId, Reach
from registry.settings import MeshSettings

TICK = 0.5
"""Seconds between looks at what is to be asked."""

CIRCUIT_IDLE = 60.0
"""Seconds that a connection through a relay is kept while no pipe runs over it, where there is no direct one."""

CIRCUIT_TICK = 2.0
"""Seconds between looks at which is idle; one beside a direct connection is closed at the next look."""

RELAY_COUNTS = ("reservations", "circuits", "reserved", "opened", "refused", "cut", "bytes")


class Nat:
    """This node's ways round what stands between it and others. Every method runs in trio."""

    def __init__(
        self,
        host: IHost,
        own: PeerId,
        settings: MeshSettings,
        swarm_key: str | None,
        watch: Watch,
        *,
        listening: Callable[[], Sequence[str]],
        busy: Callable[[], set[int]],
        changed: Callable[[], object],
    ) -> None:
        self._host = host
        self._settings = settings
        self._watch = watch
        self._listening = listening
        self._busy = busy
        self._changed = changed
        self._dialback = Dialback(host, swarm_key)
        self._reachability = Reachability()
        self._reservations = Reservations(own)
        self.counted = dict.fromkeys(RELAY_COUNTS, 0)
        self._book = RelayBook(
            RelayLimits(
                reservations=settings.relay_reservations,
                circuits=settings.relay_circuits,
                circuits_per_peer=settings.relay_circuits_per_peer,
                size=settings.relay_bytes,
                seconds=settings.relay_seconds,
                lease=settings.relay_lease,
            )
        )
        self._relay = Relay(host, self._book, listening, self.counted)
        self.circuits = Circuits(host, swarm_key)

    @property
    def addresses(self) -> tuple[str, ...]:
        """Where relays hand on to us; none when others reach us by themselves."""
        return self._reservations.addresses

    def open(self) -> None:
        """Answer from now on; before the host listens."""
        self._host.set_stream_handler(STOP, self.circuits.handle)
        self._host.set_stream_handler(DIALBACK, self._dialback.handle)
        if self._settings.relay:
            self._host.set_stream_handler(HOP, self._relay.handle)

    async def run(self) -> None:
        """Ask, reserve and renew until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._learn_whether_hidden)
            nursery.start_soon(self._hold_places)
            nursery.start_soon(self._close_idle_circuits)

    async def _learn_whether_hidden(self) -> None:
        while self._settings.nat == "auto":
            await self._next_look()
            # Nobody but this machine reaches us: there is nothing to get round.
            if dialable.among_ourselves(Reach(mesh=tuple(self._listening()))):
                continue
            peer = self._reachability.next(self._watch.peers(directly=True), trio.current_time())
            if peer is None:
                continue
            try:
                reached = await self._dialback.ask(peer, self._listening())
            except PeerUnreachable:
                reached = None
            self._reachability.answered(peer, reached, trio.current_time())

    async def _hold_places(self) -> None:
        while True:
            await self._next_look()
            connected = self._watch.peers(directly=True)
            self._book.stay(connected)
            self._relay.show()
            for relay in self._reservations.relays - connected:
                self._reservations.parted(relay)
            if self._is_hidden():
                await self._reserve_next(connected)
            else:
                self._reservations.clear()
            self.circuits.relays = self._reservations.relays
            self._changed()

    async def _reserve_next(self, connected: set[PeerId]) -> None:
        relay = self._reservations.next(connected, trio.current_time())
        if relay is None:
            return
        try:
            granted = await self.circuits.reserve(relay)
        except PeerUnreachable:
            self._reservations.refused(relay, trio.current_time())
        else:
            now = trio.current_time()
            self._reservations.granted(relay, granted.addresses, granted.lease, now)

    async def _close_idle_circuits(self) -> None:
        idle_since: dict[int, float] = {}
        while True:
            await trio.sleep(CIRCUIT_TICK)
            busy, now, before = self._busy(), trio.current_time(), idle_since
            idle_since = {}
            for conn, has_better in self._watch.relayed():
                if id(conn.muxed_conn) in busy:
                    continue
                since = idle_since[id(conn)] = before.get(id(conn), now)
                if now - since >= (CIRCUIT_TICK if has_better else CIRCUIT_IDLE):
                    with indifferent():
                        await conn.close()

    def _is_hidden(self) -> bool:
        return self._settings.nat == "yes" or (
            self._settings.nat == "auto" and self._reachability.hidden
        )

    async def _next_look(self) -> None:
        with trio.move_on_after(TICK):
            await self._watch.changed.wait()
