"""Ways in which an attacker reaches a node: bytes on its port, or a libp2p peer without any of our guards."""

import random
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

import libp2p
import trio
from libp2p.abc import INetStream
from libp2p.crypto.ed25519 import create_new_key_pair
from libp2p.crypto.x25519 import create_new_key_pair as create_noise_key_pair
from libp2p.custom_types import StreamHandlerFn, TProtocol
from libp2p.network.config import ConnectionConfig, RetryConfig
from libp2p.network.stream.exceptions import StreamError
from libp2p.peer.peerinfo import info_from_p2p_addr
from libp2p.pubsub.pb import rpc_pb2
from libp2p.security.noise.transport import PROTOCOL_ID as NOISE
from libp2p.security.noise.transport import Transport as NoiseTransport
from libp2p.stream_muxer.yamux.yamux import PROTOCOL_ID as YAMUX
from libp2p.stream_muxer.yamux.yamux import Yamux
from multiaddr import Multiaddr

from registry.signing import Identity

ASK = TProtocol("/modelvine/ask/1")
PIPE = TProtocol("/modelvine/pipe/1")
MESHSUB = TProtocol("/meshsub/1.1.0")
TOPIC = "modelvine/1"

_PATIENCE = 0.25
"""Seconds that an attack waits for what its victim says to it."""

_SIGNED = b"libp2p-pubsub:"


@dataclass(slots=True)
class Target:
    """A node under attack."""

    address: str
    random: random.Random

    def identity(self) -> Identity:
        """Make a new identity, the same for the same seed."""
        return Identity(self.random.randbytes(32))

    async def tcp(self) -> trio.SocketStream:
        """Connect to its port."""
        _, _, host, _, port, *_ = self.address.split("/")
        return await trio.open_tcp_stream(host, int(port))

    @asynccontextmanager
    async def peer(
        self, identity: Identity | None = None, *, handler: StreamHandlerFn | None = None
    ) -> AsyncIterator["Peer"]:
        """Take part in the mesh for a while; `handler` serves the streams on which the victim asks."""
        identity = identity or self.identity()
        keys = create_new_key_pair(identity.seed)
        noise = NoiseTransport(keys, noise_privkey=create_noise_key_pair().private_key)
        host = libp2p.new_host(
            key_pair=keys,
            sec_opt={NOISE: noise},
            muxer_opt={TProtocol(YAMUX): Yamux},
            connection_config=ConnectionConfig(min_connections=0, low_watermark=0),
            disable_identify_address_discovery=True,
        )
        network: Any = host.get_network()
        network.retry_config = RetryConfig(max_retries=0)
        info = info_from_p2p_addr(Multiaddr(self.address))
        async with host.run(listen_addrs=[]):
            if handler is not None:
                # Set before there is a connection: the victim compares with a newcomer at once.
                host.set_stream_handler(ASK, handler)
            await host.connect(info)
            yield Peer(host, info.peer_id, identity)
            with trio.move_on_after(1, shield=True):
                await host.close()


@dataclass(slots=True)
class Peer:
    """A connected peer that may say anything."""

    host: Any
    victim: Any
    identity: Identity

    async def write_below(self, data: bytes) -> None:
        """Write to the victim inside the encryption, where yamux should speak."""
        (connection,) = self.host.get_network().get_connections(self.victim)
        await connection.muxed_conn.secured_conn.write(data)

    async def say(self, protocol: TProtocol, data: bytes, *, wait: float = 0.0) -> bytes:
        """Write to a stream of its own, and return what comes back within `wait` seconds."""
        stream: INetStream = await self.host.new_stream(self.victim, [protocol])
        answer = b""
        # A victim that resets the stream has answered.
        with suppress(StreamError), trio.move_on_after(wait or _PATIENCE):
            await stream.write(data)
            if wait:
                answer = await stream.read(1 << 16)
        with suppress(StreamError):
            await stream.reset()
        return answer

    async def ask(self, question: bytes, *, wait: float = 3.0) -> bytes:
        """Put a question as a well-behaved peer would; return the answer with its length."""
        return await self.say(ASK, struct.pack("!I", len(question)) + question, wait=wait)

    async def publish(self, *messages: rpc_pb2.Message, stream: INetStream | None = None) -> None:
        """Gossip messages, all in one frame."""
        data = prefixed(rpc_pb2.RPC(publish=messages).SerializeToString())
        if stream is not None:
            await stream.write(data)
        else:
            await self.say(MESHSUB, data)


def message(data: bytes, author: Identity, seqno: bytes, *, topic: str = TOPIC) -> rpc_pb2.Message:
    """Return a gossip message, signed as libp2p does."""
    gossip = rpc_pb2.Message(
        from_id=bytes.fromhex("002408011220") + author.public,
        seqno=seqno,
        data=data,
        topicIDs=[topic],
    )
    gossip.signature = author.sign(_SIGNED, gossip.SerializeToString())
    return gossip


def prefixed(data: bytes) -> bytes:
    """Put the varint length before a message, as multistream and pubsub do."""
    size, head = len(data), bytearray()
    while size > 127:
        head.append(size & 127 | 128)
        size >>= 7
    return bytes([*head, size]) + data


Attack = Callable[[Target], Awaitable[None]]


async def attempt(attack: Attack, target: Target) -> str:
    """Run an attack; return what stopped it, or an empty string when nothing did."""
    try:
        await attack(target)
    # Whatever the victim does to defend itself is an answer, and none of it is a fault of the attack.
    except BaseException as failure:
        first = failure
        while isinstance(first, BaseExceptionGroup):
            first = first.exceptions[0]
        if not isinstance(first, Exception):
            raise
        return f"{type(first).__name__}: {first}"[:100]
    return ""
