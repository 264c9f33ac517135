"""Frames of a pipe: what could not be written whole is the last of its pipe."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio

from registry.errors import PeerUnreachable
from registry.mesh.libp2p.pipes import WINDOW, PipeEnd
from registry.mesh.queues import ByteQueue


class StalledStream:
    """Stream whose peer sends nothing, and reads nothing more: a write fails after a part of it was sent."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.over = False

    async def read(self, _: int) -> bytes:
        await trio.sleep_forever()

    async def write(self, frame: bytes) -> None:
        self.written.append(frame)
        raise TimeoutError("no window")

    async def reset(self) -> None:
        self.over = True


async def grant(end: PipeEnd) -> None:
    end.free(WINDOW)


async def write(end: PipeEnd) -> None:
    with pytest.raises(PeerUnreachable):
        await end.write(b"bytes")


async def finish(end: PipeEnd) -> None:
    with pytest.raises(PeerUnreachable):
        await end.finish()


@pytest.mark.parametrize("send", [grant, write, finish])
def test_a_frame_that_was_written_in_part_ends_its_pipe(
    send: Callable[[PipeEnd], Awaitable[None]],
) -> None:
    stream: Any = StalledStream()

    async def main() -> None:
        end = PipeEnd(stream, lambda *_: None, ByteQueue(WINDOW))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(end.run)
            await send(end)
            with trio.fail_after(5):
                await end.closed.wait()
            nursery.cancel_scope.cancel()
        with pytest.raises(PeerUnreachable):
            await end.write(b"more")

    trio.run(main)
    assert stream.over
    assert len(stream.written) == 1
