"""Mesh over libp2p, for nodes on different machines. Only this folder uses libp2p and trio.

`mesh` is the side of asyncio, `node` that of trio. A node reports to its mesh, and asks it, as its `Delegate`.
"""

from collections.abc import Mapping
from typing import Any, Protocol

from registry.mesh import Arrived, Judge, Knows, PeerConnection, PeerMisbehaved, Pipe
from registry.mesh.libp2p.stand_ins import leave_out
from registry.mesh.libp2p.thread import TrioThread
from registry.records import PeerId

leave_out()


class Delegate(Protocol):
    """What a node in the trio thread calls on the asyncio side. All of it is called in trio."""

    thread: TrioThread[Any]
    judge: Judge
    knows: Knows

    def note_event(self, event: Arrived | PeerMisbehaved) -> None:
        """Take in a frame, or an offence of a peer."""

    def note_refusal(self, event: str) -> None:
        """Count something of a peer that was refused, for a limit or a failed handshake."""

    def note_connections(self, connections: tuple[PeerConnection, ...]) -> None:
        """Take in the whole list of connections, which may have changed."""

    def note_failures(self, reasons: Mapping[str, str]) -> None:
        """Take in why the addresses of a bootstrap peer did not answer."""

    def note_addresses(self, addresses: tuple[str, ...], interfaces: tuple[str, ...]) -> None:
        """Take in our own dialable addresses, which have changed."""

    async def answer(self, asker: PeerId, question: bytes) -> bytes:
        """Answer a peer's question; raise `AsyncioCallFailed` when there is no answer."""

    async def serve(self, pipe: Pipe) -> None:
        """Serve a pipe that a peer opened; raise `AsyncioCallFailed` when that fails."""
