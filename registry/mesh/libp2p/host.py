"""libp2p host as a node configures it: noise and yamux over TCP, a private network if a key is given, gossipsub 1.1.

The log records of libp2p go to the node's own logger at debug level, one line each, and never to stderr. What the library logs
as an error is mostly a peer that left or lied, which is routine. Any peer can cause any number of these lines, so a log that is
always on must not contain them.

The gossip reader takes one message at a time, and judges each before it is believed or passed on. The library reads as fast as
a peer writes and starts a task for every message, so a peer could fill the memory with them. It also ends the whole node for a
message that it cannot decode.
"""

import logging
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import libp2p
import libp2p.pubsub.pubsub as library
import libp2p.transport.tcp.tcp as tcp_module
import trio
from libp2p.abc import IHost, INetStream
from libp2p.crypto.ed25519 import create_new_key_pair
from libp2p.crypto.x25519 import create_new_key_pair as create_noise_key_pair
from libp2p.custom_types import TProtocol
from libp2p.io.exceptions import IOException, MessageTooLarge
from libp2p.io.trio import TrioTCPStream
from libp2p.network.config import ConnectionConfig, RetryConfig
from libp2p.network.connection.exceptions import RawConnError
from libp2p.network.stream.exceptions import StreamEOF, StreamReset
from libp2p.peer.id import ID
from libp2p.pubsub.pb import rpc_pb2
from libp2p.pubsub.score import ScoreParams
from libp2p.pubsub.utils import maybe_consume_signed_record
from libp2p.rcmgr import ResourceManager
from libp2p.rcmgr.connection_limits import ConnectionLimits
from libp2p.rcmgr.manager import ResourceLimits
from libp2p.security.noise.transport import PROTOCOL_ID as NOISE
from libp2p.security.noise.transport import Transport as NoiseTransport
from libp2p.stream_muxer.yamux.yamux import PROTOCOL_ID as YAMUX
from libp2p.stream_muxer.yamux.yamux import Yamux
from libp2p.utils.varint import read_varint_prefixed_bytes_limited

from registry.errors import InvalidFrame
from registry.mesh import MAX_FRAME_BYTES, Arrived, PeerMisbehaved, Verdict
from registry.mesh.libp2p import Delegate
from registry.mesh.libp2p.guards import (
    SPARE,
    SPARE_OF_ONE,
    Callers,
    HardenedGossipSub,
    guard,
    harden,
    reset,
)
from registry.records import PeerId
from registry.settings import MeshSettings
from registry.signing import KEY_BYTES, Identity, peer_of


class TcpStream(TrioTCPStream):
    """TCP stream whose remote address is a pair of host and port in both families, also after it is closed.

    The library expects a pair from `getpeername`, and IPv6 sockets have four fields. Without an address, a connection counts as
    one through a relay, and under no address where connections are limited.
    """

    def get_remote_address(self) -> tuple[str, int] | None:
        """Return the host and port of the other end; `None` if it was gone before it was ever asked for."""
        if self._cached_remote_address is None:
            try:
                host, port, *_ = self.stream.socket.getpeername()
            except OSError:
                return None
            # A link-local address has a zone, which is this machine's and no part of the address.
            self._cached_remote_address = str(host).partition("%")[0], int(port)
        return self._cached_remote_address


def use_tcp_stream() -> None:
    """Put our class in the place of the library's; call it before any host is made."""
    patched: Any = tcp_module
    if not issubclass(patched.TrioTCPStream, TrioTCPStream):
        raise TypeError(
            "libp2p has changed: its TCP transport has another stream; review TcpStream"
        )
    patched.TrioTCPStream = TcpStream


_log = logging.getLogger("modelvine.mesh")

_LINE_LIMIT = 300


class _ForwardingHandler(logging.Handler):
    """Forwards the library's records without tracebacks, shortened because they quote what peers sent."""

    def emit(self, record: logging.LogRecord) -> None:
        line = record.getMessage().partition("\n")[0][:_LINE_LIMIT]
        _log.debug("%s: %r", record.name, line)


