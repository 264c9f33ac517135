"""NAT traversal of a node: asks to be dialled back, holds reservations at relays, and is a relay if configured.

It includes the AutoNAT v1 service, by which peers learn whether they can be dialled from outside. Only the IP address of the
asker's own connection is dialled, so no peer can make this node probe a stranger. Only an answer with the asker's key counts,
not another service at that port.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Protocol

import trio
from libp2p.abc import IHost, INetStream
from libp2p.custom_types import TProtocol
from libp2p.host.autonat.pb.autonat_pb2 import Message
from libp2p.peer.id import ID
from libp2p.relay.circuit_v2.utils import write_delimited_msg
from multiaddr import Multiaddr

from registry.errors import LimitReached, PeerUnreachable
from registry.intake import dialable
from registry.intake.rate import RateLimit
from registry.intake.shares import Shares
from registry.mesh import Knows
from registry.mesh.libp2p.circuit import Circuits
from registry.mesh.libp2p.guards import (
    as_unreachable,
    ignore_errors,
    read_message,
    reraise_violation,
    reset,
)
from registry.mesh.libp2p.relay import (
    HOP,
    STOP,
    CarriedCircuits,
    Relay,
    RelayingNode,
    RelayLimits,
    RelayTable,
)
from registry.mesh.libp2p.reservations import Reachability, Reservations
from registry.mesh.libp2p.stand_ins import new_protected_conn
from registry.mesh.libp2p.watch import Watch, is_relayed
from registry.records import PeerId, Reach
from registry.settings import MeshSettings

DIALBACK = TProtocol("/libp2p/autonat/1.0.0")

DIAL_SECONDS = 3.0
"""Seconds that a dial-back may take."""

ASK_SECONDS = 10.0
"""Seconds that the answer to a dial-back request may take."""

AT_ONCE = 4
"""Dial-backs at one time; more, and those of a peer that has its share, are refused."""

PORTS = 2
"""Ports of one asker that are tried."""

_EVERY_SECONDS = 15.0


class Dialback:
    """Client and server of AutoNAT v1. Every method runs in trio."""

    def __init__(self, host: IHost, swarm_key: str | None) -> None:
        self._host = host
        self._swarm_key = swarm_key
        self._shares = Shares(AT_ONCE)
        self._asker_limit = RateLimit(rate=1 / _EVERY_SECONDS, burst=2)

    async def ask(self, peer: PeerId, addresses: Sequence[str]) -> bool | None:
        """Ask a connected peer to dial us; return whether it could, `None` when it did not try; raise `PeerUnreachable`."""
        with as_unreachable(f"{peer} does not dial back"), trio.fail_after(ASK_SECONDS):
            stream = await self._host.new_stream(ID.from_string(peer), [DIALBACK])
            try:
                own_info = Message.PeerInfo(
                    id=self._host.get_id().to_bytes(),
                    addrs=[Multiaddr(a.partition("/p2p/")[0]).to_bytes() for a in addresses],
                )
                request = Message(type=Message.DIAL, dial=Message.Dial(peer=own_info))
                await write_delimited_msg(stream, request)
                reply = await read_message(stream, Message)
            finally:
                await reset(stream)
        verdicts = {Message.OK: True, Message.E_DIAL_ERROR: False}
        return verdicts.get(reply.dialResponse.status)

    async def handle(self, stream: INetStream) -> None:
        """Answer one request; a peer's fault ends only this stream. Raise `ProtocolViolation` for a malformed message."""
        try:
            with as_unreachable("the caller closed the stream"), trio.fail_after(ASK_SECONDS):
                request = await read_message(stream, Message)
                status, address = await self._try(stream, request)
                response = Message.DialResponse(status=status, addr=address)
                await write_delimited_msg(
                    stream, Message(type=Message.DIAL_RESPONSE, dialResponse=response)
                )
                await stream.close()
        except PeerUnreachable as error:
            await reset(stream)
            reraise_violation(error)

    async def _try(self, stream: INetStream, request: Message) -> tuple[Any, bytes]:
        wire: Any = stream.muxed_conn
        observed = wire.get_remote_address()
        peer = stream.muxed_conn.peer_id
        if request.type != Message.DIAL:
            return Message.E_BAD_REQUEST, b""
        asker = PeerId(str(peer))
        if is_relayed(wire) or not self._asker_limit.allows(asker, trio.current_time()):
            return Message.E_DIAL_REFUSED, b""
        try:
            with self._shares.hold_place(asker):
                for port in islice(_ports(request.dial.peer.addrs), PORTS):
                    address = Multiaddr(_multiaddr(observed[0], port))
                    if await self._reached(address, peer):
                        return Message.OK, address.to_bytes()
        except LimitReached:
            return Message.E_DIAL_REFUSED, b""
        return Message.E_DIAL_ERROR, b""

    async def _reached(self, address: Multiaddr, peer: ID) -> bool:
        network: Any = self._host.get_network()
        reached = False
        with ignore_errors(), trio.move_on_after(DIAL_SECONDS):
            dialled = network.transport_manager.transport_for_dialing(address).dial
            raw = await dialled(Multiaddr(f"{address}/p2p/{peer}"))
            try:
                secret = self._swarm_key
                wire = raw if secret is None else new_protected_conn(raw, secret)
                await network.upgrader.upgrade_security(wire, True, peer)  # noqa: FBT003
                reached = True
            finally:
                with trio.CancelScope(shield=True), ignore_errors():
                    await raw.close()
        return reached


