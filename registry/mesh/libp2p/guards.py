"""Guards against defects of libp2p 0.8.1, each with its reason.

Each guard raises at startup when the code that it patches is gone, so that a new release cannot disable it silently.
Broad `except` clauses are deliberate here: libp2p raises arbitrary exceptions, and any of them ends the whole node.

Incoming connections, established or in their handshake, are limited in total and by address. A machine can have any number of
identities, but not of addresses. Several nodes may share an address, behind NAT or at one site, so the limit by address is
generous, and as many connections again may be opened in the following `RENEWED` seconds.
"""

import functools
import logging
import math
import struct
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Protocol, TypeVar

import libp2p.network.connection.swarm_connection as connection_module
import libp2p.pubsub.pubsub as pubsub_module
import libp2p.stream_muxer.muxer_multistream as muxer_module
import trio
from libp2p.abc import IHost, INetConn, INetStream
from libp2p.network.exceptions import SwarmException
from libp2p.peer.id import ID
from libp2p.pubsub.gossipsub import GossipSub
from libp2p.pubsub.rpc_queue import RpcQueue
from libp2p.stream_muxer.yamux.yamux import (
    FLAG_SYN,
    TYPE_PING,
    YAMUX_HEADER_FORMAT,
    Yamux,
    YamuxStream,
)
from libp2p.utils.varint import read_varint_prefixed_bytes_limited

from registry.errors import MeshError, PeerUnreachable, ProtocolViolation
from registry.intake.rate import RateLimit
from registry.mesh import PeerMisbehaved
from registry.mesh.libp2p import Delegate
from registry.mesh.libp2p.muxer import GuardedYamux, batching
from registry.records import PeerId

_log = logging.getLogger("modelvine.mesh")


class _Message(Protocol):
    """Protobuf message; the protobuf library is not imported here."""

    def ParseFromString(self, data: bytes, /) -> object: ...  # noqa: N802 (the library's name)


_M = TypeVar("_M", bound=_Message)

MAX_MESSAGE_BYTES = 64 * 1024
"""Longest message of the relay and dial-back protocols."""

CONNECTIONS_REFUSED, HANDSHAKES_FAILED = "connections_refused", "handshakes_failed"

SPARE, SPARE_OF_ONE = 32, 8
"""Connections beyond the limits, in total and of one address, that may exist until the peers to evict are chosen."""

RENEWED = 60.0
"""Seconds in which an address may open as many new connections as it may hold."""


class Callers:
    """Counter of inbound connections, by address; time is an argument."""

    def __init__(self, *, limit: int, per_address: int) -> None:
        self._limit = limit
        self._per_address = per_address
        self._open: Counter[str] = Counter()
        self._rate_limit = RateLimit(rate=per_address / RENEWED, burst=2 * per_address)

    def enter(self, address: str, now: float) -> str:
        """Count a new connection; return why it is refused, empty when it is not."""
        if self._open.total() >= self._limit:
            return f"{self._limit} incoming connections are open"
        if self._open[address] >= self._per_address:
            return f"one address holds {self._per_address} connections"
        if not self._rate_limit.allows(address, now):
            return "one address opens connections too often"
        self._open[address] += 1
        return ""

    def leave(self, address: str) -> None:
        """Stop counting a connection that ended."""
        self._open[address] -= 1
        if not self._open[address]:
            del self._open[address]


STREAMS_PER_SECOND, STREAMS_AT_ONCE = 100.0, 1_000.0
"""Streams that one peer may open; each costs a negotiation, whatever it carries."""

QUEUE = 1024
"""Messages that may be queued for this node or for one peer; libp2p's limit of 32 silently drops bursts."""


