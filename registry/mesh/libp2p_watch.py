"""Who is connected, and do they still live? Reports changes, and pings every connection."""

from collections.abc import Callable, Mapping
from typing import Any

import trio
from libp2p.abc import IHost, INetConn, INetStream, INetwork, INotifee
from libp2p.connection_types import ConnectionType
from libp2p.network.health.ping_probe import ping_connection
from libp2p.peer.id import ID
from libp2p.rcmgr.metrics import Direction as Opened
from multiaddr import Multiaddr

from registry.mesh import Connection, Direction, Origin
from registry.mesh.hardening import indifferent
from registry.records import PeerId
from registry.settings import MeshSettings

Report = Callable[[tuple[Connection, ...]], object]


class Watch(INotifee):
    """Tells the whole list of connections whenever it may have changed."""

    def __init__(
        self,
        host: IHost,
        settings: MeshSettings,
        report: Report,
        origins: Mapping[PeerId, Origin],
    ) -> None:
        self._network = host.get_network()
        self._settings = settings
        self._report = report
        self._origins = origins
        self._standing: set[Any] = set()
        self.changed = trio.Event()
        self._network.register_notifee(self)

    def peers(self) -> set[PeerId]:
        """Return the peers that are connected now."""
        return {PeerId(str(peer)) for peer in self._live()}

    async def ping_forever(self) -> None:
        """Ping all connections together every `ping` seconds, and close the ones that do not answer."""
        while True:
            await trio.sleep(self._settings.ping)
            live = [conn for conns in self._live().values() for conn in conns]
            # Together: one frozen peer must not delay the discovery of the next.
            async with trio.open_nursery() as nursery:
                for conn in live:
                    nursery.start_soon(self._ping, conn)
            self.tell()

    async def cut_all(self) -> None:
        """Close the socket of every connection, under whatever cancellation.

        A cancelled host forgets its connections without closing them; their peers would wait for a ping to fail.
        """
        for conn in tuple(self._standing):
            with indifferent():
                await conn.muxed_conn.secured_conn.close()

    def tell(self) -> None:
        """Report the connections as they are."""
        self.changed.set()
        self.changed = trio.Event()
        self._report(tuple(self._described(str(p), conns) for p, conns in self._live().items()))

    async def connected(self, network: INetwork, conn: INetConn) -> None:  # noqa: ARG002 (the library's signature)
        """Take the library's word that a connection stands."""
        self._standing.add(conn)
        self.tell()

    async def disconnected(self, network: INetwork, conn: INetConn) -> None:  # noqa: ARG002 (the library's signature)
        """Take the library's word that a connection is gone."""
        self._standing.discard(conn)
        self.tell()

    async def opened_stream(self, network: INetwork, stream: INetStream) -> None:
        """Ignore streams."""

    async def closed_stream(self, network: INetwork, stream: INetStream) -> None:
        """Ignore streams."""

    async def listen(self, network: INetwork, multiaddr: Multiaddr) -> None:
        """Ignore our own listeners."""

    async def listen_close(self, network: INetwork, multiaddr: Multiaddr) -> None:
        """Ignore our own listeners."""

    def _live(self) -> dict[ID, list[Any]]:
        found = {}
        for peer, conns in self._network.get_connections_map().items():
            if live := [conn for conn in conns if not conn.is_closed]:
                found[peer] = live
        return found

    async def _ping(self, conn: INetConn) -> None:
        with indifferent():
            result = await ping_connection(conn, ping_timeout=self._settings.ping_timeout)
            if not result.success and not conn.is_closed:
                await conn.close()

    def _described(self, peer: str, conns: list[Any]) -> Connection:
        conn = conns[0]
        relayed = conn.get_connection_type() == ConnectionType.RELAYED
        addresses = [str(address) for address in conn.get_transport_addresses()]
        outbound = conn.direction is Opened.OUTBOUND
        address = addresses[0].partition("/p2p/")[0] if addresses else ""
        return Connection(
            peer=PeerId(peer),
            address=f"{address}/p2p/{peer}",
            direction=Direction.OUTBOUND if outbound else Direction.INBOUND,
            relayed=relayed,
            round_trip=float(conn.muxed_conn.rtt()),
            origin=self._origins.get(PeerId(peer), Origin.ASKED) if outbound else Origin.INBOUND,
        )
