"""Host of libp2p as a node configures it. Noise and yamux over TCP, a private net where a key is given, gossipsub 1.1."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import libp2p
from libp2p.abc import IHost
from libp2p.crypto.ed25519 import create_new_key_pair
from libp2p.crypto.x25519 import create_new_key_pair as create_noise_key_pair
from libp2p.custom_types import TProtocol
from libp2p.network.config import ConnectionConfig, RetryConfig
from libp2p.pubsub.score import ScoreParams
from libp2p.rcmgr import ResourceManager
from libp2p.rcmgr.manager import ResourceLimits
from libp2p.security.noise.transport import PROTOCOL_ID as NOISE
from libp2p.security.noise.transport import Transport as NoiseTransport
from libp2p.stream_muxer.yamux.yamux import PROTOCOL_ID as YAMUX
from libp2p.stream_muxer.yamux.yamux import Yamux

from registry.mesh import MAX_FRAME_BYTES, Judge
from registry.mesh.libp2p.connection_limits import Callers
from registry.mesh.libp2p.gossip import Deliver, HardPubsub, Offended
from registry.mesh.libp2p.guards import HardGossipSub, guard, harden
from registry.mesh.libp2p.logs import route_logs
from registry.settings import MeshSettings
from registry.signing import Identity

HEARTBEAT = 1
"""Seconds between gossipsub's heartbeats; the library's own default is two minutes."""

STREAMS = 4096
"""Streams open at one time, all peers together; far above pipes, questions and pings of a full node."""

_RPC_BYTES = 2 * MAX_FRAME_BYTES
_NEGOTIATION = 5.0
# There is one topic; a newer version may subscribe to a few more.
_SUBSCRIPTIONS = 8
# Longer than any message is on its way; each of those remembered takes some 200 bytes.
_SEEN_SECONDS = 120


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
    refused: Callable[[], object],
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
    most, per_address = settings.max_connections, settings.max_connections_per_address
    guard(host, Callers(most=most, per_address=per_address), refused)
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
        max_subscriptions_per_rpc=_SUBSCRIPTIONS,
        max_subscriptions_per_peer=_SUBSCRIPTIONS,
        seen_ttl=_SEEN_SECONDS,
    )
    return Host(host, pubsub, gossip)


def _gossip() -> HardGossipSub:
    return HardGossipSub(
        protocols=[TProtocol("/meshsub/1.1.0")],  # 1.2 announces every message and doubles the CPU
        degree=6,
        degree_low=4,
        degree_high=8,
        gossip_window=2,  # heartbeats whose messages are offered to those outside of the mesh
        gossip_history=5,  # heartbeats for which messages are kept, and may be asked for
        heartbeat_initial_delay=0.1,
        heartbeat_interval=HEARTBEAT,
        prune_back_off=60,
        unsubscribe_back_off=10,
        direct_peers=None,  # nobody is above the limits
        do_px=False,  # addresses come from signed records, not from whoever prunes us
        # Scores are off: the library decays them wrongly, and counts what is invalid for whoever relayed it. Our own gate
        # judges each message before it is passed on, and cuts off whoever hands over what nobody may believe.
        score_params=ScoreParams(),
        adaptive_gossip_enabled=False,  # it slows the heartbeat to half a minute in a quiet mesh
        spam_protection_enabled=False,  # it stops forwarding at 10 messages per second
        eclipse_protection_enabled=False,  # it counts addresses, and a site has one
        max_pending_messages_per_peer=100,  # for a peer that has not said yet what it subscribes to
        pending_messages_ttl=30.0,
    )


def _connections(settings: MeshSettings) -> ConnectionConfig:
    return ConnectionConfig(
        max_connections=settings.max_connections,
        max_connections_per_peer=3,  # two that dial each other at once, and one that is on its way out
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