def route_logs() -> None:
    """Take over the library's loggers; call it after importing the library, which clears them."""
    library = logging.getLogger("libp2p")
    library.handlers = [_ForwardingHandler()]
    library.setLevel(logging.WARNING)
    library.propagate = False


MESSAGES = 4096
"""Messages that are read of one RPC; as many of the smallest frames fit into it."""

# Prefix of libp2p's id of an Ed25519 key; only peers with such a key publish here.
_ED25519 = bytes.fromhex("002408011220")


class HardenedPubsub(library.Pubsub):
    """Pubsub that survives hostile input, forwards only what was judged, and tells which peer forwarded a message."""

    def __init__(
        self,
        *positional: Any,
        delegate: Delegate,
        **keywords: Any,
    ) -> None:
        super().__init__(*positional, **keywords)
        self._delegate = delegate
        self._forwarders: dict[int, ID] = {}
        self._delivered: set[int] = set()
        self._died_again: set[ID] = set()
        self._writers: WeakKeyDictionary[INetStream, trio.Lock] = WeakKeyDictionary()
        # The library's counter starts at whole seconds: after a quick restart, new messages would look like old ones.
        self.counter = time.time_ns()

    def retire(self) -> None:
        """End the thread of the seen-message cache, which outlives every other part of the library."""
        self.seen_messages.stop()

    async def stream_handler(self, stream: INetStream) -> None:
        """Read a peer's messages; the guard around this disconnects a peer that sends malformed ones.

        A stream that was reset, or ended with its connection, is no fault: its peer has another connection, or opens one.
        """
        try:
            await self.continuously_read_stream(stream)
        except MessageTooLarge:
            raise
        except (StreamEOF, StreamReset):
            return
        except (IOException, RawConnError):
            # The writer learns of the reset, and opens another stream.
            await stream.reset()

    async def continuously_read_stream(self, stream: INetStream) -> None:
        """Read until the peer ends the stream; raise any error that its bytes cause."""
        peer = stream.muxed_conn.peer_id
        while self.manager.is_running:
            data = await read_varint_prefixed_bytes_limited(stream, self.max_inbound_rpc_size)
            rpc = rpc_pb2.RPC()
            rpc.ParseFromString(data)
            await self._take(rpc, peer)

    async def _take(self, rpc: rpc_pb2.RPC, peer: ID) -> None:
        if not maybe_consume_signed_record(rpc, self.host, peer):
            self._offended(peer)
            return
        for message in rpc.publish[:MESSAGES]:
            if self._is_subscribed_to_msg(message):
                await self.push_msg(peer, message)
                # A flood from one peer must not starve the other peers.
                await trio.lowlevel.checkpoint()
        if len(rpc.subscriptions) <= self.max_subscriptions_per_rpc:
            for change in rpc.subscriptions:
                self.handle_subscription(peer, change)
        if rpc.HasField("control"):
            await self.router.handle_rpc(rpc, peer)

    async def push_msg(self, msg_forwarder: ID, msg: rpc_pb2.Message) -> None:
        """Take a message in; one that libp2p rejects is an offence of the peer that forwarded it."""
        is_own = msg_forwarder == self.my_id
        if not is_own and (self._is_msg_seen(msg) or not self._passes(msg_forwarder, msg)):
            return
        self._forwarders[id(msg)] = msg_forwarder
        believed = False
        try:
            await super().push_msg(msg_forwarder, msg)
            believed = id(msg) in self._delivered
        finally:
            self._delivered.discard(id(msg))
            del self._forwarders[id(msg)]
        if not believed and not is_own:
            self._offended(msg_forwarder)

    def notify_subscriptions(self, publish_message: rpc_pb2.Message) -> None:
        """Deliver a message at once: the library's channel would drop silently, and forget the forwarder."""
        self._delivered.add(id(publish_message))
        forwarder = self._forwarders[id(publish_message)]
        if forwarder != self.my_id and len(publish_message.data) <= MAX_FRAME_BYTES:
            arrived = Arrived(bytes(publish_message.data), PeerId(str(forwarder)))
            self._delegate.note_event(arrived)

    def reopen(self, peer_id: ID) -> None:
        """Reopen the stream to a peer: one of its connections ended, perhaps the one that carried the stream."""
        self._handle_dead_peer(peer_id)

    def _handle_dead_peer(self, peer_id: ID) -> None:
        # While the peer is still connected, only a stream is dead, and the peer does not repeat its subscriptions.
        connected = self._peer_is_connected(peer_id)
        topics = [topic for topic, peers in self.peer_topics.items() if peer_id in peers]
        super()._handle_dead_peer(peer_id)
        if connected and topics:
            for topic in topics:
                self.peer_topics.setdefault(topic, set()).add(peer_id)
            self._peer_subscription_count[peer_id] = len(topics)

    async def _peer_stream_retry_task(self, peer_id: ID) -> None:
        # The library ignores a stream that dies while this task still sends over it, since one such task is at work already.
        await super()._peer_stream_retry_task(peer_id)
        if peer_id in self._died_again:
            self._died_again.discard(peer_id)
            # A peer that resets each stream while it is opened costs one a second.
            await trio.sleep(HEARTBEAT)
            self._schedule_peer_stream_retry(peer_id)

    def _schedule_peer_stream_retry(self, peer_id: ID) -> None:
        if peer_id in self._peer_stream_retries_pending:
            self._died_again.add(peer_id)
        super()._schedule_peer_stream_retry(peer_id)

    async def write_msg(self, stream: INetStream, rpc_msg: rpc_pb2.RPC) -> bool:
        """Write to a peer, one message at a time, without the signed addresses (300 bytes) that the library adds to each.

        Two tasks of the library write to one stream, and where the window is full, each in parts. A stream on which a write
        failed is reset: the peer would take the next message for the rest of the one before.
        """
        rpc_msg.ClearField("senderRecord")
        async with self._writers.setdefault(stream, trio.Lock()):
            written = False
            try:
                written = await super().write_msg(stream, rpc_msg)
            finally:
                if not written:
                    await reset(stream)
            return written

    def _offended(self, peer: ID) -> None:
        self._delegate.note_event(PeerMisbehaved(PeerId(str(peer))))

    def _passes(self, forwarder: ID, message: rpc_pb2.Message) -> bool:
        # A message in our own name comes from another machine that has our key; the registry learns of it by comparing.
        if message.from_id == self.my_id.to_bytes():
            return False
        verdict = Verdict.OFFENCE
        if len(message.data) <= MAX_FRAME_BYTES:
            with suppress(InvalidFrame):
                author = _publisher(message.from_id)
                verdict = self._delegate.judge(PeerId(str(forwarder)), author, message.data)
        if verdict is Verdict.OFFENCE:
            self._offended(forwarder)
        return verdict is Verdict.TAKE


