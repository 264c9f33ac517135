"""AutoNAT v1 service: whether a peer can be dialled from here. Asked by those who do not know whether others reach them.

Only the address that the asker's own connection comes from is dialled, so nobody can have us knock at a stranger's door, and
only its key opens: another service at that port does not count.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

import trio
from libp2p.abc import IHost, INetStream
from libp2p.custom_types import TProtocol
from libp2p.host.autonat.pb.autonat_pb2 import Message
from libp2p.peer.id import ID
from libp2p.relay.circuit_v2.utils import read_delimited_msg, write_delimited_msg
from libp2p.security.pnet.protector import new_protected_conn
from multiaddr import Multiaddr

from registry.errors import PeerUnreachable
from registry.intake.rate import Pace
from registry.mesh.libp2p.guards import indifferent, unreachable
from registry.mesh.libp2p.watch import is_relayed
from registry.records import PeerId

DIALBACK = TProtocol("/libp2p/autonat/1.0.0")

DIAL_SECONDS = 3.0
"""Seconds that a dial back may take."""

ASK_SECONDS = 10.0
"""Seconds that the answer to such a question may take."""

AT_ONCE = 4
"""Dials back at one time; more are refused."""

PORTS = 2
"""Ports of one asker that are tried."""

_EVERY_SECONDS = 15.0


class Dialback:
    """Asks, and answers. Every method runs in trio."""

    def __init__(self, host: IHost, swarm_key: str | None) -> None:
        self._host = host
        self._swarm_key = swarm_key
        self._open = 0
        self._askers = Pace(rate=1 / _EVERY_SECONDS, burst=2)

    async def ask(self, peer: PeerId, addresses: Sequence[str]) -> bool | None:
        """Ask a connected peer to dial us; return what it found, or `None` when it did not try."""
        with unreachable(f"{peer} dials nobody back"), trio.fail_after(ASK_SECONDS):
            stream = await self._host.new_stream(ID.from_string(peer), [DIALBACK])
            try:
                own = Message.PeerInfo(
                    id=self._host.get_id().to_bytes(),
                    addrs=[Multiaddr(a.partition("/p2p/")[0]).to_bytes() for a in addresses],
                )
                asked = Message(type=Message.DIAL, dial=Message.Dial(peer=own))
                await write_delimited_msg(stream, asked)
                reply = await read_delimited_msg(stream, Message)
            finally:
                await _reset(stream)
        verdicts = {Message.OK: True, Message.E_DIAL_ERROR: False}
        return verdicts.get(reply.dialResponse.status)

    async def handle(self, stream: INetStream) -> None:
        """Answer one question; a peer's fault costs it this stream and nothing else."""
        try:
            with unreachable("the asker broke off"), trio.fail_after(ASK_SECONDS):
                asked = await read_delimited_msg(stream, Message)
                status, address = await self._try(stream, asked)
                found = Message.DialResponse(status=status, addr=address)
                await write_delimited_msg(
                    stream, Message(type=Message.DIAL_RESPONSE, dialResponse=found)
                )
                await stream.close()
        except PeerUnreachable:
            await _reset(stream)

    async def _try(self, stream: INetStream, asked: Message) -> tuple[Any, bytes]:
        wire: Any = stream.muxed_conn
        observed = wire.get_remote_address()
        peer = stream.muxed_conn.peer_id
        if asked.type != Message.DIAL:
            return Message.E_BAD_REQUEST, b""
        allowed = self._askers.allows(PeerId(str(peer)), trio.current_time())
        if is_relayed(wire) or self._open >= AT_ONCE or not allowed:
            return Message.E_DIAL_REFUSED, b""
        self._open += 1
        try:
            for port in islice(_ports(asked.dial.peer.addrs), PORTS):
                address = Multiaddr(_multiaddr(observed[0], port))
                if await self._reached(address, peer):
                    return Message.OK, address.to_bytes()
        finally:
            self._open -= 1
        return Message.E_DIAL_ERROR, b""

    async def _reached(self, address: Multiaddr, peer: ID) -> bool:
        network: Any = self._host.get_network()
        reached = False
        with indifferent(), trio.move_on_after(DIAL_SECONDS):
            dialled = network.transport_manager.transport_for_dialing(address).dial
            raw = await dialled(Multiaddr(f"{address}/p2p/{peer}"))
            try:
                secret = self._swarm_key
                wire = raw if secret is None else new_protected_conn(raw, secret)
                await network.upgrader.upgrade_security(wire, True, peer)  # noqa: FBT003
                reached = True
            finally:
                with trio.CancelScope(shield=True), indifferent():
                    await raw.close()
        return reached


def _ports(addresses: Iterable[bytes]) -> Iterator[str]:
    seen = set()
    for packed in islice(addresses, 16):
        port = Multiaddr(packed).value_for_protocol("tcp")
        if port and port not in seen:
            seen.add(port)
            yield port


def _multiaddr(host: str, port: str) -> str:
    return f"/{'ip6' if ':' in host else 'ip4'}/{host}/tcp/{port}"


async def _reset(stream: INetStream) -> None:
    with trio.CancelScope(shield=True), indifferent():
        await stream.reset()
