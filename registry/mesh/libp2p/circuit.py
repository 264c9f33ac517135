"""Circuits through a relay: the two ends of circuit relay v2, which reserve at a relay, dial a circuit, or accept one.

A circuit is a connection like any other: noise and yamux run from end to end, and the relay reads none of it.
"""

import time
from collections.abc import Collection
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

import trio
from libp2p.abc import IHost, INetStream
from libp2p.connection_types import ConnectionType
from libp2p.network.connection.raw_connection import RawConnection
from libp2p.peer.id import ID
from libp2p.relay.circuit_v2.pb.circuit_pb2 import HopMessage, Status, StopMessage
from libp2p.relay.circuit_v2.pb.circuit_pb2 import PeerId as Peer
from libp2p.relay.circuit_v2.utils import write_delimited_msg
from multiaddr import Multiaddr

from registry.errors import PeerUnreachable
from registry.mesh import Knows, knows_nobody
from registry.mesh.libp2p.guards import (
    as_unreachable,
    caller_of,
    read_message,
    reraise_violation,
    reset,
)
from registry.mesh.libp2p.relay import HOP, MESSAGE_SECONDS
from registry.mesh.libp2p.stand_ins import new_protected_conn
from registry.records import PeerId

_ADDRESSES = 16


class _CircuitEnd(RawConnection):
    """Stream to a relay as a raw connection.

    It has no remote address, which marks it as relayed and keeps it from being counted under an IP address.
    """

    def get_remote_address(self) -> tuple[str, int] | None:
        return None


@dataclass(frozen=True, slots=True)
class ReservationGranted:
    """Reservation at a relay: the relay's addresses for it, and its lease in seconds, by the relay's clock."""

    addresses: tuple[str, ...]
    lease: float


class Circuits:
    """This node's ends of circuits. Every method runs in trio."""

    def __init__(
        self, host: IHost, swarm_key: str | None, *, knows: Knows = knows_nobody, carry: int = 0
    ) -> None:
        """Set what is accepted through a peer that is not our relay: `carry` circuits at a time, if both peers are known."""
        self._host = host
        self._swarm_key = swarm_key
        self._knows = knows
        self._carry = carry
        self._carried_streams: set[INetStream] = set()
        self.relays: Collection[PeerId] = ()

    async def reserve(self, relay: PeerId) -> ReservationGranted:
        """Ask a connected peer for a reservation; raise `PeerUnreachable` when it grants none."""
        with as_unreachable(f"{relay} is not a relay"), trio.fail_after(MESSAGE_SECONDS):
            stream = await self._host.new_stream(ID.from_string(relay), [HOP])
            try:
                own_peer = Peer(id=self._host.get_id().to_bytes())
                await write_delimited_msg(
                    stream, HopMessage(type=HopMessage.RESERVE, peer=own_peer)
                )
                reply = await read_message(stream, HopMessage)
            finally:
                await reset(stream)
            _require(reply)
            addresses = tuple(str(Multiaddr(a)) for a in reply.reservation.addrs[:_ADDRESSES])
            return ReservationGranted(addresses, reply.reservation.expire - time.time())

    async def dial(self, relay: PeerId, peer: PeerId) -> Any:
        """Connect to a peer through a connected relay, without a timeout; raise `PeerUnreachable`."""
        with as_unreachable(f"{peer} is not reached through {relay}"):
            stream = await self._host.new_stream(ID.from_string(relay), [HOP])
            async with AsyncExitStack() as failure:
                failure.push_async_callback(reset, stream)
                target = ID.from_string(peer)
                request = HopMessage(type=HopMessage.CONNECT, peer=Peer(id=target.to_bytes()))
                await write_delimited_msg(stream, request)
                _require(await read_message(stream, HopMessage))
                # The library applies the swarm key to inbound connections, but to outbound ones only if it dialled them.
                raw: Any = self._end(stream, relay, peer, initiator=True)
                if self._swarm_key is not None:
                    raw = new_protected_conn(raw, self._swarm_key)
                network: Any = self._host.get_network()
                connection = await network.upgrade_outbound_raw_conn(raw, target)
                failure.pop_all()
                return connection

    async def handle(self, stream: INetStream) -> None:
        """Accept a circuit from a relay of ours, or from one known peer for another, and keep it until it ends."""
        relay = caller_of(stream)
        try:
            with as_unreachable("the relay closed the stream"):
                with trio.fail_after(MESSAGE_SECONDS):
                    request = await read_message(stream, StopMessage)
                # Noise authenticates the asker later. The id that the relay states is displayed, and at most admits a circuit.
                asker = PeerId(str(ID(request.peer.id)))
                if request.type != StopMessage.CONNECT:
                    await _answer(stream, Status.UNEXPECTED_MESSAGE)
                elif relay in self.relays:
                    await self._accept(stream, relay, asker)
                elif not (self._knows(relay) and self._knows(asker)):
                    await _answer(stream, Status.PERMISSION_DENIED)
                elif len(self._carried_streams) >= self._carry:
                    await _answer(stream, Status.RESOURCE_LIMIT_EXCEEDED)
                else:
                    self._carried_streams.add(stream)
                    await self._accept(stream, relay, asker)
        except PeerUnreachable as error:
            await reset(stream)
            reraise_violation(error)
        finally:
            self._carried_streams.discard(stream)
        await reset(stream)

    async def _accept(self, stream: INetStream, relay: PeerId, asker: PeerId) -> None:
        await _answer(stream, Status.OK)
        end = self._end(stream, relay, asker, initiator=False)
        network: Any = self._host.get_network()
        await network.upgrade_inbound_raw_conn(end, end.get_transport_addresses()[0])

    def _end(
        self, stream: INetStream, relay: PeerId, peer: PeerId, *, initiator: bool
    ) -> _CircuitEnd:
        address = Multiaddr(f"/p2p/{relay}/p2p-circuit/p2p/{peer}")
        return _CircuitEnd(stream, initiator, ConnectionType.RELAYED, [address])


def _require(reply: HopMessage) -> None:
    if reply.type != HopMessage.STATUS or reply.status != Status.OK:
        raise PeerUnreachable(f"the relay answered with status {reply.status}")


async def _answer(stream: INetStream, status: Any) -> None:
    with trio.fail_after(MESSAGE_SECONDS):
        await write_delimited_msg(stream, StopMessage(type=StopMessage.STATUS, status=status))
