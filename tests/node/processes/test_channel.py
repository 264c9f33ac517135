"""A channel carries messages in order, and ends with its other end or at a message that cannot be read."""

import asyncio
import socket
from collections.abc import AsyncIterator

import pytest

from node.processes import channel as module
from node.processes.channel import Channel
from node.processes.protocol import Ask, Leave, Look, Ready, Said, Seen, Told, said, told
from registry.members.liveness import Presence
from registry.records import PeerId
from tests.router.world import until


class Ends:
    """Two connected channels, and the messages that each has received."""

    def __init__(self) -> None:
        self.heard: list[Told] = []
        self.answers: list[Said] = []
        self.first = Channel(said, self.answers.append)
        self.helper = Channel(told, self.heard.append)
        self.ours, self.theirs = socket.socketpair()


@pytest.fixture
async def ends() -> AsyncIterator[Ends]:
    made = Ends()
    await made.first.open(made.ours)
    await made.helper.open(made.theirs)
    yield made
    made.first.close()
    made.helper.close()
    await made.helper.closed.wait()
    await made.first.closed.wait()


async def test_messages_come_in_order_both_ways(ends: Ends) -> None:
    for number in range(100):
        ends.first.tell(Ask(number))
    ends.helper.tell(Ready())
    await until(lambda: len(ends.heard) == 100 and bool(ends.answers))
    assert ends.heard == [Ask(number) for number in range(100)]
    assert ends.answers == [Ready()]


async def test_the_end_of_one_side_is_noticed_at_the_other(ends: Ends) -> None:
    ends.helper.close()
    async with asyncio.timeout(1):
        await ends.first.closed.wait()
    ends.first.tell(Leave())


async def test_a_message_that_cannot_be_read_ends_the_channel(ends: Ends) -> None:
    # Only a helper sends this message, never the first process.
    ends.first.tell(Look(PeerId("a")))
    async with asyncio.timeout(1):
        await ends.first.closed.wait()
    assert ends.heard == []


async def test_a_process_that_reads_nothing_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_UNREAD_BYTES", 1_000_000)
    ours, theirs = socket.socketpair()
    with theirs:
        first = Channel(said, lambda _: None)
        await first.open(ours)
        for _ in range(50):
            first.tell(Seen(PeerId("a"), Presence.ALIVE, bytes(100_000)))
        async with asyncio.timeout(1):
            await first.closed.wait()