def _ports(addresses: Iterable[bytes]) -> Iterator[str]:
    seen = set()
    for packed in islice(addresses, 16):
        try:
            port = Multiaddr(packed).value_for_protocol("tcp")
        except (LookupError, ValueError):
            continue  # of another transport, such as QUIC, or malformed
        if port and port not in seen:
            seen.add(port)
            yield port


def _multiaddr(host: str, port: str) -> str:
    return f"/{'ip6' if ':' in host else 'ip4'}/{host}/tcp/{port}"


TICK = 0.5
"""Seconds between checks of what is to be asked."""

CIRCUIT_IDLE = 60.0
"""Seconds that a connection through a relay is kept while no pipe runs over it, where there is no direct one."""

CIRCUIT_TICK = 2.0
"""Seconds between checks for idle circuits; one beside a direct connection is closed at the next check."""

RELAY_COUNTS = (
    "reservations",
    "circuits",
    "carried",
    "reserved",
    "opened",
    "refused",
    "cut",
    "bytes",
)


class NatNode(RelayingNode, Protocol):
    """A node whose NAT is traversed."""

    def busy_wires(self) -> set[int]:
        """Return the `id` of each connection that carries a pipe."""

    def tell_addresses(self) -> None:
        """Report our addresses if they have changed."""


class Nat:
    """NAT traversal of this node: dial-back checks, reservations and relaying. Every method runs in trio."""

    def __init__(
        self,
        host: IHost,
        settings: MeshSettings,
        swarm_key: str | None,
        watch: Watch,
        *,
        node: NatNode,
        knows: Knows,
    ) -> None:
        self._host = host
        self._settings = settings
        self._watch = watch
        self._node = node
        self._dialback = Dialback(host, swarm_key)
        self._reachability = Reachability()
        self._reservations = Reservations(PeerId(str(host.get_id())))
        self.relay_counts = dict.fromkeys(RELAY_COUNTS, 0)
        self._relay_table = RelayTable(
            RelayLimits(
                reservations=settings.relay_reservations if settings.relay else 0,
                circuits=settings.relay_circuits,
                circuits_per_peer=settings.relay_circuits_per_peer,
                size=settings.relay_bytes,
                seconds=settings.relay_seconds,
                lease=settings.relay_lease,
            ),
            knows,
        )
        carried = CarriedCircuits(settings.carry, knows)
        self._relay = Relay(host, self._relay_table, carried, node, self.relay_counts)
        self.circuits = Circuits(host, swarm_key, knows=knows, carry=settings.carry)

    @property
    def addresses(self) -> tuple[str, ...]:
        """Our addresses at relays; none when peers reach us directly."""
        return self._reservations.addresses

    def open(self) -> None:
        """Answer streams from now on; call this before the host listens."""
        self._host.set_stream_handler(STOP, self.circuits.handle)
        self._host.set_stream_handler(DIALBACK, self._dialback.handle)
        if self._settings.relay or self._settings.carry:
            self._host.set_stream_handler(HOP, self._relay.handle)

    async def run(self) -> None:
        """Ask, reserve and renew until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._check_reachability)
            nursery.start_soon(self._maintain_reservations)
            nursery.start_soon(self._close_idle_circuits)

    async def _check_reachability(self) -> None:
        while self._settings.nat == "auto":
            await self._next_look()
            # Only this machine reaches us: there is no NAT to traverse.
            if dialable.is_local_only(Reach(mesh=tuple(self._node.own_addresses()))):
                continue
            peer = self._reachability.next(self._watch.peers(directly=True), trio.current_time())
            if peer is None:
                continue
            try:
                reached = await self._dialback.ask(peer, self._node.own_addresses())
            except PeerUnreachable:
                reached = None
            self._reachability.note_answer(peer, reached, trio.current_time())

    async def _maintain_reservations(self) -> None:
        while True:
            await self._next_look()
            connected = self._watch.peers(directly=True)
            self._relay_table.retain_connected(connected)
            self._relay.update_counts()
            for relay in self._reservations.relays - connected:
                self._reservations.note_disconnected(relay)
            if self._is_hidden():
                await self._reserve_next(connected)
            else:
                self._reservations.clear()
            self.circuits.relays = self._reservations.relays
            self._node.tell_addresses()

    async def _reserve_next(self, connected: set[PeerId]) -> None:
        relay = self._reservations.next(connected, trio.current_time())
        if relay is None:
            return
        try:
            granted = await self.circuits.reserve(relay)
        except PeerUnreachable:
            self._reservations.note_refused(relay, trio.current_time())
        else:
            now = trio.current_time()
            self._reservations.note_granted(relay, granted.addresses, granted.lease, now)

    async def _close_idle_circuits(self) -> None:
        idle_since: dict[int, float] = {}
        while True:
            await trio.sleep(CIRCUIT_TICK)
            busy, now, before = self._node.busy_wires(), trio.current_time(), idle_since
            idle_since = {}
            for conn, has_better in self._watch.relayed():
                if id(conn.muxed_conn) in busy:
                    continue
                since = idle_since[id(conn)] = before.get(id(conn), now)
                if now - since >= (CIRCUIT_TICK if has_better else CIRCUIT_IDLE):
                    with ignore_errors():
                        await conn.close()

    def _is_hidden(self) -> bool:
        return self._settings.nat == "yes" or (
            self._settings.nat == "auto" and self._reachability.is_hidden
        )

    async def _next_look(self) -> None:
        with trio.move_on_after(TICK):
            await self._watch.changed.wait()
