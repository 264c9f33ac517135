"""Watch over connections: tracks which peers are connected and alive, pings them, and chooses the ones to evict beyond limits."""

import logging
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import ip_address, ip_network
from itertools import chain, repeat
from typing import Any

import trio
from libp2p.abc import IHost, INetConn, INetStream, INetwork, INotifee
from libp2p.connection_types import ConnectionType
from libp2p.peer.id import ID
from libp2p.rcmgr.metrics import Direction as Opened
from multiaddr import Multiaddr

from registry.mesh import Direction, Origin, PeerConnection
from registry.mesh.libp2p import Delegate
from registry.mesh.libp2p.guards import ignore_errors, ping
from registry.mesh.libp2p.host import HardenedPubsub
from registry.records import PeerId
from registry.settings import MeshSettings

NEW_SECONDS = 3.0
"""Seconds within which a new peer's record has to arrive before it may be evicted for a newcomer."""

_NETWORK_BITS = {4: 24, 6: 48}


@dataclass(frozen=True, slots=True)
class InboundPeer:
    """A peer that connected to us, with its IP address, and its arrival in seconds on the caller's clock."""

    peer: PeerId
    address: str
    came: float

    @property
    def network(self) -> str:
        """The /24 of an IPv4 address, the /48 of an IPv6 address."""
        return network_of(self.address)


def network_of(address: str) -> str:
    """Return the network that counts as one: the /24 of IPv4, the /48 of IPv6, any other text itself."""
    try:
        bits = _NETWORK_BITS[ip_address(address).version]
    except ValueError:
        return address
    return str(ip_network(f"{address}/{bits}", strict=False))


def find_excess(
    callers: Sequence[InboundPeer],
    now: float,
    *,
    capacity: int,
    per_address: int,
    knows: Callable[[PeerId], bool],
) -> Iterator[PeerId]:
    """Yield the peers to evict, in order, until at most `capacity` stay in all and `per_address` of each address.

    Peers that have shown no record go first: the oldest one of the fullest network. If all have shown one, the newest peer of the
    fullest network goes where that network holds more peers than the newcomer's; otherwise the newcomer goes.
    """
    staying = sorted(callers, key=lambda caller: caller.came)
    while True:
        counts = Counter(caller.address for caller in staying)
        crowd = (
            staying
            if len(staying) > capacity
            else [caller for caller in staying if counts[caller.address] > per_address]
        )
        if not crowd:
            return
        evicted = _choose_evicted(crowd, now, counts, knows)
        staying.remove(evicted)
        yield evicted.peer


def _choose_evicted(
    crowd: Sequence[InboundPeer], now: float, counts: Counter[str], knows: Callable[[PeerId], bool]
) -> InboundPeer:
    networks = Counter(caller.network for caller in crowd)
    idle = [c for c in crowd if now - c.came >= NEW_SECONDS and not knows(c.peer)]
    if idle:
        return max(idle, key=lambda c: (networks[c.network], counts[c.address], -c.came))
    newest = crowd[-1]
    fullest = max(crowd, key=lambda c: (networks[c.network], c.came))
    return fullest if networks[fullest.network] > networks[newest.network] else newest


_log = logging.getLogger("modelvine.mesh")

_FIRST_PINGS = (0.5, 5.0)


def is_relayed(wire: Any) -> bool:
    """Return whether a muxed connection runs through a relay: it then has no remote address of its own."""
    return wire.get_remote_address() is None


def _ip_of(conn: Any) -> str:
    address, *_ = conn.muxed_conn.get_remote_address() or ("",)
    return str(address)


