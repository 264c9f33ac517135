"""Guards against defects of libp2p 0.8.1, each with its reason.

Each guard raises at start when what it patches is gone, so that a new release cannot disarm it silently.
Broad `except` is the point of this module: libp2p raises what it likes, and any of it ends the whole node.

Limits of incoming connections, whole or still shaking hands: all together, and by address.

A machine can have as many identities as it likes, but not as many addresses. Several nodes may share one, behind NAT or at one
site, so the bound by address is generous, and as many connections again may be begun in the `RENEWED` seconds after.
"""

import functools
import logging
import math
import struct
import sys
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
from registry.mesh.libp2p.muxer import GuardedYamux, batching
from registry.records import PeerId


class _Message(Protocol):
    """A protobuf message, whose library is not known here."""

    def ParseFromString(self, data: bytes, /) -> object: ...  # noqa: N802 (the library's name)


_M = TypeVar("_M", bound=_Message)

MAX_MESSAGE_BYTES = 64 * 1024
"""The longest message of a relay, or about dialling back."""

CONNECTIONS_REFUSED, HANDSHAKES_FAILED = "connections_refused", "handshakes_failed"

SPARE, SPARE_OF_ONE = 32, 8
"""Connections beyond the bounds, of all and of one address, that may stand until it is chosen who gives way."""

RENEWED = 60.0
"""Seconds in which an address may begin anew as many connections as it may hold."""


class Callers:
    """Counts the connections that others opened; time is an argument."""

    def __init__(self, *, most: int, per_address: int) -> None:
        self._most = most
        self._per_address = per_address
        self._open: Counter[str] = Counter()
        self._pace = RateLimit(rate=per_address / RENEWED, burst=2 * per_address)

    def enter(self, address: str, now: float) -> str:
        """Count a connection that begins; return why it is refused, empty when it is not."""
        if self._open.total() >= self._most:
            return f"{self._most} incoming connections are open"
        if self._open[address] >= self._per_address:
            return f"one address holds {self._per_address} connections"
        if not self._pace.allows(address, now):
            return "one address opens connections too often"
        self._open[address] += 1
        return ""

    def leave(self, address: str) -> None:
        """Count a connection that ended."""
        self._open[address] -= 1
        if not self._open[address]:
            del self._open[address]


STREAMS_PER_SECOND, STREAMS_AT_ONCE = 100.0, 1_000.0
"""Streams that one peer may open; each costs us a negotiation, whatever is said on it."""

_log = logging.getLogger("modelvine.mesh")

QUEUE = 1024
"""Messages that may wait for us or for one peer; libp2p's 32 silently lose a burst."""


class HardGossipSub(GossipSub):
    """GossipSub whose lazy gossip reaches pruned peers, the very ones that need it."""

    def _get_in_topic_gossipsub_peers_from_minus(
        self,
        topic: str,
        num_to_select: int,
        minus: Any,
        backoff_check: bool = False,  # noqa: FBT001, FBT002 (the library's signature)
    ) -> Any:
        # Back-off forbids GRAFT for a minute, not IHAVE; the library mixes the two up in its heartbeat.
        if sys._getframe(1).f_code.co_name == "_handle_topic_heartbeat":  # noqa: SLF001
            backoff_check = False
        return super()._get_in_topic_gossipsub_peers_from_minus(
            topic, num_to_select, minus, backoff_check
        )


