"""Questions and answers over a kept-alive libp2p stream: length, question, length, answer, and so on.

Lengths are u32, big endian. A stream carries one question at a time: the asker sends its next question after the answer, on
this stream or another. While it waits, it keeps its side open: closing it sooner says that the answer is no longer wanted,
and cancels the work on it. Opening a stream takes six packets more than a question on an open one, so streams are kept.
"""

import struct
from collections import Counter
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager, suppress
from typing import Any

import trio
from libp2p.abc import IHost, INetStream
from libp2p.custom_types import TProtocol
from libp2p.network.stream.exceptions import StreamClosed, StreamEOF
from libp2p.peer.id import ID

from registry.errors import PeerUnreachable
from registry.intake.shares import holding
from registry.mesh import MAX_ANSWER_BYTES, MAX_QUESTION_BYTES
from registry.mesh.libp2p import Delegate
from registry.mesh.libp2p.guards import as_unreachable, caller_of, ignore_errors, reset
from registry.mesh.libp2p.thread import AsyncioCallFailed
from registry.records import PeerId

ASK = TProtocol("/modelvine/ask/1")

STREAMS_REFUSED = "streams_refused"
"""Event that the mesh counts."""

MESSAGE_SECONDS = 30.0
"""Seconds that a peer may take to send its question, or to read its answer."""

LONG_BYTES = 4 * 1024
"""Size beyond which a question or an answer is long; probes are short."""

LONG_MESSAGES = 64
"""Long questions and answers in memory at one time, all peers together; more are refused. Short ones never are: otherwise a few
peers that begin questions and do not end them would make this node look dead."""

STREAMS_PER_PEER = 32
"""Question streams that one peer may have open, busy or idle; more are refused."""

KEPT_PER_PEER = 2
"""Idle streams that an asker keeps to one peer; more are closed after their answer."""

STANDING_PER_PEER = 4
"""Idle streams of one peer that an answerer keeps; more are closed after their answer."""

IDLE_SECONDS = 300.0
"""Seconds after which an asker closes an idle stream."""

TIDY_SECONDS = 60.0
"""Seconds between checks for such streams."""

STANDING_SECONDS = 2 * IDLE_SECONDS
"""Seconds after which an answerer closes an idle stream; the asker should have closed it long before."""

_LENGTH = struct.Struct("!I")


class QuestionStreams:
    """Client that asks peers questions, and keeps its streams for the next ones."""

    def __init__(self, host: IHost) -> None:
        self._host = host
        self._idle: dict[PeerId, list[tuple[float, INetStream]]] = {}

    async def ask(self, peer: PeerId, question: bytes, timeout: float) -> bytes:
        """Ask a peer a question; raise `PeerUnreachable` when no answer comes within `timeout` seconds."""
        with as_unreachable(f"{peer} gave no answer"), trio.fail_after(timeout):
            if (idle := self._take(peer)) is not None:
                # The peer may have closed it at this moment. Asking a question twice does no harm.
                with suppress(StreamEOF, StreamClosed):
                    return await self._ask_over(peer, idle, question)
            opened = await self._host.new_stream(ID.from_string(peer), [ASK])
            return await self._ask_over(peer, opened, question)

    async def tidy_forever(self) -> None:
        """Close idle streams, and those that their peer has closed, until cancelled."""
        while True:
            await trio.sleep(TIDY_SECONDS)
            for stream in self._take_expired(trio.current_time()):
                with trio.move_on_after(MESSAGE_SECONDS):
                    await _close(stream)

    def _take(self, peer: PeerId) -> INetStream | None:
        entries = self._idle.get(peer, [])
        for entry in reversed(entries):
            if not _is_closed(entry[1]):
                entries.remove(entry)
                return entry[1]
        return None

    def _take_expired(self, now: float) -> list[INetStream]:
        expired = []
        for peer, entries in self._idle.items():
            old = [e for e in entries if now - e[0] >= IDLE_SECONDS or _is_closed(e[1])]
            self._idle[peer] = [entry for entry in entries if entry not in old]
            expired += [stream for _, stream in old]
        self._idle = {peer: entries for peer, entries in self._idle.items() if entries}
        return expired

    async def _ask_over(self, peer: PeerId, stream: INetStream, question: bytes) -> bytes:
        async with AsyncExitStack() as failure:
            failure.push_async_callback(reset, stream)
            await _send(stream, question)
            answer = await _receive(stream)
            failure.pop_all()
        entries = self._idle.setdefault(peer, [])
        if len(entries) < KEPT_PER_PEER:
            entries.append((trio.current_time(), stream))
        else:
            await _close(stream)
        return answer


class _BeyondLimit(PeerUnreachable):
    """A peer exceeds its limit, or all peers together exceed theirs."""


