"""Faults that libp2p nodes survive: liars, garbage, strangers, deaths of peers and of their own thread."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from libp2p.crypto.ed25519 import create_new_key_pair
from libp2p.custom_types import TProtocol
from libp2p.peer.id import ID
from libp2p.pubsub.pb import rpc_pb2
from multiaddr import Multiaddr

from registry.errors import MeshDown, PeerUnreachable
from registry.mesh import Joined, PeerLeft, PeerMisbehaved, Pipe, Restarted
from registry.mesh.libp2p import watch
from registry.mesh.libp2p.mesh import LibP2PMesh
from tests.registry.mesh.worlds import (
    LibP2PWorld,
    Seat,
    echo,
    identity,
    inside,
    joined,
    return_everything,
    settings,
    until,
    world_of,
)

MESHSUB = TProtocol("/meshsub/1.1.0")


@pytest.fixture
async def world() -> AsyncIterator[LibP2PWorld]:
    async with world_of(LibP2PWorld) as world:
        assert isinstance(world, LibP2PWorld)
        yield world


async def frames_flow(one: Seat, other: Seat, frame: bytes) -> None:
    async with asyncio.timeout(10):
        while frame not in other.frames():
            await one.mesh.publish(frame)
            await asyncio.sleep(0.05)


async def pings(seat: Seat) -> int:
    """Count the tasks that ping a connection."""

    async def count() -> int:
        root = trio.lowlevel.current_root_task()
        assert root is not None
        found, left = 0, [root]
        while left:
            task = left.pop()
            found += task.name.endswith("_keep_pinging")
            left += [child for nursery in task.child_nurseries for child in nursery.child_tasks]
        return found

    counted = await inside(seat)[1].call(count)
    assert isinstance(counted, int)
    return counted


async def send_raw(liar: Seat, victim: Seat, protocol: TProtocol, payload: bytes) -> None:
    """Let one node write bytes of our choice to another, on a stream of its own."""
    host, thread = inside(liar)

    async def send() -> None:
        stream = await host.new_stream(ID.from_string(victim.mesh.peer), [protocol])
        await stream.write(payload)

    await thread.call(send)


def prefixed(message: bytes) -> bytes:
    """Put the varint length before a message, as multistream and pubsub do."""
    size, head = len(message), bytearray()
    while size > 127:
        head.append(size & 127 | 128)
        size >>= 7
    return bytes([*head, size]) + message


def with_an_undecodable_key(liar: Seat) -> bytes:
    message = rpc_pb2.Message(
        from_id=b"\x12\x20"
        + bytes(32),  # an id that does not contain its key, as those of RSA keys
        seqno=bytes(8),
        data=b"frame",
        topicIDs=["modelvine/1"],
        signature=bytes(64),
        key=b"\xff\xff\xff no key",
    )
    return prefixed(rpc_pb2.RPC(publish=[message]).SerializeToString())


@pytest.mark.parametrize(
    "lie",
    [
        pytest.param(lambda liar: prefixed(b"\xff" * 40), id="malformed message"),
        pytest.param(lambda liar: b"\xff" * 64, id="endless length"),
    ],
)
async def test_a_bad_message_costs_its_sender_the_connection_and_other_peers_nothing(
    world: LibP2PWorld, lie: Callable[[Seat], bytes], capfd: pytest.CaptureFixture[str]
) -> None:
    victim = await world.seat("victim")
    bystander = await world.seat("bystander", victim)
    liar = await world.seat("liar", victim)
    await send_raw(liar, victim, MESHSUB, lie(liar))
    await until(lambda: PeerLeft(liar.mesh.peer) in victim.seen)
    await frames_flow(bystander, victim, b"from the bystander")
    assert PeerLeft(bystander.mesh.peer) not in victim.seen
    assert Restarted() not in victim.seen
    assert capfd.readouterr().err == ""


async def test_a_message_that_cannot_have_been_signed_is_an_offence_of_the_peer_that_hands_it_over(
    world: LibP2PWorld,
) -> None:
    victim = await world.seat("victim")
    bystander = await world.seat("bystander", victim)
    liar = await world.seat("liar", victim)
    await send_raw(liar, victim, MESHSUB, with_an_undecodable_key(liar))
    await until(lambda: PeerMisbehaved(liar.mesh.peer) in victim.seen)
    await frames_flow(bystander, victim, b"from the bystander")
    assert Restarted() not in victim.seen


async def test_a_raising_stream_handler_costs_one_stream(world: LibP2PWorld) -> None:
    victim = await world.seat("victim")
    peer = await world.seat("peer", victim)

    async def fail(stream: Any) -> None:
        await stream.read(1)
        raise RuntimeError("a fault of ours")

    inside(victim)[0].set_stream_handler(TProtocol("/raises/1"), fail)
    await send_raw(peer, victim, TProtocol("/raises/1"), b"hello")
    assert await peer.mesh.ask(victim.mesh.peer, b"?", timeout=5)
    assert Restarted() not in victim.seen
    assert victim.peers() == {peer.mesh.peer}


async def test_a_peer_that_left_is_pinged_by_no_task(
    world: LibP2PWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "_FIRST_PINGS", ())
    stays = await world.seat("stays", ping=3600)
    guest = await world.seat("guest", stays)
    assert await pings(stays) == 1
    await guest.mesh.stop()
    await until(lambda: not stays.peers())
    async with asyncio.timeout(10):
        while await pings(stays):  # noqa: ASYNC110 (nobody signals)
            await asyncio.sleep(0.05)


async def test_a_second_connection_to_one_peer_is_counted_and_is_no_second_peer(
    world: LibP2PWorld,
) -> None:
    one = await world.seat("one")
    other = await world.seat("other", one)
    assert [connection.wires for connection in one.mesh.connections()] == [1]
    host, thread = inside(other)
    address = Multiaddr(one.mesh.addresses()[0].partition("/p2p/")[0])
    await thread.call(lambda: host.get_network().dial_addr(address, ID.from_string(one.mesh.peer)))
    await until(lambda: [connection.wires for connection in one.mesh.connections()] == [2])
    assert one.peers() == {other.mesh.peer}
    await frames_flow(one, other, b"over either")


PROTOCOLS = (
    "/modelvine/ask/1",
    "/modelvine/pipe/1",
    "/libp2p/circuit/relay/0.2.0/hop",
    "/libp2p/circuit/relay/0.2.0/stop",
    "/libp2p/autonat/1.0.0",
)


@pytest.mark.parametrize(
    "garbage",
    [b"\xff" * 1000, b"", prefixed(b""), prefixed(b"\x08\x01"), prefixed(b"\x08\x63"), b"\x05\x08"],
    ids=["lengths", "nothing", "empty", "half", "unknown", "cut"],
)
@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_garbage_on_the_protocols_that_we_serve_costs_one_stream(
    world: LibP2PWorld, protocol: str, garbage: bytes
) -> None:
    victim = await world.seat("victim", relay=True)
    peer = await world.seat("peer", victim)
    await send_raw(peer, victim, TProtocol(protocol), garbage)
    assert await peer.mesh.ask(victim.mesh.peer, b"?", timeout=5)
    assert Restarted() not in victim.seen


async def test_garbage_inside_a_connection_ends_that_connection(world: LibP2PWorld) -> None:
    victim = await world.seat("victim")
    bystander = await world.seat("bystander", victim)
    liar = await world.seat("liar")
    await liar.mesh.connect(victim.mesh.addresses()[0], timeout=5)
    await joined(liar, victim)
    host, thread = inside(liar)

    async def garble() -> None:
        (conn,) = host.get_network().get_connections(ID.from_string(victim.mesh.peer))
        await conn.muxed_conn.secured_conn.write(b"\xff" * 4096)

    await thread.call(garble)
    await until(lambda: PeerLeft(liar.mesh.peer) in victim.seen)
    await frames_flow(bystander, victim, b"still here")


async def converse(victim: Seat, *messages: bytes) -> bytes:
    """Send raw bytes to a node's port, and return what it says until it hangs up or falls silent."""
    port = int(victim.mesh.addresses()[0].split("/")[4])
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        for message in messages:
            writer.write(message)
        received = b""
        try:
            async with asyncio.timeout(0.3):
                while chunk := await reader.read(4096):
                    received += chunk
        except (TimeoutError, ConnectionResetError):
            pass
        return received
    finally:
        writer.close()