class HardenedGossipSub(GossipSub):
    """GossipSub whose lazy gossip also reaches pruned peers, which need it most, and that sends each message once."""

    def _get_in_topic_gossipsub_peers_from_minus(
        self,
        topic: str,
        num_to_select: int,
        minus: Any,
        backoff_check: bool = False,  # noqa: FBT001, FBT002 (the library's signature)
    ) -> Any:
        # Backoff forbids GRAFT for a minute, not IHAVE; the library confuses the two in its heartbeat.
        if sys._getframe(1).f_code.co_name == "_handle_topic_heartbeat":  # noqa: SLF001
            backoff_check = False
        return super()._get_in_topic_gossipsub_peers_from_minus(
            topic, num_to_select, minus, backoff_check
        )

    def _prune_pending_messages(self, peer_id: ID) -> None:
        # For each message, the library copies these lists of all subscribed peers that accept no stream, and logs a warning
        # for each: with 250 such peers, three tenths of the thread's time went there.
        pending = self._pending_messages.get(peer_id, [])
        oldest = time.time() - self._pending_messages_ttl
        fresh = next(
            (n for n, (queued_at, _) in enumerate(pending) if queued_at >= oldest), len(pending)
        )
        del pending[: max(fresh, len(pending) - self._max_pending_messages_per_peer)]
        if not pending:
            self._pending_messages.pop(peer_id, None)

    async def flush_pending_messages(self, peer_id: ID) -> None:
        """Send nothing yet: the library drops here what waits for a subscription, or sends it once more as recent."""

    async def send_recent_messages(self, peer_id: ID, topic: str) -> None:
        """Send a new subscriber what waited for its subscription, then what is recent, each message once."""
        self._prune_pending_messages(peer_id)
        pending = self._pending_messages.pop(peer_id, [])
        pubsub: Any = self.pubsub
        recent = set(self.mcache.window(topic))
        for _, rpc in pending:
            if not recent.issuperset(map(pubsub.get_message_id, rpc.publish)):
                await pubsub.write_msg(pubsub.peers[peer_id], rpc)
        await super().send_recent_messages(peer_id, topic)


def harden() -> None:
    """Patch the library once for the whole process; call it before any host is made."""
    _require(pubsub_module, "SUBSCRIPTION_CHANNEL_SIZE", "RpcQueue")
    _require(pubsub_module.Pubsub, "push_msg", "notify_subscriptions", "stream_handler")
    _require(pubsub_module.Pubsub, "continuously_read_stream", "_handle_dead_peer", "write_msg")
    _require(pubsub_module.Pubsub, "_peer_is_connected", "_schedule_peer_stream_retry")
    _require(pubsub_module.Pubsub, "_peer_stream_retry_task")
    _require(pubsub_module.Pubsub, "_is_msg_seen", "_is_subscribed_to_msg", "handle_subscription")
    _require(GossipSub, "_get_in_topic_gossipsub_peers_from_minus", "_handle_topic_heartbeat")
    _require(GossipSub, "_prune_pending_messages")
    _require(muxer_module, "Yamux")
    _require(Yamux, "_measure_rtt_loop", "_write_frame", "_read_data_body")
    _require(YamuxStream, "_auto_tune_and_send_window_update")
    _require(connection_module, "logging")
    # This module logs to the root logger, and each call gives an unconfigured process a handler on stderr.
    patched: Any = connection_module
    patched.logging = logging.getLogger("libp2p.network.connection")
    patched = pubsub_module
    patched.SUBSCRIPTION_CHANNEL_SIZE = QUEUE
    patched.RpcQueue = functools.partial(RpcQueue, max_size=QUEUE)
    # It measures every connection twice a minute, even where `ping` does, and sometimes from a start time of zero.
    patched = Yamux
    patched._measure_rtt_loop = _nothing  # noqa: SLF001
    # The library creates its own class, whichever class a host is given.
    patched = muxer_module
    patched.Yamux = GuardedYamux
    original = YamuxStream._auto_tune_and_send_window_update  # noqa: SLF001
    if original.__name__ != "_batched_window_update":
        patched = YamuxStream
        patched._auto_tune_and_send_window_update = batching(original)  # noqa: SLF001