def harden() -> None:
    """Patch the library once for the whole process; call it before any host is made."""
    _require(pubsub_module, "SUBSCRIPTION_CHANNEL_SIZE", "RpcQueue")
    _require(pubsub_module.Pubsub, "push_msg", "notify_subscriptions", "stream_handler")
    _require(pubsub_module.Pubsub, "continuously_read_stream", "_handle_dead_peer", "write_msg")
    _require(pubsub_module.Pubsub, "_peer_is_connected", "_schedule_peer_stream_retry")
    _require(pubsub_module.Pubsub, "_is_msg_seen", "_is_subscribed_to_msg", "handle_subscription")
    _require(GossipSub, "_get_in_topic_gossipsub_peers_from_minus", "_handle_topic_heartbeat")
    _require(muxer_module, "Yamux")
    _require(Yamux, "_measure_rtt_loop", "_write_frame")
    _require(YamuxStream, "_auto_tune_and_send_window_update")
    _require(connection_module, "logging")
    # Its calls go to the root logger, and each gives an unconfigured process a handler on stderr.
    patched: Any = connection_module
    patched.logging = logging.getLogger("libp2p.network.connection")
    patched = pubsub_module
    patched.SUBSCRIPTION_CHANNEL_SIZE = QUEUE
    patched.RpcQueue = functools.partial(RpcQueue, max_size=QUEUE)
    # It measures every connection twice a minute, whether or not `ping` does, and at times from a clock's zero.
    patched = Yamux
    patched._measure_rtt_loop = _nothing  # noqa: SLF001
    # Whichever class a host is given, the library makes its own.
    patched = muxer_module
    patched.Yamux = GuardedYamux
    original = YamuxStream._auto_tune_and_send_window_update  # noqa: SLF001
    if original.__name__ != "_batched_window_update":
        patched = YamuxStream
        patched._auto_tune_and_send_window_update = batching(original)  # noqa: SLF001


def guard(
    host: IHost,
    callers: Callers,
    *,
    refused: Callable[[str], object],
    offended: Callable[[ID], object],
) -> None:
    """Guard one host, between its making and its running.

    `refused` is called with an event for each caller that is turned away or does not end its handshake, `offended` for each
    stream that breaks its protocol's rules.
    """
    network: Any = host.get_network()
    _require(network, "common_stream_handler", "_inbound_limiter", "upgrade_inbound_raw_conn")
    _require(network, "unblock_peer", "close_peer", "auto_connector", "upgrade_outbound_raw_conn")
    _require(network.auto_connector, "maybe_connect")
    network.set_stream_handler(_guarded(host, network.common_stream_handler, offended))
    # The library takes a token for every inbound connection and keeps it until the host ends, so a host
    # goes deaf after `max_connections` callers, however short; that limit is kept where connections register.
    network._inbound_limiter = trio.CapacityLimiter(math.inf)  # noqa: SLF001
    # It dials whoever it has heard of until half of `max_connections` stand, whatever its watermarks say.
    network.auto_connector.maybe_connect = _nothing
    shaking = _telling(network.upgrade_inbound_raw_conn, refused)
    upgrade = _ending_with_its_connection(shaking)
    network.upgrade_inbound_raw_conn = _counting(upgrade, callers, refused)


async def ping(connection: INetConn, timeout: float) -> bool:
    """Have the other end's yamux answer, and measure the round trip; return whether it did in time.

    libp2p's own ping opens a stream, which takes nine packets more.
    """
    muxed: Any = connection.muxed_conn
    muxed._ping_id += 1  # noqa: SLF001
    muxed._ping_event = answered = trio.Event()  # noqa: SLF001
    # Before it is sent: the answer may be there before we are back.
    muxed._ping_sent_time = trio.current_time()  # noqa: SLF001
    frame = struct.pack(YAMUX_HEADER_FORMAT, 0, TYPE_PING, FLAG_SYN, 0, muxed._ping_id)  # noqa: SLF001
    with trio.move_on_after(timeout):
        await muxed._write_frame(frame)  # noqa: SLF001
        await answered.wait()
    return answered.is_set()


@contextmanager
def unreachable(what: str) -> Iterator[None]:
    """Turn whatever libp2p raises while it deals with one peer into `PeerUnreachable`."""
    try:
        yield
    except MeshError:
        raise
    except Exception as error:
        raise PeerUnreachable(f"{what}: {type(error).__name__}") from error


