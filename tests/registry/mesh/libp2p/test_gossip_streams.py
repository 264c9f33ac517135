"""Gossip streams that end through no fault of their peer, which stays connected and is heard."""

import logging
from collections.abc import AsyncIterator
from typing import Any

import pytest
import trio
from libp2p.peer.id import ID
from libp2p.pubsub.pb import rpc_pb2
from multiaddr import Multiaddr

from registry.mesh import PeerLeft
from tests.registry.mesh.libp2p.test_faults import MESHSUB, frames_flow
from tests.registry.mesh.worlds import LibP2PWorld, Seat, inside, until, world_of


@pytest.fixture
async def world() -> AsyncIterator[LibP2PWorld]:
    async with world_of(LibP2PWorld) as world:
        assert isinstance(world, LibP2PWorld)
        yield world


def wires(seat: Seat, other: Seat) -> list[Any]:
    """Return the connections of a node to another."""
    return list(inside(seat)[0].get_network().get_connections(ID.from_string(other.mesh.peer)))


async def pair(world: LibP2PWorld) -> tuple[Seat, Seat]:
    """Return a node, and a peer whose gossip it hears."""
    victim = await world.seat("victim", ping_timeout=30)
    peer = await world.seat("peer", victim, ping_timeout=30)
    await frames_flow(peer, victim, b"before")
    return victim, peer


def complaints(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]


async def test_a_peer_that_resets_a_stream_of_gossip_keeps_its_connection(
    world: LibP2PWorld, caplog: pytest.LogCaptureFixture
) -> None:
    victim, peer = await pair(world)
    host, thread = inside(peer)
    (wire,) = wires(victim, peer)
    opened: list[Any] = []

    async def open_another() -> None:
        opened.append(await host.new_stream(ID.from_string(victim.mesh.peer), [MESHSUB]))

    await thread.call(open_another)
    number = opened[0].muxed_stream.stream_id
    await until(lambda: number in wire.muxed_conn.streams)
    await thread.call(opened[0].reset)
    await until(lambda: all(s.muxed_stream.stream_id != number for s in wire.get_streams()))
    await frames_flow(peer, victim, b"still heard")
    assert PeerLeft(peer.mesh.peer) not in victim.seen
    assert complaints(caplog) == []


async def test_a_connection_that_cannot_be_written_to_takes_no_other_of_its_peer_along(
    world: LibP2PWorld, caplog: pytest.LogCaptureFixture
) -> None:
    victim, peer = await pair(world)
    host, thread = inside(peer)
    address = Multiaddr(victim.mesh.addresses()[0].partition("/p2p/")[0])
    peer_id = ID.from_string(victim.mesh.peer)
    await thread.call(lambda: host.get_network().dial_addr(address, peer_id))
    await until(lambda: len(wires(victim, peer)) == 2)

    async def shut_one() -> None:
        # A failed write leaves this state until the socket is seen to be closed.
        gossip: Any = victim.mesh
        for stream in [s for wire in wires(victim, peer) for s in wire.get_streams()]:
            if stream.get_protocol() == MESHSUB:
                stream.muxed_conn.event_shutting_down.set()
                await gossip._node._libp2p.pubsub.stream_handler(stream)
                await stream.muxed_conn.secured_conn.close()
                return
        pytest.fail("no connection carries gossip")

    await inside(victim)[1].call(shut_one)
    await until(lambda: len(wires(victim, peer)) == 1)
    await frames_flow(peer, victim, b"over the other")
    await frames_flow(victim, peer, b"and back")
    assert PeerLeft(peer.mesh.peer) not in victim.seen
    assert complaints(caplog) == []


LONG = 100 * 1024
"""Bytes of an RPC; three fill the window of a stream."""


def gossip_to(victim: Seat, peer: Seat) -> tuple[Any, Any]:
    """Return a peer's pubsub, and its stream to a node; call it in the peer's thread."""
    mesh: Any = peer.mesh
    pubsub = mesh._node._libp2p.pubsub
    return pubsub, pubsub.peers[ID.from_string(victim.mesh.peer)]