def guard(host: IHost, callers: Callers, delegate: Delegate) -> None:
    """Guard one host; call this after it is made and before it runs.

    The delegate learns of each inbound connection that is refused or does not finish its handshake, and of each stream that
    violates its protocol.
    """
    network: Any = host.get_network()
    _require(network, "common_stream_handler", "_inbound_limiter", "upgrade_inbound_raw_conn")
    _require(network, "unblock_peer", "close_peer", "auto_connector", "upgrade_outbound_raw_conn")
    _require(network.auto_connector, "maybe_connect")
    network.set_stream_handler(_guarded(host, network.common_stream_handler, delegate))
    # The library takes a token for every inbound connection and keeps it until the host ends. A host would accept
    # nothing more after `max_connections` connections, however short. That limit is enforced where they register.
    network._inbound_limiter = trio.CapacityLimiter(math.inf)  # noqa: SLF001
    # It dials every peer that it has heard of until half of `max_connections` are open, whatever its watermarks say.
    network.auto_connector.maybe_connect = _nothing
    shaking = _telling(network.upgrade_inbound_raw_conn, delegate)
    upgrade = _ending_with_its_connection(shaking)
    network.upgrade_inbound_raw_conn = _counting(upgrade, callers, delegate)


async def ping(connection: INetConn, timeout: float) -> bool:
    """Send a yamux ping and measure the round trip; return whether the answer, or any data, came within `timeout` seconds.

    A peer that is busy answers late, and is not silent. libp2p's own ping opens a stream, which takes nine packets more.
    """
    muxed: Any = connection.muxed_conn
    muxed._ping_id += 1  # noqa: SLF001
    muxed._ping_event = answered = trio.Event()  # noqa: SLF001
    # Set before sending: the answer may arrive before the write returns.
    muxed._ping_sent_time = sent = trio.current_time()  # noqa: SLF001
    frame = struct.pack(YAMUX_HEADER_FORMAT, 0, TYPE_PING, FLAG_SYN, 0, muxed._ping_id)  # noqa: SLF001
    with trio.move_on_after(timeout):
        await muxed._write_frame(frame)  # noqa: SLF001
        await answered.wait()
    return answered.is_set() or muxed.heard >= sent


@contextmanager
def as_unreachable(message: str) -> Iterator[None]:
    """Turn any exception of libp2p while it deals with one peer into `PeerUnreachable`; let a `MeshError` pass."""
    try:
        yield
    except MeshError:
        raise
    except Exception as error:
        raise PeerUnreachable(f"{message}: {type(error).__name__}") from error


@contextmanager
def as_value_error(message: str) -> Iterator[None]:
    """Turn any exception of libp2p while it reads untrusted bytes into `ValueError`."""
    try:
        yield
    except Exception as error:
        raise ValueError(f"{message}: {type(error).__name__}") from error


async def read_message(stream: INetStream, kind: type[_M]) -> _M:
    """Read one protobuf message; raise `ProtocolViolation` for malformed bytes."""
    data = await read_varint_prefixed_bytes_limited(stream, MAX_MESSAGE_BYTES)
    message = kind()
    try:
        with as_value_error("no message"):
            message.ParseFromString(data)
    except ValueError as error:
        raise ProtocolViolation(str(error)) from error
    return message


class OpenRequests:
    """Requests that peers have begun, at most `limit`. For a further one, the oldest of the peer that has most is given up."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._peers: dict[trio.CancelScope, str] = {}

    @property
    def full(self) -> bool:
        """Whether the next one takes the place of another."""
        return len(self._peers) >= self._limit

    @contextmanager
    def within(self, peer: str, seconds: float) -> Iterator[None]:
        """Take a place for as long as the block runs; raise `TooSlowError` after so many seconds, or when it is given up."""
        if self.full:
            fullest = Counter(self._peers.values()).most_common(1)[0][0]
            oldest = next(scope for scope, peer in self._peers.items() if peer == fullest)
            del self._peers[oldest]
            oldest.cancel()
        with trio.fail_after(seconds) as scope:
            self._peers[scope] = peer
            try:
                yield
            finally:
                self._peers.pop(scope, None)


def reraise_violation(error: PeerUnreachable) -> None:
    """Raise `error` again if it is the peer's fault; a lost connection is not."""
    if isinstance(error, ProtocolViolation):
        raise error


