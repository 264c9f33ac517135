"""Queue of bytes that wait for a slow reader."""

import asyncio

import pytest

from registry.errors import PeerUnreachable
from registry.mesh.queues import ByteQueue


async def test_a_full_queue_makes_its_writer_wait_for_the_reader() -> None:
    queue = ByteQueue(4)
    await queue.write(b"full")
    async with asyncio.TaskGroup() as tasks:
        writing = tasks.create_task(queue.write(b"more"))
        await asyncio.sleep(0)
        assert not writing.done()
        assert await queue.read() == b"full"
        assert await queue.read() == b"more"


async def test_a_queue_that_was_ended_is_read_to_its_end_even_when_cut_later() -> None:
    queue = ByteQueue(4)
    await queue.write(b"last")
    queue.end()
    queue.cut()
    assert await queue.read() == b"last"
    assert await queue.read() == b""


async def test_bytes_of_a_queue_that_was_cut_before_its_end_are_lost() -> None:
    queue = ByteQueue(4)
    await queue.write(b"lost")
    queue.cut()
    with pytest.raises(PeerUnreachable):
        await queue.read()


async def test_a_cut_wakes_both_the_reader_and_the_writer() -> None:
    queue, other = ByteQueue(1), ByteQueue(1)
    await other.write(b"x")
    waiting = asyncio.gather(queue.read(), other.write(b"y"), return_exceptions=True)
    await asyncio.sleep(0)
    queue.cut()
    other.cut()
    assert [type(outcome) for outcome in await waiting] == [PeerUnreachable, PeerUnreachable]