def _publisher(from_id: bytes) -> PeerId:
    """Return the publisher of a message; raise `InvalidFrame` when it is no node."""
    if not from_id.startswith(_ED25519) or len(from_id) != len(_ED25519) + KEY_BYTES:
        raise InvalidFrame("only nodes with an Ed25519 key publish here")
    return peer_of(from_id[len(_ED25519) :])


HEARTBEAT = 1
"""Seconds between gossipsub's heartbeats; the library's own default is two minutes."""

STREAMS = 4096
"""Streams open at one time, all peers together; far more than the pipes, questions and pings of a full node."""

_RPC_BYTES = 2 * MAX_FRAME_BYTES
_NEGOTIATION = 5.0
# There is one topic; a newer version may subscribe to a few more.
_SUBSCRIPTIONS = 8
# Longer than any message is in transit; each remembered message takes some 200 bytes.
_SEEN_SECONDS = 120


@dataclass(frozen=True, slots=True)
class Libp2pHost:
    """A host and its gossip, made but not running."""

    host: IHost
    pubsub: HardenedPubsub
    gossip: HardenedGossipSub


def make_host(
    identity: Identity,
    settings: MeshSettings,
    *,
    swarm_key: str | None,
    topic: str,
    delegate: Delegate,
) -> Libp2pHost:
    """Make a guarded host. Call it in the trio thread."""
    harden()
    use_tcp_stream()
    route_logs()
    keys = create_new_key_pair(identity.seed)
    host = libp2p.new_host(
        key_pair=keys,
        # Set explicitly, because the library's defaults accept plaintext.
        sec_opt={NOISE: NoiseTransport(keys, noise_privkey=create_noise_key_pair().private_key)},
        muxer_opt={TProtocol(YAMUX): Yamux},
        connection_config=_connections(settings),
        resource_manager=_resources(settings),
        psk=swarm_key,
        disable_identify_address_discovery=True,
    )
    limit = settings.max_connections + SPARE
    per_address = settings.max_connections_per_address + SPARE_OF_ONE
    callers = Callers(limit=limit, per_address=per_address)
    guard(host, callers, delegate)
    # No retries: the redial loop makes better use of that time.
    network: Any = host.get_network()
    network.retry_config = RetryConfig(max_retries=0)
    gossip = _gossip()
    pubsub = HardenedPubsub(
        host,
        gossip,
        delegate=delegate,
        strict_signing=True,
        allowed_topics={topic},
        max_inbound_rpc_size=_RPC_BYTES,
        max_subscriptions_per_rpc=_SUBSCRIPTIONS,
        max_subscriptions_per_peer=_SUBSCRIPTIONS,
        seen_ttl=_SEEN_SECONDS,
    )
    return Libp2pHost(host, pubsub, gossip)