class Questions:
    """Server for peers' questions, which the delegate answers.

    A stream is reset, and counted as refused, when its peer, or all peers together, exceed a limit.
    """

    def __init__(self, delegate: Delegate) -> None:
        self._delegate = delegate
        self._long = 0
        self._open: Counter[PeerId] = Counter()
        self._idle: Counter[PeerId] = Counter()

    @property
    def idle_stream_count(self) -> int:
        """Number of idle streams, kept until their peer asks again."""
        return self._idle.total()

    async def handle(self, stream: INetStream) -> None:
        """Serve one stream; a fault of the peer ends this stream and nothing else."""
        peer = caller_of(stream)
        try:
            with (
                as_unreachable("the caller closed the stream"),
                _within(self._open, peer, STREAMS_PER_PEER),
            ):
                await self._serve(peer, stream)
        except PeerUnreachable as error:
            if isinstance(error, _BeyondLimit):
                self._delegate.note_refusal(STREAMS_REFUSED)
            await reset(stream)

    async def _serve(self, peer: PeerId, stream: INetStream) -> None:
        size: int | None
        with trio.fail_after(MESSAGE_SECONDS):
            size = await _receive_size(stream, MAX_QUESTION_BYTES)
        while size is not None:
            await self._serve_one(peer, stream, size)
            size = await self._await_next(peer, stream)
        await _close(stream)

    async def _serve_one(self, peer: PeerId, stream: INetStream, size: int) -> None:
        with self._in_memory(size):
            with trio.fail_after(MESSAGE_SECONDS):
                question = await read_exactly(stream, size)
            answer = await self._find_answer(peer, stream, question)
        with self._in_memory(len(answer)), trio.fail_after(MESSAGE_SECONDS):
            await _send(stream, answer)

    @contextmanager
    def _in_memory(self, size: int) -> Iterator[None]:
        """Count a message of this size if it is long; raise `_BeyondLimit` if too many are."""
        is_long = size > LONG_BYTES
        if is_long and self._long >= LONG_MESSAGES:
            raise _BeyondLimit("too many long questions and answers")
        self._long += is_long
        try:
            yield
        finally:
            self._long -= is_long

    async def _find_answer(self, peer: PeerId, stream: INetStream, question: bytes) -> bytes:
        answers: list[bytes] = []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_cancel_when_closed, stream, nursery.cancel_scope)
            with suppress(AsyncioCallFailed):
                answers.append(await self._delegate.answer(peer, question))
            nursery.cancel_scope.cancel()
        if not answers or len(answers[0]) > MAX_ANSWER_BYTES:
            raise PeerUnreachable("there is no answer")
        return answers[0]

    async def _await_next(self, peer: PeerId, stream: INetStream) -> int | None:
        """Return the length of the next question; `None` when none comes, or enough streams are idle."""
        if self._idle[peer] >= STANDING_PER_PEER:
            return None
        with (
            _within(self._idle, peer, STANDING_PER_PEER),
            suppress(StreamEOF),
            trio.move_on_after(STANDING_SECONDS),
        ):
            return await _receive_size(stream, MAX_QUESTION_BYTES)
        return None


async def read_exactly(stream: INetStream, size: int) -> bytes:
    """Read `size` bytes; raise `PeerUnreachable` when the stream ends sooner.

    Memory grows with the bytes that have arrived, not with the announced size.
    """
    parts = bytearray()
    while len(parts) < size:
        chunk = await stream.read(min(size - len(parts), 256 * 1024))
        if not chunk:
            raise PeerUnreachable("the stream ended early")
        parts += chunk
    return bytes(parts)


async def _receive(stream: INetStream) -> bytes:
    return await read_exactly(stream, await _receive_size(stream, MAX_ANSWER_BYTES))


async def _receive_size(stream: INetStream, limit: int) -> int:
    size: int
    (size,) = _LENGTH.unpack(await read_exactly(stream, _LENGTH.size))
    if size > limit:
        raise _BeyondLimit(f"the peer announced {size} bytes")
    return size


async def _send(stream: INetStream, message: bytes) -> None:
    await stream.write(_LENGTH.pack(len(message)) + message)


async def _cancel_when_closed(stream: INetStream, scope: trio.CancelScope) -> None:
    with ignore_errors():
        await stream.read(1)
    scope.cancel()


async def _close(stream: INetStream) -> None:
    with ignore_errors():
        await stream.close()


def _is_closed(stream: INetStream) -> bool:
    # Also true once the connection has ended: yamux then closes all its streams.
    wire: Any = stream
    return bool(wire.muxed_stream.recv_closed)


@contextmanager
def _within(counts: Counter[PeerId], peer: PeerId, limit: int) -> Iterator[None]:
    if counts[peer] >= limit:
        raise _BeyondLimit(f"{limit} streams of this peer are open")
    with holding(counts, peer):
        yield