@contextmanager
def malformed(what: str) -> Iterator[None]:
    """Turn whatever libp2p raises while it reads a stranger's bytes into `ValueError`."""
    try:
        yield
    except Exception as error:
        raise ValueError(f"{what}: {type(error).__name__}") from error


async def read_message(stream: INetStream, kind: type[_M]) -> _M:
    """Read one protobuf message; raise `ProtocolViolation` for bytes that are none."""
    data = await read_varint_prefixed_bytes_limited(stream, MAX_MESSAGE_BYTES)
    message = kind()
    try:
        with malformed("no message"):
            message.ParseFromString(data)
    except ValueError as error:
        raise ProtocolViolation(str(error)) from error
    return message


def blame(error: PeerUnreachable) -> None:
    """Raise an error again that is the peer's fault; that a peer is lost is nobody's."""
    if isinstance(error, ProtocolViolation):
        raise error


@contextmanager
def indifferent() -> Iterator[None]:
    """Ignore what libp2p raises while something is closed that may be closed already."""
    with suppress(Exception):
        yield


def _guarded(
    host: IHost,
    inner: Callable[[INetStream], Awaitable[None]],
    offended: Callable[[ID], object],
) -> Callable[[INetStream], Awaitable[None]]:
    pace = RateLimit(rate=STREAMS_PER_SECOND, burst=STREAMS_AT_ONCE)

    async def handle(stream: INetStream) -> None:
        peer = stream.muxed_conn.peer_id
        if not pace.allows(PeerId(str(peer)), trio.current_time()):
            offended(peer)
            with indifferent():
                await stream.reset()
            return
        # Any exception here ends the node; a malformed pubsub message is one of them.
        try:
            await inner(stream)
        except ProtocolViolation:
            offended(peer)
        except Exception as error:  # noqa: BLE001 (it would end the node)
            protocol = str(stream.get_protocol())
            _log.warning("a stream of %s failed: %s (%s)", peer, type(error).__name__, protocol)
            with indifferent():
                await stream.reset()
            if protocol.startswith("/meshsub"):
                with indifferent():
                    await host.get_network().close_peer(peer)

    return handle


def _telling(
    upgrade: Callable[..., Awaitable[Any]], refused: Callable[[str], object]
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
            # Who closes without a word looks only whether the port is open.
            if spoke:
                refused(HANDSHAKES_FAILED)
            raise

    return upgrade_or_tell


def _ending_with_its_connection(
    upgrade: Callable[..., Awaitable[Any]],
) -> Callable[..., Awaitable[Any]]:
    async def upgrade_and_wait(*positional: Any) -> Any:
        # The library's task for an inbound connection waits for the end of the host; raising ends it in time.
        connection = await upgrade(*positional)
        await connection.event_closed.wait()
        raise ConnectionResetError("the connection has ended")

    return upgrade_and_wait


def _counting(
    upgrade: Callable[..., Awaitable[Any]], callers: Callers, refused: Callable[[str], object]
) -> Callable[..., Awaitable[Any]]:
    async def count_and_upgrade(raw: Any, *positional: Any) -> Any:
        # Before the handshake: the library looks at its limits when that is paid for, and at addresses never.
        address, *_ = raw.get_remote_address() or ("",)
        if why := callers.enter(address, trio.current_time()):
            refused(CONNECTIONS_REFUSED)
            _log.warning("refused a connection: %s", why)
            await raw.close()
            raise ConnectionResetError(why)
        try:
            return await upgrade(raw, *positional)
        finally:
            callers.leave(address)

    return count_and_upgrade


async def _nothing(*_: object) -> None:
    """Stand in for a part of the library that must not act."""


def _require(owner: object, *names: str) -> None:
    for name in names:
        if not hasattr(owner, name):
            raise RuntimeError(f"libp2p has changed: {owner!r} has no {name}; review the guards")