@contextmanager
def ignore_errors() -> Iterator[None]:
    """Ignore what libp2p raises when something is closed that may already be closed."""
    with suppress(Exception):
        yield


async def reset(stream: INetStream) -> None:
    """Cut both directions of a stream, which may be cut already; cancellation does not prevent it."""
    with trio.CancelScope(shield=True), ignore_errors():
        await stream.reset()


def caller_of(stream: INetStream) -> PeerId:
    """Return the peer at the other end of a stream."""
    return PeerId(str(stream.muxed_conn.peer_id))


def _guarded(
    host: IHost,
    inner: Callable[[INetStream], Awaitable[None]],
    delegate: Delegate,
) -> Callable[[INetStream], Awaitable[None]]:
    pace = RateLimit(rate=STREAMS_PER_SECOND, burst=STREAMS_AT_ONCE)

    async def handle(stream: INetStream) -> None:
        peer = stream.muxed_conn.peer_id
        if not pace.allows(caller_of(stream), trio.current_time()):
            delegate.note_event(PeerMisbehaved(caller_of(stream)))
            with ignore_errors():
                await stream.reset()
            return
        # Any exception here would end the node; a malformed pubsub message raises one.
        try:
            await inner(stream)
        except ProtocolViolation:
            delegate.note_event(PeerMisbehaved(caller_of(stream)))
        except Exception as error:  # noqa: BLE001 (it would end the node)
            protocol = str(stream.get_protocol())
            _log.warning("a stream of %s failed: %s (%s)", peer, type(error).__name__, protocol)
            with ignore_errors():
                await stream.reset()
            if protocol.startswith("/meshsub"):
                with ignore_errors():
                    await host.get_network().close_peer(peer)

    return handle


def _telling(
    upgrade: Callable[..., Awaitable[Any]], delegate: Delegate
) -> Callable[..., Awaitable[Any]]:
    async def upgrade_or_tell(raw: Any, *positional: Any) -> Any:
        read, spoke = raw.read, False

        async def read_first(n: int | None = None) -> bytes:
            nonlocal spoke
            data: bytes = await read(n)
            spoke = bool(data)
            del raw.read
            return data

        raw.read = read_first
        try:
            return await upgrade(raw, *positional)
        except SwarmException:
            # A client that closes before it sends anything only checks whether the port is open.
            if spoke:
                delegate.note_refusal(HANDSHAKES_FAILED)
            raise

    return upgrade_or_tell


def _ending_with_its_connection(
    upgrade: Callable[..., Awaitable[Any]],
) -> Callable[..., Awaitable[Any]]:
    async def upgrade_and_wait(*positional: Any) -> Any:
        # The library's task for an inbound connection waits until the host ends. Raising ends it with its connection.
        connection = await upgrade(*positional)
        await connection.event_closed.wait()
        raise ConnectionResetError("the connection has ended")

    return upgrade_and_wait


def _counting(
    upgrade: Callable[..., Awaitable[Any]], callers: Callers, delegate: Delegate
) -> Callable[..., Awaitable[Any]]:
    async def count_and_upgrade(raw: Any, *positional: Any) -> Any:
        # Before the handshake: the library checks its limits only after that cost, and never checks addresses.
        address, *_ = raw.get_remote_address() or ("",)
        if reason := callers.enter(address, trio.current_time()):
            delegate.note_refusal(CONNECTIONS_REFUSED)
            _log.warning("refused a connection: %s", reason)
            await raw.close()
            raise ConnectionResetError(reason)
        try:
            return await upgrade(raw, *positional)
        finally:
            callers.leave(address)

    return count_and_upgrade


async def _nothing(*_: object) -> None:
    """Do nothing, in place of a part of the library that must not act."""


def _require(owner: object, *names: str) -> None:
    for name in names:
        if not hasattr(owner, name):
            raise RuntimeError(f"libp2p has changed: {owner!r} has no {name}; review the guards")