class Watch(INotifee):
    """Reports the whole list of connections whenever it may have changed.

    Where a peer lost one connection and has another, gossip's stream to it may have ended, and is opened again.
    """

    def __init__(
        self,
        host: IHost,
        settings: MeshSettings,
        delegate: Delegate,
        origins: Mapping[PeerId, Origin],
        pubsub: HardenedPubsub,
    ) -> None:
        self._network = host.get_network()
        self._settings = settings
        self._delegate = delegate
        self._origins = origins
        self._pubsub = pubsub
        # Each with the event that is set when it ends, and the time of its arrival.
        self._open_connections: dict[Any, tuple[trio.Event, float]] = {}
        self._silent_connections: set[INetConn] = set()
        self._arrived, self._arrivals = trio.open_memory_channel[tuple[INetConn, trio.Event]](
            math.inf
        )
        self.changed = trio.Event()
        self._network.register_notifee(self)

    def peers(self, *, directly: bool = False) -> set[PeerId]:
        """Return the peers that are connected now; with `directly`, only those without a relay between."""
        return {
            PeerId(str(peer))
            for peer, conns in self._live_connections().items()
            if not directly or not is_relayed(conns[0].muxed_conn)
        }

    def relayed(self) -> list[tuple[Any, bool]]:
        """Return the connections that run through relays, each with whether its peer has a direct one too."""
        return [
            (conn, not is_relayed(conns[0].muxed_conn))
            for conns in self._live_connections().values()
            for conn in conns
            if is_relayed(conn.muxed_conn)
        ]

    def host_of(self, peer: PeerId) -> str:
        """Return the IP address at which a peer is connected; empty where it is not connected, or through a relay."""
        conns = self._live_connections().get(ID.from_string(peer))
        return _ip_of(conns[0]) if conns else ""

    def callers(self) -> list[InboundPeer]:
        """Return the peers that opened all their connections themselves, without a relay."""
        return [
            InboundPeer(PeerId(str(peer)), _ip_of(conns[0]), min(map(self._arrived_at, conns)))
            for peer, conns in self._live_connections().items()
            if all(
                conn.direction is Opened.INBOUND
                and conn.get_connection_type() != ConnectionType.RELAYED
                for conn in conns
            )
        ]

    async def ping_forever(self) -> None:
        """Ping each connection soon, and every `ping` seconds from then on; close those that do not answer."""
        # A task for each connection: one frozen peer must not delay the detection of the next.
        async with trio.open_nursery() as nursery:
            async for conn, ended in self._arrivals:
                nursery.start_soon(self._keep_pinging, conn, ended)

    async def cut_all(self) -> None:
        """Close the socket of every connection, even when cancelled.

        A cancelled host forgets its connections without closing them; their peers would wait for a ping to fail.
        """
        for conn in tuple(self._open_connections):
            with ignore_errors():
                await conn.muxed_conn.secured_conn.close()

    def report_connections(self) -> None:
        """Report the current connections."""
        self.changed.set()
        self.changed = trio.Event()
        self._delegate.note_connections(
            tuple(self._described(str(p), conns) for p, conns in self._live_connections().items())
        )

    async def connected(self, network: INetwork, conn: INetConn) -> None:  # noqa: ARG002 (the library's signature)
        """Note the library's report that a connection is open."""
        ended = trio.Event()
        self._open_connections[conn] = ended, trio.current_time()
        self._arrived.send_nowait((conn, ended))

        # The library loses the type of a connection while it upgrades it, yet chooses one for a stream by its type.
        described: Any = conn
        kind = ConnectionType.RELAYED if is_relayed(conn.muxed_conn) else ConnectionType.DIRECT
        described.set_transport_info(conn.get_transport_addresses(), kind)
        self.report_connections()

    async def disconnected(self, network: INetwork, conn: INetConn) -> None:  # noqa: ARG002 (the library's signature)
        """Note the library's report that a connection has ended."""
        if (standing := self._open_connections.pop(conn, None)) is not None:
            standing[0].set()
        if conn.muxed_conn.peer_id in self._live_connections():
            self._pubsub.reopen(conn.muxed_conn.peer_id)
        self.report_connections()

    async def opened_stream(self, network: INetwork, stream: INetStream) -> None:
        """Ignore streams."""

    async def closed_stream(self, network: INetwork, stream: INetStream) -> None:
        """Ignore streams."""

    async def listen(self, network: INetwork, multiaddr: Multiaddr) -> None:
        """Ignore our own listeners."""

    async def listen_close(self, network: INetwork, multiaddr: Multiaddr) -> None:
        """Ignore our own listeners."""

    def _arrived_at(self, conn: Any) -> float:
        standing = self._open_connections.get(conn)
        return trio.current_time() if standing is None else standing[1]

    def _live_connections(self) -> dict[ID, list[Any]]:
        connections = {}
        for peer, conns in self._network.get_connections_map().items():
            if live := [c for c in conns if not c.is_closed and c not in self._silent_connections]:
                # A direct connection comes first: it represents its peer even beside a relayed one.
                connections[peer] = sorted(live, key=lambda conn: is_relayed(conn.muxed_conn))
        return connections

    async def _keep_pinging(self, conn: INetConn, ended: trio.Event) -> None:
        # A round trip measured in a connection's busy first second is corrected soon.
        for wait in chain(_FIRST_PINGS, repeat(self._settings.ping)):
            with trio.move_on_after(min(wait, self._settings.ping)):
                await ended.wait()
            if conn.is_closed:
                return
            await self._ping(conn)
            self.report_connections()

    async def _ping(self, conn: INetConn) -> None:
        answered = False
        with ignore_errors():
            answered = await ping(conn, self._settings.ping_timeout)
        if not answered and not conn.is_closed:
            _log.debug(
                "closing a connection to %s, which answered no ping", conn.muxed_conn.peer_id
            )
            # Reported before its streams end: they end because of this connection, not because of their peer.
            self._silent_connections.add(conn)
            self.report_connections()
            with ignore_errors():
                await conn.close()
            self._silent_connections.discard(conn)

    def _described(self, peer: str, conns: list[Any]) -> PeerConnection:
        conn = conns[0]
        relayed = is_relayed(conn.muxed_conn)
        addresses = [str(address) for address in conn.get_transport_addresses()]
        outbound = conn.direction is Opened.OUTBOUND
        address = addresses[0].partition("/p2p/")[0] if addresses else ""
        return PeerConnection(
            peer=PeerId(peer),
            address=f"{address}/p2p/{peer}",
            direction=Direction.OUTBOUND if outbound else Direction.INBOUND,
            relayed=relayed,
            round_trip=float(conn.muxed_conn.rtt()),
            origin=self._origins.get(PeerId(peer), Origin.ASKED) if outbound else Origin.INBOUND,
            wires=len(conns),
        )
