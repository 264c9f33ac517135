"""Which libp2p host do we run? Noise and yamux over TCP, a private net where a key is given, gossipsub 1.1."""

from dataclasses import dataclass
from typing import Any

import libp2p
from libp2p.abc import IHost
from libp2p.crypto.ed25519 import create_new_key_pair
from libp2p.crypto.x25519 import create_new_key_pair as create_noise_key_pair
from libp2p.custom_types import TProtocol
from libp2p.network.config import ConnectionConfig, RetryConfig
from libp2p.rcmgr import ResourceManager
from libp2p.rcmgr.manager import ResourceLimits
from libp2p.security.noise.transport import PROTOCOL_ID as NOISE
from libp2p.security.noise.transport import Transport as NoiseTransport
from libp2p.stream_muxer.yamux.yamux import PROTOCOL_ID as YAMUX
from libp2p.stream_muxer.yamux.yamux import Yamux

from registry.mesh import MAX_FRAME_BYTES, Judge
from registry.mesh.hardening import HardGossipSub, guard, harden
from registry.mesh.libp2p_logs import route_logs
from registry.mesh.libp2p_pubsub import Deliver, HardPubsub, Offended
from registry.settings import MeshSettings
from registry.signing import Identity

HEARTBEAT = 1
"""Seconds between gossipsub's heartbeats; the library's own default is two minutes."""

STREAMS = 4096
"""Streams open at one time, all peers together; far above pipes, questions and pings of a full node."""

_RPC_BYTES = 2 * MAX_FRAME_BYTES
_NEGOTIATION = 5.0


@dataclass(frozen=True, slots=True)
class Host:
    """A host and its gossip, made but not running."""

    host: IHost
    pubsub: HardPubsub
    gossip: HardGossipSub


def make_host(
    identity: Identity,
    settings: MeshSettings,
    *,
    swarm_key: str | None,
    topic: str,
    judge: Judge,
    deliver: Deliver,
    offended: Offended,
) -> Host:
    """Make a guarded host. Call it in the trio thread."""
    harden()
    route_logs()
    keys = create_new_key_pair(identity.seed)
    host = libp2p.new_host(
        key_pair=keys,
        # Named, because the library's defaults accept plaintext.
        sec_opt={NOISE: NoiseTransport(keys, noise_privkey=create_noise_key_pair().private_key)},
        muxer_opt={TProtocol(YAMUX): Yamux},
        connection_config=_connections(settings),
        resource_manager=_resources(settings),
        psk=swarm_key,
        disable_identify_address_discovery=True,
    )
    guard(host)
    # Each retry costs the redial loop time that it spends better itself.
    network: Any = host.get_network()
    network.retry_config = RetryConfig(max_retries=0)
    gossip = _gossip()
    pubsub = HardPubsub(
        host,
        gossip,
        judge=judge,
        deliver=deliver,
        offended=offended,
        strict_signing=True,
        allowed_topics={topic},
        max_inbound_rpc_size=_RPC_BYTES,
    )
    return Host(host, pubsub, gossip)


def _gossip() -> HardGossipSub:
    return HardGossipSub(
        protocols=[TProtocol("/meshsub/1.1.0")],  # 1.2 announces every message and doubles the CPU
        degree=6,
        degree_low=4,
        degree_high=12,
        heartbeat_initial_delay=0.1,
        heartbeat_interval=HEARTBEAT,
        adaptive_gossip_enabled=False,  # it slows the heartbeat to half a minute in a quiet mesh
        spam_protection_enabled=False,  # it stops forwarding at 10 messages per second
        eclipse_protection_enabled=False,  # it counts addresses, and a site has one
    )


def _connections(settings: MeshSettings) -> ConnectionConfig:
    return ConnectionConfig(
        max_connections=settings.max_connections,
        min_connections=0,
        low_watermark=0,
        high_watermark=settings.max_connections,
        dial_timeout=settings.dial_timeout,
        inbound_upgrade_timeout=settings.dial_timeout,
        outbound_upgrade_timeout=settings.dial_timeout,
        inbound_stream_protocol_negotiation_timeout=_NEGOTIATION,
        outbound_stream_protocol_negotiation_timeout=_NEGOTIATION,
    )


def _resources(settings: MeshSettings) -> ResourceManager:
    # Limits only: what reacts to memory or to failures would close a busy node's connections.
    return ResourceManager(
        limits=ResourceLimits(max_connections=2 * settings.max_connections, max_streams=STREAMS),
        enable_metrics=False,
        enable_memory_limits=False,
        enable_circuit_breaker=False,
        enable_graceful_degradation=False,
    )
