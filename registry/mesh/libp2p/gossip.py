"""Gossip reader: one message at a time, each judged before it is believed or passed on.

The library reads as fast as a peer writes and gives every message a task of its own, so a peer could fill the memory with
them; and it ends the whole node for messages that it cannot decode.
"""

import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import libp2p.pubsub.pubsub as library
import trio
from libp2p.abc import INetStream
from libp2p.exceptions import ParseError
from libp2p.io.exceptions import IOException
from libp2p.network.connection.exceptions import RawConnError
from libp2p.network.stream.exceptions import StreamEOF, StreamError
from libp2p.peer.id import ID
from libp2p.pubsub.pb import rpc_pb2
from libp2p.pubsub.utils import maybe_consume_signed_record
from libp2p.utils.varint import read_varint_prefixed_bytes_limited

from registry.errors import InvalidFrame
from registry.mesh import MAX_FRAME_BYTES, Judge, Verdict
from registry.records import PeerId
from registry.signing import KEY_BYTES, peer_of

MESSAGES = 4096
"""Messages in one RPC that are read; with the smallest frames so many fit."""

Deliver = Callable[[ID, rpc_pb2.Message], None]
Offended = Callable[[ID], None]

# What libp2p's id of an Ed25519 key begins with; nobody else publishes here.
_ED25519 = bytes.fromhex("002408011220")


class HardPubsub(library.Pubsub):
    """Pubsub that survives what peers send, passes on only what was judged, and says who handed a message on."""

    def __init__(
        self,
        *positional: Any,
        judge: Judge,
        deliver: Deliver,
        offended: Offended,
        **named: Any,
    ) -> None:
        super().__init__(*positional, **named)
        self._judge = judge
        self._deliver = deliver
        self._offended = offended
        self._forwarders: dict[int, ID] = {}
        self._delivered: set[int] = set()
        # The library counts from whole seconds: after a quick restart its messages look like old ones.
        self.counter = time.time_ns()

    def retire(self) -> None:
        """End the thread of the cache of seen messages, which outlives every other part of the library."""
        self.seen_messages.stop()

    async def stream_handler(self, stream: INetStream) -> None:
        """Read a peer's messages; whoever sends what is no message is cut off by the guard around this."""
        try:
            await self.continuously_read_stream(stream)
        except (StreamEOF, IOException, RawConnError):
            pass
        except StreamError:
            await stream.reset()
            self._handle_dead_peer(stream.muxed_conn.peer_id)
        # A peer that is given up on must not stay connected but unheard.
        wire: Any = stream
        if not wire.muxed_stream.recv_closed:
            raise ParseError("the reader gave up")

    async def continuously_read_stream(self, stream: INetStream) -> None:
        """Read until the peer ends the stream; raise whatever its bytes cause."""
        peer = stream.muxed_conn.peer_id
        while self.manager.is_running:
            said = await read_varint_prefixed_bytes_limited(stream, self.max_inbound_rpc_size)
            rpc = rpc_pb2.RPC()
            rpc.ParseFromString(said)
            await self._take(rpc, peer)

    async def _take(self, rpc: rpc_pb2.RPC, peer: ID) -> None:
        if not maybe_consume_signed_record(rpc, self.host, peer):
            self._offended(peer)
            return
        for message in rpc.publish[:MESSAGES]:
            if self._is_subscribed_to_msg(message):
                await self.push_msg(peer, message)
                # One peer's flood must leave the others their turn.
                await trio.lowlevel.checkpoint()
        if len(rpc.subscriptions) <= self.max_subscriptions_per_rpc:
            for change in rpc.subscriptions:
                self.handle_subscription(peer, change)
        if rpc.HasField("control"):
            await self.router.handle_rpc(rpc, peer)

    async def push_msg(self, msg_forwarder: ID, msg: rpc_pb2.Message) -> None:
        """Take a message in; what libp2p cannot believe is an offence of whoever hands it over."""
        ours = msg_forwarder == self.my_id
        if not ours and (self._is_msg_seen(msg) or not self._passes(msg_forwarder, msg)):
            return
        self._forwarders[id(msg)] = msg_forwarder
        believed = False
        try:
            await super().push_msg(msg_forwarder, msg)
            believed = id(msg) in self._delivered
        finally:
            self._delivered.discard(id(msg))
            del self._forwarders[id(msg)]
        if not believed and not ours:
            self._offended(msg_forwarder)

    def notify_subscriptions(self, publish_message: rpc_pb2.Message) -> None:
        """Hand a message over at once: the library's channel drops silently, and forgets the forwarder."""
        self._delivered.add(id(publish_message))
        self._deliver(self._forwarders[id(publish_message)], publish_message)

    def reopen(self, peer_id: ID) -> None:
        """Open the stream to a peer anew: one of its connections ended, maybe the one that carried the stream."""
        self._handle_dead_peer(peer_id)

    def _handle_dead_peer(self, peer_id: ID) -> None:
        # While a peer is connected it is no deader than one stream, and does not say again what it is subscribed to.
        connected = self._peer_is_connected(peer_id)
        topics = [topic for topic, peers in self.peer_topics.items() if peer_id in peers]
        super()._handle_dead_peer(peer_id)
        if connected and topics:
            for topic in topics:
                self.peer_topics.setdefault(topic, set()).add(peer_id)
            self._peer_subscription_count[peer_id] = len(topics)

    async def write_msg(self, stream: INetStream, rpc_msg: rpc_pb2.RPC) -> bool:
        """Write to a peer without our signed addresses: the library adds their 300 bytes to whatever it says."""
        rpc_msg.ClearField("senderRecord")
        return await super().write_msg(stream, rpc_msg)

    def _passes(self, forwarder: ID, message: rpc_pb2.Message) -> bool:
        # Our own words come back to us from a machine that has our key; the registry hears of it by comparing.
        if message.from_id == self.my_id.to_bytes():
            return False
        verdict = Verdict.OFFENCE
        if len(message.data) <= MAX_FRAME_BYTES:
            with suppress(InvalidFrame):
                author = _publisher(message.from_id)
                verdict = self._judge(PeerId(str(forwarder)), author, message.data)
        if verdict is Verdict.OFFENCE:
            self._offended(forwarder)
        return verdict is Verdict.TAKE


def _publisher(from_id: bytes) -> PeerId:
    """Return who published a message; raise `InvalidFrame` when it is no node."""
    if not from_id.startswith(_ED25519) or len(from_id) != len(_ED25519) + KEY_BYTES:
        raise InvalidFrame("only nodes with an Ed25519 key publish here")
    return peer_of(from_id[len(_ED25519) :])
