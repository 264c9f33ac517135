"""How does a question travel over a libp2p stream? Length, question; length, answer; one stream each.

Lengths are u32, big endian. The asker keeps its side open until it has the answer: closing it sooner
says that nobody waits any more, and ends the work for the answer.
"""

import struct
from collections.abc import Awaitable, Callable
from contextlib import suppress

import trio
from libp2p.abc import IHost, INetStream
from libp2p.custom_types import TProtocol
from libp2p.peer.id import ID

from registry.errors import PeerUnreachable
from registry.mesh import MAX_ANSWER_BYTES
from registry.mesh.hardening import indifferent, unreachable
from registry.mesh.trio_thread import VisitFailed
from registry.records import PeerId

ASK = TProtocol("/modelvine/ask/1")

MESSAGE_SECONDS = 30.0
"""Seconds that a peer may take to put its question across, or to take its answer."""

QUESTIONS = 64
"""Questions answered at one time, all peers together; more are refused."""

_LENGTH = struct.Struct("!I")


async def ask(host: IHost, peer: PeerId, question: bytes, timeout: float) -> bytes:
    """Put a question to a peer; raise `PeerUnreachable` when no answer came in time."""
    with unreachable(f"{peer} gave no answer"), trio.fail_after(timeout):
        stream = await host.new_stream(ID.from_string(peer), [ASK])
        try:
            await _send(stream, question)
            answer = await _receive(stream)
        except BaseException:
            await _reset(stream)
            raise
        await stream.close()
        return answer


class Questions:
    """Answers what peers ask. `answer` is awaited in trio and raises `VisitFailed` for no answer."""

    def __init__(self, answer: Callable[[PeerId, bytes], Awaitable[bytes]]) -> None:
        self._answer = answer
        self._open = 0

    async def handle(self, stream: INetStream) -> None:
        """Serve one stream; a peer's fault costs it this stream and nothing else."""
        if self._open >= QUESTIONS:
            await _reset(stream)
            return
        self._open += 1
        try:
            with unreachable("the asker broke off"):
                await self._serve(stream)
        except PeerUnreachable:
            await _reset(stream)
        finally:
            self._open -= 1

    async def _serve(self, stream: INetStream) -> None:
        with trio.fail_after(MESSAGE_SECONDS):
            question = await _receive(stream)
        answers: list[bytes] = []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_until_left, stream, nursery.cancel_scope)
            with suppress(VisitFailed):
                answers.append(await self._answer(PeerId(str(stream.muxed_conn.peer_id)), question))
            nursery.cancel_scope.cancel()
        if not answers or len(answers[0]) > MAX_ANSWER_BYTES:
            raise PeerUnreachable("there is no answer")
        with trio.fail_after(MESSAGE_SECONDS):
            await _send(stream, answers[0])
            await stream.close()


async def read_exactly(stream: INetStream, size: int) -> bytes:
    """Read `size` bytes; memory follows what arrived, not what was announced."""
    parts = bytearray()
    while len(parts) < size:
        chunk = await stream.read(min(size - len(parts), 256 * 1024))
        if not chunk:
            raise PeerUnreachable("the stream ended early")
        parts += chunk
    return bytes(parts)


async def _receive(stream: INetStream) -> bytes:
    (size,) = _LENGTH.unpack(await read_exactly(stream, _LENGTH.size))
    if size > MAX_ANSWER_BYTES:
        raise PeerUnreachable(f"the peer announced {size} bytes")
    return await read_exactly(stream, size)


async def _send(stream: INetStream, message: bytes) -> None:
    await stream.write(_LENGTH.pack(len(message)) + message)


async def _until_left(stream: INetStream, scope: trio.CancelScope) -> None:
    with indifferent():
        await stream.read(1)
    scope.cancel()


async def _reset(stream: INetStream) -> None:
    with trio.CancelScope(shield=True), indifferent():
        await stream.reset()
