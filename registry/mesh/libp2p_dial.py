"""How is one address dialled? By TCP, through a relay where it says so, and beside a relayed connection where one stands."""

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import trio
from libp2p.abc import IHost
from libp2p.peer.id import ID
from libp2p.peer.peerinfo import PeerInfo
from multiaddr import Multiaddr

from registry.errors import PeerUnreachable
from registry.mesh.hardening import unreachable
from registry.mesh.libp2p_circuits import Circuits
from registry.mesh.libp2p_watch import Watch
from registry.records import PeerId

_CIRCUIT = "/p2p-circuit"


class Dials:
    """Makes connections, one address at a time; the caller bounds the time. Every method runs in trio."""

    def __init__(self, host: IHost, watch: Watch, circuits: Circuits) -> None:
        self._host = host
        self._watch = watch
        self._circuits = circuits

    async def dial(self, address: str) -> PeerId:
        """Connect to the peer that an address ends in; raise `PeerUnreachable`."""
        with unreachable(f"{address!r} cannot be dialled"):
            where, _, last = address.rpartition("/p2p/")
            target = ID.from_string(last)
            if not where or target == self._host.get_id():
                raise PeerUnreachable("this address is our own, or nobody's")
            peer = PeerId(str(target))
            if where.endswith(_CIRCUIT):
                await self._through(where.removesuffix(_CIRCUIT), peer)
            else:
                await self._directly(target, peer, Multiaddr(where))
            return peer

    async def first_of(self, addresses: Sequence[str], timeout: float) -> None:
        """Dial addresses of one peer one by one, each for `timeout` seconds: given all, the library dials the first alone."""
        for address in addresses:
            with suppress(PeerUnreachable), unreachable(address):
                with trio.fail_after(timeout):
                    await self.dial(address)
                return
        raise PeerUnreachable("no address answers")

    async def _directly(self, target: ID, peer: PeerId, address: Multiaddr) -> None:
        network: Any = self._host.get_network()
        # A failed dial blocks its peer for a minute, and old addresses are tried before new ones.
        network.unblock_peer(target)
        if peer in self._watch.peers() - self._watch.peers(directly=True):
            # The library dials nobody who is connected already.
            await network.dial_addr(address, target)
        else:
            self._host.get_peerstore().clear_addrs(target)
            await self._host.connect(PeerInfo(target, [address]))

    async def _through(self, relay: str, peer: PeerId) -> None:
        if peer in self._watch.peers():
            return
        through = PeerId(relay.rpartition("/p2p/")[2])
        if through not in self._watch.peers(directly=True):
            await self.dial(relay)
        await self._circuits.dial(through, peer)