def _gossip() -> HardenedGossipSub:
    return HardenedGossipSub(
        protocols=[TProtocol("/meshsub/1.1.0")],  # 1.2 announces every message and doubles the CPU
        degree=6,
        degree_low=4,
        degree_high=8,
        gossip_window=2,  # heartbeats whose messages are offered to peers outside of the mesh
        gossip_history=5,  # heartbeats for which messages are kept, and may be requested
        heartbeat_initial_delay=0.1,
        heartbeat_interval=HEARTBEAT,
        prune_back_off=60,
        unsubscribe_back_off=10,
        direct_peers=None,  # no peer is exempt from the limits
        do_px=False,  # addresses come from signed records, not from the peer that prunes us
        # Scores are off: the library decays them wrongly, and charges an invalid message to the peer that relayed it. Our own
        # gate judges each message before it is passed on, and cuts off a peer that hands over what no node may believe.
        score_params=ScoreParams(),
        adaptive_gossip_enabled=False,  # it slows the heartbeat to half a minute in a quiet mesh
        spam_protection_enabled=False,  # it stops forwarding at 10 messages per second
        eclipse_protection_enabled=False,  # it counts addresses, and a site has one
        max_pending_messages_per_peer=100,  # for a peer whose subscriptions are not known yet
        pending_messages_ttl=30.0,
    )


def _connections(settings: MeshSettings) -> ConnectionConfig:
    return ConnectionConfig(
        max_connections=settings.max_connections + SPARE,
        max_connections_per_peer=3,  # two from simultaneous dials, and one that is closing
        min_connections=0,
        low_watermark=0,
        high_watermark=settings.max_connections + SPARE,
        dial_timeout=settings.dial_timeout,
        inbound_upgrade_timeout=settings.dial_timeout,
        outbound_upgrade_timeout=settings.dial_timeout,
        inbound_stream_protocol_negotiation_timeout=_NEGOTIATION,
        outbound_stream_protocol_negotiation_timeout=_NEGOTIATION,
    )


def _resources(settings: MeshSettings) -> ResourceManager:
    # Limits only: the parts that react to memory or to failures would close a busy node's connections.
    return ResourceManager(
        limits=ResourceLimits(max_connections=2 * settings.max_connections, max_streams=STREAMS),
        # The library's default is 256 connections each way, whatever `max_connections` says.
        connection_limits=ConnectionLimits(max_pending_inbound=64, max_pending_outbound=64),
        enable_metrics=False,
        enable_memory_limits=False,
        enable_circuit_breaker=False,
        enable_graceful_degradation=False,
    )
