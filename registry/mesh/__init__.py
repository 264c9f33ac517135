"""Mesh as the registry sees it: frames to all nodes, a question to one peer, a pipe to one peer.

`memory` joins many nodes in one process, `libp2p` joins machines; one contract suite runs over both.
Nothing here is reliable: frames may be lost, duplicated or reordered. Consistency comes from `registry.sync`.
"""

from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

from registry.records import PeerId

MAX_FRAME_BYTES = 256 * 1024
"""The largest frame that is published or accepted; a larger one is an error for its sender."""

MAX_QUESTION_BYTES = 2 * 1024 * 1024
"""The largest question of `ask`: the names of the greatest number of nodes, with room to spare."""

MAX_ANSWER_BYTES = 8 * 1024 * 1024
"""The largest answer of `ask`."""


@dataclass(frozen=True, slots=True)
class Arrived:
    """A frame came in. `via` is the peer that forwarded it to us, not its author."""

    frame: bytes
    via: PeerId


@dataclass(frozen=True, slots=True)
class Joined:
    """The first connection to a peer is open."""

    peer: PeerId


@dataclass(frozen=True, slots=True)
class PeerLeft:
    """The last connection to a peer has ended."""

    peer: PeerId


@dataclass(frozen=True, slots=True)
class Restarted:
    """The mesh came back after a failure: announce and compare again."""


@dataclass(frozen=True, slots=True)
class PeerMisbehaved:
    """A peer sent what no honest peer sends."""

    peer: PeerId


MeshEvent = Arrived | Joined | PeerLeft | Restarted | PeerMisbehaved


class Verdict(StrEnum):
    """What to do with a frame that a neighbour forwards."""

    TAKE = "take"
    """Take it in, and pass it on."""
    DROP = "drop"
    """Do neither."""
    OFFENCE = "offence"
    """Do neither, and blame the neighbour."""


class Direction(StrEnum):
    """Which end opened a connection."""

    INBOUND = "inbound"
    OUTBOUND = "outbound"


class Origin(StrEnum):
    """Source of a connection, or of the address at which it was dialled."""

    INBOUND = "inbound"
    BOOTSTRAP = "bootstrap"
    RECORD = "record"
    MDNS = "mdns"
    RENDEZVOUS = "rendezvous"
    ASKED = "asked"


@dataclass(frozen=True, slots=True)
class PeerConnection:
    """One live peer as the mesh knows it; `round_trip` is seconds, 0.0 when it was never measured.

    `wires` is the number of open connections to it: more than one where both ends dialled at the same time.
    """

    peer: PeerId
    address: str
    direction: Direction
    relayed: bool = False
    round_trip: float = 0.0
    origin: Origin = Origin.INBOUND
    wires: int = 1


class Pipe(Protocol):
    """A byte stream to one authenticated peer."""

    @property
    def peer(self) -> PeerId:
        """The peer at the other end, as the transport authenticated it."""

    async def read(self) -> bytes:
        """Return the next bytes, `b""` at the end; raise `PeerUnreachable` when the stream was cut."""

    async def write(self, chunk: bytes) -> None:
        """Send all of `chunk`; raise `PeerUnreachable` when the stream was cut."""

    async def finish(self) -> None:
        """Tell the other end that nothing more will be written; earlier bytes still arrive, whatever follows."""

    async def reset(self) -> None:
        """Cut the stream in both directions, at once; harmless when it is closed already."""


Answerer = Callable[[PeerId, bytes], Coroutine[Any, Any, bytes]]
"""Answers a peer's question. An exception costs that peer its answer and nothing else."""

PipeHandler = Callable[[Pipe], Coroutine[Any, Any, None]]
"""Serves one incoming pipe until it returns; the mesh resets the pipe afterwards.

It is not cancelled when the pipe is cut: its reads and writes raise `PeerUnreachable`.
"""


Judge = Callable[[PeerId, PeerId, bytes], Verdict]
"""Judges a frame by the neighbour that forwards it, its publisher, and its bytes. Called in the mesh's own thread."""