async def test_a_plaintext_dialer_is_refused(world: LibP2PWorld) -> None:
    victim = await world.seat("victim")
    for insecure in (b"/plaintext/2.0.0\n", b"/secio/1.0.0\n", b"/tls/1.0.0\n"):
        reply = await converse(victim, prefixed(b"/multistream/1.0.0\n"), prefixed(insecure))
        assert prefixed(b"na\n") in reply
        assert insecure not in reply
    offered = prefixed(b"/noise\n")
    assert offered in await converse(victim, prefixed(b"/multistream/1.0.0\n"), offered)


async def test_garbage_before_the_handshake_changes_nothing(world: LibP2PWorld) -> None:
    victim = await world.seat("victim")
    await converse(victim, os.urandom(4096))
    await converse(victim, b"")
    peer = await world.seat("peer", victim)
    assert await peer.mesh.ask(victim.mesh.peer, b"?", timeout=5)
    assert Restarted() not in victim.seen


@asynccontextmanager
async def lone(name: str, *, swarm_key: str | None) -> AsyncIterator[LibP2PMesh]:
    mesh = LibP2PMesh(identity(name), settings(), swarm_key=swarm_key)
    await mesh.start(echo, return_everything)
    try:
        yield mesh
    finally:
        await mesh.stop()


