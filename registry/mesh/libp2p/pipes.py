"""Pipes over a libp2p stream, as frames with credit-based flow control.

Yamux gives a stalled writer five seconds and then breaks the stream, so libp2p's own backpressure does not
work with a slow reader. Instead each side grants credit: a writer sends no more than the reader has room for,
and the reader's end always reads, so that no window ever closes. A writer without credit waits.

A frame is a kind (u8), a number (u32, big endian), and for `BYTES` that many bytes.
"""

import struct
from collections.abc import Callable
from enum import IntEnum
from typing import Any

import trio
from libp2p.abc import INetStream

from registry.errors import MeshDown, PeerUnreachable, ProtocolViolation
from registry.mesh.libp2p.ask import read_exactly
from registry.mesh.libp2p.guards import as_unreachable, ignore_errors, reset
from registry.mesh.libp2p.thread import TrioThread
from registry.mesh.queues import ByteQueue
from registry.records import PeerId

WINDOW = 512 * 1024
"""Bytes that one side of a pipe may send ahead of its reader, and so the memory that one pipe may hold."""

CHUNK = 32 * 1024
"""The largest `BYTES` frame. It is small so that credit and other pipes get through between two of them."""

LINGER = 5.0
"""Seconds that a finished side waits for the other side to finish before it cuts the pipe."""

_HEAD = struct.Struct("!BI")


class PipeFrame(IntEnum):
    """The kind of a frame."""

    BYTES = 0
    CREDIT = 1
    END = 2


class PipeEnd:
    """The trio side of a pipe, which reads and writes the frames. Every method runs in trio."""

    def __init__(
        self, stream: INetStream, tell: Callable[..., object], incoming: ByteQueue
    ) -> None:
        self._stream = stream
        self._tell = tell
        self._incoming = incoming
        self._send_lock = trio.Lock()
        self._changed = trio.Event()
        self._credit = WINDOW
        self._room = WINDOW
        self._freed = 0
        self._sent_end = False
        self._received_end = False
        self.closed = trio.Event()
        self.violated = False
        """Whether the pipe ended because the peer violated the protocol."""

    @property
    def wire(self) -> object:
        """The connection that carries the pipe."""
        return self._stream.muxed_conn

    async def run(self) -> None:
        """Read frames and grant credit until the pipe is over; never raises for what a peer does."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._grant)
            try:
                with as_unreachable("the pipe broke"):
                    await self._receive()
            except PeerUnreachable as error:
                self.violated = isinstance(error, ProtocolViolation)
            finally:
                nursery.cancel_scope.cancel()
                await self.reset()

    async def write(self, chunk: bytes) -> None:
        """Send all of `chunk`, as credit comes in; raise `PeerUnreachable` when the pipe is over."""
        view = memoryview(chunk)
        while view:
            while not self._credit and not self.closed.is_set():
                await self._wait_for_change()
            self._require_open()
            size = min(len(view), self._credit, CHUNK)
            self._credit -= size
            await self._send(_HEAD.pack(PipeFrame.BYTES, size) + view[:size])
            view = view[size:]

    async def finish(self) -> None:
        """Tell the other end that nothing more is written."""
        if self._sent_end:
            return
        self._require_open()
        self._sent_end = True
        await self._send(_HEAD.pack(PipeFrame.END, 0))
        await self._close_when_done()

    async def leave(self) -> None:
        """End the pipe after its handler: a finished side still arrives in full, an unfinished one is cut."""
        if self._sent_end:
            with trio.move_on_after(LINGER):
                await self.closed.wait()
        await self.reset()

    async def reset(self) -> None:
        """Cut both directions; harmless when the pipe is over."""
        if self.closed.is_set():
            return
        self.closed.set()
        self._notify_change()
        self._tell(self._incoming.cut)
        await reset(self._stream)

    def free(self, size: int) -> None:
        """Note that the reader has taken `size` bytes; credit for them follows."""
        self._freed += size
        self._notify_change()

    async def _receive(self) -> None:
        while True:
            kind, number = _HEAD.unpack(await read_exactly(self._stream, _HEAD.size))
            if (
                kind == PipeFrame.BYTES
                and not self._received_end
                and 0 < number <= min(self._room, CHUNK)
            ):
                self._room -= number
                self._tell(_feed, self._incoming, await read_exactly(self._stream, number))
            elif kind == PipeFrame.CREDIT and self._credit + number <= WINDOW:
                self._credit += number
                self._notify_change()
            elif kind == PipeFrame.END and not self._received_end:
                self._received_end = True
                self._tell(self._incoming.end)
                await self._close_when_done()
            else:
                raise ProtocolViolation("the peer violated the pipe's protocol")

    async def _grant(self) -> None:
        while True:
            # A quarter of the window at a time: credit for every read would double the frames.
            while self._freed < WINDOW // 4 or self._received_end:
                await self._wait_for_change()
            size, self._freed = self._freed, 0
            self._room += size
            with ignore_errors():
                await self._send(_HEAD.pack(PipeFrame.CREDIT, size))

    async def _close_when_done(self) -> None:
        if self._sent_end and self._received_end:
            with ignore_errors():
                await self._stream.close()

    async def _send(self, frame: bytes) -> None:
        # Half a frame would garble all that follows, so a frame that was begun is sent whole, or the pipe is cut.
        # The shield is bounded: yamux gives up after 5 s, and a dead connection is closed by its ping.
        with trio.CancelScope(shield=True):
            async with self._send_lock:
                try:
                    with as_unreachable("the pipe broke"):
                        await self._stream.write(frame)
                except PeerUnreachable:
                    await self.reset()
                    raise

    def _require_open(self) -> None:
        if self.closed.is_set() or self._sent_end:
            raise PeerUnreachable("the pipe was cut or finished")

    def _notify_change(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    async def _wait_for_change(self) -> None:
        await self._changed.wait()


class StreamPipe:
    """The asyncio side of a pipe, which the mesh hands out."""

    def __init__(
        self, peer: PeerId, end: PipeEnd, incoming: ByteQueue, thread: TrioThread[Any]
    ) -> None:
        self._peer = peer
        self._end = end
        self._incoming = incoming
        self._thread = thread

    @property
    def peer(self) -> PeerId:
        """The peer at the other end, as noise authenticated it."""
        return self._peer

    async def read(self) -> bytes:
        """Return the next bytes, `b""` at the end; raise `PeerUnreachable` when cut."""
        chunk = await self._incoming.read()
        if chunk:
            self._thread.post(self._end.free, len(chunk))
        return chunk

    async def write(self, chunk: bytes) -> None:
        """Send all of `chunk`, waiting while the reader has no room; raise `PeerUnreachable` when cut."""
        await self._call(self._end.write, bytes(chunk))

    async def finish(self) -> None:
        """Tell the other end that nothing more will be written."""
        await self._call(self._end.finish)

    async def reset(self) -> None:
        """Cut both directions at once."""
        self._incoming.cut()
        try:
            await self._call(self._end.reset)
        except PeerUnreachable:
            return

    async def _call(self, work: Callable[..., Any], *args: object) -> None:
        try:
            await self._thread.call(work, *args)
        except MeshDown as error:
            raise PeerUnreachable("the pipe was cut") from error


def _feed(queue: ByteQueue, chunk: bytes) -> None:
    if not queue.closed:
        queue.feed(chunk)