def accept_every_frame(via: PeerId, author: PeerId, frame: bytes) -> Verdict:  # noqa: ARG001 (a judge's signature)
    """Accept every frame, for meshes that carry other frames than ours."""
    return Verdict.TAKE


Knows = Callable[[PeerId], bool]
"""Says whether the registry holds a peer's record. Called in the mesh's own thread."""


def knows_nobody(peer: PeerId) -> bool:  # noqa: ARG001 (its signature)
    """Know no peer, for meshes without a registry."""
    return False


def peer_in(address: str) -> PeerId:
    """Return the peer that a multiaddr ends in, empty when it names none."""
    _, _, peer = address.rpartition("/p2p/")
    return PeerId(peer if "/" not in peer else "")


class Mesh(Protocol):
    """One node's place in the mesh. Methods may be called once `start` has returned."""

    @property
    def peer(self) -> PeerId:
        """Our own id."""

    async def start(
        self,
        answer: Answerer,
        serve_pipe: PipeHandler,
        judge: Judge = accept_every_frame,
        knows: Knows = knows_nobody,
    ) -> None:
        """Listen, dial the bootstrap peers in the background, and keep both up until `stop`."""

    async def stop(self) -> None:
        """Close every connection and return when nothing of the mesh runs any more."""

    def events(self) -> AsyncIterator[MeshEvent]:
        """Return the events in order, for one reader. When the reader lags, frames are dropped and counted."""

    async def publish(self, frame: bytes) -> None:
        """Hand a frame to the gossip; it may get lost. Raise `InvalidFrame` when too long, or `MeshDown`."""

    async def ask(self, peer: PeerId, question: bytes, *, timeout: float) -> bytes:
        """Ask one peer a question, and wait at most `timeout` seconds for its answer.

        Raise `PeerUnreachable`, `MeshDown`, or `LimitReached` when the question is too long.
        """

    async def open_pipe(self, peer: PeerId, *, timeout: float) -> Pipe:
        """Open a byte stream to a connected or dialable peer.

        Raise `PeerUnreachable`, `MeshDown`, or `LimitReached` when too many pipes are open here.
        """

    async def connect(self, address: str, *, timeout: float) -> PeerId:
        """Dial a multiaddr that ends in `/p2p/<peer id>`; raise `PeerUnreachable` or `MeshDown`."""

    async def disconnect(self, peer: PeerId) -> None:
        """Close every connection to a peer; harmless when there is none."""

    async def protocols(self, peer: PeerId) -> tuple[str, ...]:
        """Return the protocols that a peer announced, or our own for our id; empty where they are not known now."""

    def set_bootstrap(self, addresses: tuple[str, ...]) -> None:
        """Replace the bootstrap addresses, which are dialled until they answer; may be called before `start`."""

    def bootstrap_failures(self) -> Mapping[str, str]:
        """Return why bootstrap addresses did not answer at their latest dial, without those whose peer is connected."""

    def set_neighbours(self, addresses: tuple[str, ...]) -> None:
        """Replace the addresses that are dialled while there are too few connections."""

    def addresses(self) -> tuple[str, ...]:
        """Return our own dialable multiaddrs, each ending in `/p2p/<peer id>`; empty while the mesh is down."""

    def connections(self) -> tuple[PeerConnection, ...]:
        """Return the peers that are connected now, one entry each."""

    def dropped_frames(self) -> int:
        """Return how many frames were dropped because a queue was full, since the start."""

    def relay_counts(self) -> Mapping[str, int]:
        """Return the counters of this node's work as a relay since the mesh came up, by name; empty where there are none."""

    def refusal_counts(self) -> Mapping[str, int]:
        """Return how often something of a peer was refused since the start, for a limit or a failed handshake.

        The keys are names of `registry.effects`.
        """

    def task_count(self) -> int:
        """Return the number of tasks of the mesh's own loop as of the previous call; 0 while it is down, or has none."""

    def idle_stream_count(self) -> int:
        """Return the number of idle streams on which peers may ask again; each is one of `task_count`."""

    def is_running(self) -> bool:
        """Return whether the mesh is up at this moment."""