async def test_only_nodes_with_the_same_swarm_key_connect() -> None:
    ours, other = "ab" * 32, "cd" * 32
    async with (
        lone("first", swarm_key=ours) as first,
        lone("friend", swarm_key=ours) as friend,
        lone("stranger", swarm_key=other) as stranger,
        lone("nobody", swarm_key=None) as nobody,
    ):
        (address,) = first.addresses()
        for refused in (stranger, nobody):
            with pytest.raises(PeerUnreachable):
                await refused.connect(address, timeout=1)
        assert await friend.connect(address, timeout=5) == first.peer
        assert {connection.peer for connection in first.connections()} == {friend.peer}


@pytest.mark.parametrize("key", ["", "ab", "zz" * 32, "AB" * 32])
def test_a_swarm_key_of_another_form_is_refused_at_once(key: str) -> None:
    with pytest.raises(ValueError, match="64"):
        LibP2PMesh(identity("first"), settings(), swarm_key=key)


def test_our_peer_id_is_the_one_that_libp2p_makes_of_the_key() -> None:
    for name in ("first", "second", "third"):
        own = identity(name)
        assert own.peer == str(ID.from_pubkey(create_new_key_pair(own.seed).public_key))


async def test_a_killed_thread_comes_back_with_the_same_id_and_port(world: LibP2PWorld) -> None:
    first = await world.seat("first")
    second = await world.seat("second", first)
    addresses = first.mesh.addresses()
    _, thread = inside(first)

    async def bomb() -> None:
        raise RuntimeError("a fault of the library")

    first_mesh: Any = first.mesh
    thread.post(first_mesh._node._nursery.start_soon, bomb)
    await until(lambda: not first.mesh.is_running())
    with pytest.raises(MeshDown):
        await first.mesh.publish(b"frame")
    assert first.mesh.connections() == ()
    await until(lambda: Restarted() in first.seen)
    assert first.mesh.addresses() == addresses
    await joined(first, second)
    await frames_flow(second, first, b"from the second")
    await frames_flow(first, second, b"from the first")
    assert await second.mesh.ask(first.mesh.peer, b"?", timeout=5)


async def test_a_bootstrap_peer_is_dialled_again_when_it_comes_back() -> None:
    async with lone("first", swarm_key=None) as first:
        (address,) = first.addresses()
        second = LibP2PMesh(identity("second"), settings(bootstrap=(address,)))
        await second.start(echo, return_everything)
        await until(lambda: len(second.connections()) == 1)
    await until(lambda: not second.connections())
    again = LibP2PMesh(identity("first"), settings(listen=(address.partition("/p2p/")[0],)))
    await again.start(echo, return_everything)
    await until(lambda: len(second.connections()) == 1)
    assert await second.ask(first.peer, b"?", timeout=5)
    await again.stop()
    await second.stop()


