"""Frames of yamux whose writer is cancelled: each is written whole, or its connection ends."""

from collections.abc import Iterator
from typing import Any

import pytest
import trio
from libp2p.crypto.ed25519 import create_new_key_pair
from libp2p.io.abc import ReadWriteCloser
from libp2p.network.connection.raw_connection import RawConnection
from libp2p.peer.id import ID
from libp2p.security.noise.io import NoiseTransportReadWriter
from libp2p.security.secure_session import SecureSession
from libp2p.stream_muxer.yamux.yamux import Yamux
from noise.connection import NoiseConnection
from noise.exceptions import NoiseInvalidMessage
from trio.testing import MockClock, wait_all_tasks_blocked

from registry.mesh.libp2p.muxer import WRITE_SECONDS, GuardedYamux
from tests.registry.mesh.libp2p.test_muxer import PING, muxed

FIRST, SECOND = muxed(PING, 1, 0, 1), muxed(PING, 1, 0, 2)
SEALED = 2 + len(FIRST) + 16
"""Bytes of one frame on the wire: a length, the frame, a seal."""


class Wire(ReadWriteCloser):
    """A socket that takes a byte at a time while it has room, and cancels the writer when it has taken `cut` bytes."""

    def __init__(self, scope: trio.CancelScope, cut: int, capacity: int) -> None:
        self.carried = bytearray()
        self.closed = False
        self._scope = scope
        self._cut = cut
        self._room = capacity

    async def write(self, data: bytes) -> None:
        for byte in data:
            if len(self.carried) == self._cut:
                self._scope.cancel()
            if len(self.carried) == self._room:
                await trio.sleep_forever()
            await trio.lowlevel.checkpoint()
            self.carried.append(byte)

    async def read(self, n: int | None = None) -> bytes:
        raise AssertionError("nobody answers")

    async def close(self) -> None:
        self.closed = True

    def get_remote_address(self) -> tuple[str, int] | None:
        return None


class Line:
    """One end of a connection under noise, and what the other end can read."""

    def __init__(self, kind: type[Yamux], *, cut: int = -1, capacity: int = -1) -> None:
        ours, self._theirs = sealing()
        self.scope = trio.CancelScope()
        self.wire = Wire(self.scope, cut, capacity)
        keys = create_new_key_pair(bytes(32))
        peer = ID.from_pubkey(keys.public_key)
        secured = SecureSession(
            local_peer=peer,
            local_private_key=keys.private_key,
            remote_peer=peer,
            remote_permanent_pubkey=keys.public_key,
            is_initiator=True,
            conn=NoiseTransportReadWriter(RawConnection(self.wire, initiator=True), ours),
        )
        self.yamux: Any = kind(secured, peer)

    def read(self) -> list[bytes]:
        """Return the frames that came; raise `NoiseInvalidMessage` for what is none."""
        rest, frames = bytes(self.wire.carried), []
        while rest:
            size = 2 + int.from_bytes(rest[:2], "big")
            frames.append(bytes(self._theirs.decrypt(rest[2:size])))
            rest = rest[size:]
        return frames


def sealing() -> Iterator[Any]:
    """Make two ends that share a secret."""
    one, other = (NoiseConnection.from_name(b"Noise_NN_25519_ChaChaPoly_SHA256") for _ in range(2))
    one.set_as_initiator()
    other.set_as_responder()
    one.start_handshake()
    other.start_handshake()
    other.read_message(one.write_message())
    one.read_message(other.write_message())
    return iter((one, other))


async def written(kind: type[Yamux], cut: int) -> list[bytes]:
    """Write a frame whose writer is cancelled after `cut` bytes, and another; return what is read."""
    line = Line(kind, cut=cut)
    with line.scope:
        await line.yamux._write_frame(FIRST)
    await line.yamux._write_frame(SECOND)
    return line.read()


CUTS = range(SEALED)


@pytest.mark.parametrize("cut", CUTS)
def test_a_frame_whose_writer_is_cancelled_is_whole_and_so_is_the_next(cut: int) -> None:
    assert trio.run(written, GuardedYamux, cut) == [FIRST, SECOND]


@pytest.mark.parametrize("cut", CUTS)
def test_the_library_garbles_the_connection_wherever_it_is_cut(cut: int) -> None:
    # Cut after no byte at all, the frame is sealed, and the next has a number that the reader does not expect.
    with pytest.raises(NoiseInvalidMessage):
        trio.run(written, Yamux, cut)


def test_a_frame_that_finds_no_room_ends_its_connection() -> None:
    async def main() -> None:
        line = Line(GuardedYamux, capacity=SEALED + 7)
        await line.yamux._write_frame(FIRST)
        began = trio.current_time()
        with pytest.raises(trio.TooSlowError):
            await line.yamux._write_frame(SECOND)
        assert trio.current_time() - began == pytest.approx(WRITE_SECONDS)
        assert line.wire.closed
        assert line.yamux.event_shutting_down.is_set()

    trio.run(main, clock=MockClock(autojump_threshold=0))


def test_a_cancelled_wait_for_a_turn_ends_at_once_and_its_stream_is_forgotten() -> None:
    async def main() -> None:
        line = Line(GuardedYamux, capacity=7)
        slots = line.yamux.stream_backlog_semaphore.value
        async with trio.open_nursery() as nursery:
            nursery.start_soon(write_in_vain, line)
            await wait_all_tasks_blocked()
            with trio.move_on_after(WRITE_SECONDS / 2) as patience:
                await line.yamux.open_stream()
            assert patience.cancelled_caught
            assert not line.yamux.streams
            assert line.yamux.stream_backlog_semaphore.value == slots
        assert len(line.wire.carried) == 7

    trio.run(main, clock=MockClock(autojump_threshold=0))


async def write_in_vain(line: Line) -> None:
    with pytest.raises(trio.TooSlowError):
        await line.yamux._write_frame(FIRST)
