"""A channel carries messages in order, and ends with its other end or at a message that cannot be read."""

import asyncio
import socket
from collections.abc import AsyncIterator

import pytest

from node.processes import channel as module
from node.processes.channel import Channel
from node.processes.protocol import (
    Leave,
    NodeSeen,
    ProbeAsked,
    Ready,
    StateAsked,
    ToFirst,
    ToHelper,
    read_by_first,
    read_by_helper,
)
from registry.members.liveness import Presence
from registry.records import PeerId
from tests.router.world import until


class ChannelPair:
    """Two connected channels, and the messages that each has received."""

    def __init__(self) -> None:
        self.heard: list[ToHelper] = []
        self.answers: list[ToFirst] = []
        self.first = Channel(read_by_first, self.answers.append)
        self.helper = Channel(read_by_helper, self.heard.append)
        self.ours, self.theirs = socket.socketpair()


@pytest.fixture
async def ends() -> AsyncIterator[ChannelPair]:
    made = ChannelPair()
    await made.first.open(made.ours)
    await made.helper.open(made.theirs)
    yield made
    made.first.close()
    made.helper.close()
    await made.helper.closed.wait()
    await made.first.closed.wait()


async def test_messages_come_in_order_both_ways(ends: ChannelPair) -> None:
    for number in range(100):
        ends.first.send(StateAsked(number))
    ends.helper.send(Ready())
    await until(lambda: len(ends.heard) == 100 and bool(ends.answers))
    assert ends.heard == [StateAsked(number) for number in range(100)]
    assert ends.answers == [Ready()]


async def test_the_end_of_one_side_is_noticed_at_the_other(ends: ChannelPair) -> None:
    ends.helper.close()
    async with asyncio.timeout(1):
        await ends.first.closed.wait()
    ends.first.send(Leave())


async def test_a_message_that_cannot_be_read_ends_the_channel(ends: ChannelPair) -> None:
    # Only a helper sends this message, never the first process.
    ends.first.send(ProbeAsked(PeerId("a")))
    async with asyncio.timeout(1):
        await ends.first.closed.wait()
    assert ends.heard == []


async def test_a_process_that_reads_nothing_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_UNREAD_BYTES", 1_000_000)
    own, other = socket.socketpair()
    with other:
        first = Channel(read_by_first, lambda _: None)
        await first.open(own)
        for _ in range(50):
            first.send(NodeSeen(PeerId("a"), Presence.ALIVE, bytes(100_000)))
        async with asyncio.timeout(1):
            await first.closed.wait()