async def test_two_nodes_that_dial_each_other_at_once_join_once_and_stay() -> None:
    def build(name: str, other: str, port: int, other_port: int) -> LibP2PMesh:
        address = f"/ip4/127.0.0.1/tcp/{other_port}/p2p/{identity(other).peer}"
        here = (f"/ip4/127.0.0.1/tcp/{port}",)
        return LibP2PMesh(identity(name), settings(listen=here, bootstrap=(address,)))

    async with lone("spare one", swarm_key=None) as one, lone("spare two", swarm_key=None) as two:
        ports = [int(mesh.addresses()[0].split("/")[4]) for mesh in (one, two)]
    seats = [Seat(build("a", "b", *ports)), Seat(build("b", "a", *reversed(ports)))]
    await asyncio.gather(*(seat.mesh.start(echo, return_everything) for seat in seats))
    await joined(*seats)
    # Long enough for a second dial, a trim of a doubled connection, and a redial to show.
    await asyncio.sleep(1.5)
    for seat, other in (seats, reversed(seats)):
        await seat.mesh.stop()
        await seat.watch()
        assert seat.seen.count(Joined(other.mesh.peer)) == 1


async def test_connections_that_ended_do_not_count_against_the_limit(world: LibP2PWorld) -> None:
    host = await world.seat("host", max_connections=2)
    guest = await world.seat("guest")
    (address,) = host.mesh.addresses()
    for _ in range(5):
        await guest.mesh.connect(address, timeout=5)
        await guest.mesh.disconnect(host.mesh.peer)
        await until(lambda: not host.peers() and not guest.peers())
    await guest.mesh.connect(address, timeout=5)
    await joined(host, guest)


async def test_the_round_trip_to_a_peer_is_measured(world: LibP2PWorld) -> None:
    first = await world.seat("first", ping=1)
    second = await world.seat("second", first, ping=1)
    await until(lambda: first.mesh.connections()[0].round_trip > 0)
    await until(lambda: second.mesh.connections()[0].round_trip > 0)


async def test_addresses_name_interfaces_or_what_is_announced() -> None:
    everywhere = LibP2PMesh(identity("first"), settings(listen=("/ip4/0.0.0.0/tcp/0",)))
    await everywhere.start(echo, return_everything)
    for address in everywhere.addresses():
        assert "/0.0.0.0/" not in address
        assert "/tcp/0/" not in address
    await everywhere.stop()
    fixed = ("/dns4/node.example/tcp/6101",)
    announced = LibP2PMesh(identity("first"), settings(announce=fixed))
    await announced.start(echo, return_everything)
    assert announced.addresses() == (f"{fixed[0]}/p2p/{announced.peer}",)
    await announced.stop()


async def test_an_address_in_use_fails_the_start(world: LibP2PWorld) -> None:
    first = await world.seat("first")
    in_use = (first.mesh.addresses()[0].partition("/p2p/")[0],)
    second = LibP2PMesh(identity("second"), settings(listen=in_use))
    with pytest.raises(MeshDown):
        await second.start(echo, return_everything)
    await second.stop()


async def test_a_reader_that_pauses_longer_than_yamux_waits_loses_nothing(
    world: LibP2PWorld,
) -> None:
    async def pour(pipe: Pipe) -> None:
        for _ in range(64):
            await pipe.write(bytes(64 * 1024))
        await pipe.finish()

    first = await world.seat("first", serve_pipe=pour)
    second = await world.seat("second", first)
    pipe = await second.mesh.open_pipe(first.mesh.peer, timeout=5)
    # Yamux breaks a stream whose reader has given no window for five seconds.
    await asyncio.sleep(6.5)
    received = 0
    while chunk := await pipe.read():
        received += len(chunk)
    assert received == 64 * 64 * 1024


@asynccontextmanager
async def process(name: str, *bootstrap: str) -> AsyncIterator[asyncio.subprocess.Process]:
    running = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.registry.mesh.lone_node", name, *bootstrap
    )
    try:
        yield running
    finally:
        if running.returncode is None:
            running.kill()
        await running.wait()


@pytest.mark.parametrize(
    ("fate", "within"),
    [
        # The end of a connection shows at once; silence is noticed by pings, three seconds apart.
        pytest.param(lambda victim: victim.kill(), 5.0, id="killed"),
        pytest.param(lambda victim: victim.send_signal(signal.SIGSTOP), 20.0, id="frozen"),
    ],
)
async def test_a_peer_that_dies_in_another_process_is_seen_to_part_soon(
    world: LibP2PWorld, fate: Callable[[Any], Awaitable[None]], within: float
) -> None:
    survivor = await world.seat("survivor")
    async with process("victim", *survivor.mesh.addresses()) as victim:
        await until(lambda: Joined(identity("victim").peer) in survivor.seen, within=30)
        fate(victim)
        await until(lambda: PeerLeft(identity("victim").peer) in survivor.seen, within=within)
