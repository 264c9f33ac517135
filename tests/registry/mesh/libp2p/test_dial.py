"""Reasons why a bootstrap address does not answer, as far as they can be known: real sockets, one failure each."""

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress

import pytest

from registry.errors import PeerUnreachable
from registry.mesh.libp2p.dial import SILENT
from registry.mesh.libp2p.mesh import LibP2PMesh
from tests.registry.mesh.worlds import (
    LibP2PWorld,
    echo,
    identity,
    return_everything,
    settings,
    until,
    world_of,
)

STRANGER = identity("stranger").peer
ONE_KEY, OTHER_KEY = "a" * 64, "b" * 64
NO_NODE = "it listens, but does not answer as a node: "


@pytest.fixture
async def reason() -> AsyncIterator[Callable[..., Awaitable[str]]]:
    """Return a function that tells why a node with this one bootstrap address does not join."""
    begun: list[LibP2PMesh] = []

    async def why(address: str, *, key: str | None = None, patience: float = 1) -> str:
        given = settings(bootstrap=(address,), dial_timeout=patience)
        mesh = LibP2PMesh(identity(f"dialler {len(begun)}"), given, swarm_key=key)
        begun.append(mesh)
        await mesh.start(echo, return_everything)
        await until(lambda: bool(mesh.failures()), within=9)
        assert set(mesh.failures()) == {address}
        return mesh.failures()[address]

    yield why
    for mesh in begun:
        await mesh.stop()


async def listening(key: str | None = None) -> LibP2PMesh:
    mesh = LibP2PMesh(identity("listener"), settings(), swarm_key=key)
    await mesh.start(echo, return_everything)
    return mesh


def at(port: int) -> str:
    return f"/ip4/127.0.0.1/tcp/{port}/p2p/{STRANGER}"


async def test_a_port_without_a_listener_refuses_the_connection(
    reason: Callable[..., Awaitable[str]],
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    assert await reason(at(port)) == "connection refused"


async def test_a_host_that_sends_nothing_back_times_out_sooner_than_a_handshake(
    reason: Callable[..., Awaitable[str]],
) -> None:
    await _nothing_comes_back(reason, patience=1)
    began = time.monotonic()
    await _nothing_comes_back(reason, patience=60)
    assert time.monotonic() - began >= SILENT


async def _nothing_comes_back(reason: Callable[..., Awaitable[str]], *, patience: float) -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full:
        crowd = [socket.socket() for _ in range(3)]
        for one in crowd:
            one.setblocking(False)
            with suppress(BlockingIOError):
                one.connect(full.getsockname())
        assert await reason(at(full.getsockname()[1]), patience=patience) == "timed out"
        for one in crowd:
            one.close()


async def test_a_name_that_does_not_resolve_is_reported(
    reason: Callable[..., Awaitable[str]],
) -> None:
    assert await reason(f"/dns4/vine.invalid/tcp/1/p2p/{STRANGER}") == "the name does not resolve"


async def test_another_node_at_the_address_is_reported(
    reason: Callable[..., Awaitable[str]],
) -> None:
    other = await listening()
    place = other.addresses()[0].rpartition("/p2p/")[0]
    try:
        told = await reason(f"{place}/p2p/{STRANGER}")
        assert told == f"wrong peer id: another node answers there, {other.peer}"
    finally:
        await other.stop()


@pytest.mark.parametrize(
    ("theirs", "ours", "told"),
    [
        (ONE_KEY, OTHER_KEY, "the swarm keys differ, it hangs, or it is no node"),
        (None, ONE_KEY, "the swarm keys differ, it hangs, or it is no node"),
        (ONE_KEY, None, "it has a swarm key, which this node lacks, it hangs, or it is no node"),
    ],
)
async def test_a_swarm_key_that_does_not_fit_is_reported(
    reason: Callable[..., Awaitable[str]], theirs: str | None, ours: str | None, told: str
) -> None:
    other = await listening(theirs)
    try:
        assert await reason(other.addresses()[0], key=ours) == NO_NODE + told
    finally:
        await other.stop()


@pytest.mark.parametrize("said", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b""])
async def test_a_listener_that_is_no_node_is_reported(
    reason: Callable[..., Awaitable[str]], said: bytes
) -> None:
    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(said)
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        assert (await reason(at(port))).startswith(NO_NODE)


async def test_a_listener_that_says_nothing_is_reported_after_the_whole_patience(
    reason: Callable[..., Awaitable[str]],
) -> None:
    patience, began = SILENT + 0.5, time.monotonic()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        told = await reason(at(silent.getsockname()[1]), patience=patience)
    assert told.startswith(NO_NODE)
    assert time.monotonic() - began >= patience


async def test_an_address_at_which_the_node_itself_answers_is_reported() -> None:
    mesh = LibP2PMesh(identity("lonely"), settings())
    await mesh.start(echo, return_everything)
    try:
        address = f"{mesh.addresses()[0].rpartition('/p2p/')[0]}/p2p/{STRANGER}"
        mesh.pin((address,))
        await until(lambda: bool(mesh.failures()), within=9)
        assert mesh.failures()[address].startswith("this node itself answers there")
    finally:
        await mesh.stop()


async def test_a_failed_address_is_forgotten_once_it_answers_or_is_no_longer_wanted() -> None:
    async with world_of(LibP2PWorld) as world:
        first = await world.seat("first")
        address = first.mesh.addresses()[0]
        port = int(address.split("/")[4])
        second = await world.seat("second")
        await first.mesh.stop()
        second.mesh.pin((address, at(1)))
        await until(lambda: set(second.mesh.failures()) == {address, at(1)})
        second.mesh.pin((address,))
        assert set(second.mesh.failures()) == {address}
        again = LibP2PMesh(identity("first"), settings(listen=(f"/ip4/127.0.0.1/tcp/{port}",)))
        await again.start(echo, return_everything)
        try:
            await until(lambda: not second.mesh.failures())
        finally:
            await again.stop()


async def test_a_failed_connect_says_why_there_is_no_connection() -> None:
    async with world_of(LibP2PWorld) as world:
        seat = await world.seat("asker")
        with pytest.raises(PeerUnreachable, match=r"cannot be dialled: connection refused$"):
            await seat.mesh.connect(at(1), timeout=5)
        with pytest.raises(PeerUnreachable, match=r"this node's own, or invalid$"):
            await seat.mesh.connect(seat.mesh.addresses()[0], timeout=5)
        for junk in (
            "",
            "/p2p/",
            "nonsense",
            f"/ip4/x/tcp/1/p2p/{STRANGER}",
            "/ip4/127.0.0.1/p2p/x",
        ):
            with pytest.raises(PeerUnreachable):
                await seat.mesh.connect(junk, timeout=5)


async def test_a_rendezvous_point_that_does_not_answer_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    mesh = LibP2PMesh(identity("visitor"), settings(rendezvous=(at(1), at(2))))
    await mesh.start(echo, return_everything)
    try:
        told = [f"{at(port)!r} cannot be dialled: connection refused" for port in (1, 2)]
        await until(lambda: all(why in caplog.text for why in told), within=9)
    finally:
        await mesh.stop()