def long_rpc() -> rpc_pb2.RPC:
    """Return an RPC that is read and ignored: its message is of a topic that nobody subscribes to."""
    message = rpc_pb2.Message(data=bytes(LONG), topicIDs=["another"])
    return rpc_pb2.RPC(publish=[message])


async def test_long_messages_written_at_one_time_arrive_whole(
    world: LibP2PWorld, caplog: pytest.LogCaptureFixture
) -> None:
    victim, peer = await pair(world)

    async def write_all() -> None:
        pubsub, stream = gossip_to(victim, peer)
        async with trio.open_nursery() as nursery:
            for _ in range(12):
                nursery.start_soon(pubsub.write_msg, stream, long_rpc())

    await inside(peer)[1].call(write_all)
    await frames_flow(peer, victim, b"after")
    assert PeerLeft(peer.mesh.peer) not in victim.seen
    assert complaints(caplog) == []


async def test_a_message_that_was_written_in_part_is_the_last_of_its_stream(
    world: LibP2PWorld, caplog: pytest.LogCaptureFixture
) -> None:
    victim, peer = await pair(world)

    async def write_in_part() -> None:
        pubsub, stream = gossip_to(victim, peer)
        stream.muxed_stream.send_window = 1_000
        with trio.move_on_after(0.1) as patience:
            await pubsub.write_msg(stream, long_rpc())
        assert patience.cancelled_caught
        stream.muxed_stream.send_window = LONG

    await inside(peer)[1].call(write_in_part)
    await frames_flow(peer, victim, b"after")
    assert PeerLeft(peer.mesh.peer) not in victim.seen
    assert complaints(caplog) == []


async def test_a_message_that_waited_for_a_subscription_is_sent_once(world: LibP2PWorld) -> None:
    victim, peer = await pair(world)
    written: list[bytes] = []

    async def subscribe_late() -> None:
        pubsub, stream = gossip_to(victim, peer)
        peer_id = stream.muxed_conn.peer_id
        (topic,) = pubsub.topic_ids

        async def write_msg(stream: Any, rpc: rpc_pb2.RPC) -> bool:
            written.extend(message.data for message in rpc.publish)
            return bool(await type(pubsub).write_msg(pubsub, stream, rpc))

        for _ in range(pubsub.router.mcache.window_size):
            pubsub.router.mcache.shift()
        pubsub.write_msg = write_msg
        pubsub.handle_subscription(peer_id, rpc_pb2.RPC.SubOpts(subscribe=False, topicid=topic))
        await pubsub.publish(topic, b"no longer recent")
        for _ in range(pubsub.router.mcache.window_size):
            pubsub.router.mcache.shift()
        await pubsub.publish(topic, b"recent")
        pubsub.handle_subscription(peer_id, rpc_pb2.RPC.SubOpts(subscribe=True, topicid=topic))

    await inside(peer)[1].call(subscribe_late)
    await until(lambda: {b"no longer recent", b"recent"} <= {*victim.frames()})
    await frames_flow(peer, victim, b"after")
    assert written[:2] == [b"no longer recent", b"recent"]
    assert {*written[2:]} == {b"after"}


async def test_a_stream_that_dies_as_it_is_opened_again_is_opened_once_more(
    world: LibP2PWorld,
) -> None:
    victim, peer = await pair(world)
    deaths: list[ID] = []

    async def dies_at_first(there: ID, topic: str) -> None:
        pubsub, stream = gossip_to(victim, peer)
        if not deaths:
            deaths.append(there)
            await stream.reset()
            await pubsub.write_msg(stream, long_rpc())

    async def reopen() -> None:
        pubsub, stream = gossip_to(victim, peer)
        pubsub.router.send_recent_messages = dies_at_first
        pubsub.reopen(stream.muxed_conn.peer_id)

    await inside(peer)[1].call(reopen)
    await until(lambda: bool(deaths))
    await frames_flow(peer, victim, b"after")
