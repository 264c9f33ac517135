"""Dialling: which peers and when, and the reasons why a bootstrap address does not answer, over real sockets."""

import asyncio
import random
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import pairwise
from typing import Any

import pytest
import trio

from registry.errors import PeerUnreachable
from registry.mesh.libp2p.dial import (
    GIVEN_UP,
    MAX_HOSTS,
    PATIENCE,
    RAREST,
    SILENT,
    URGENT,
    Dialer,
    DialTarget,
    host_of,
)
from registry.mesh.libp2p.mesh import LibP2PMesh
from registry.records import PeerId
from tests.registry.mesh.worlds import (
    LibP2PWorld,
    echo,
    identity,
    inside,
    joined,
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
        mesh_settings = settings(bootstrap=(address,), dial_timeout=patience)
        mesh = LibP2PMesh(identity(f"dialler {len(begun)}"), mesh_settings, swarm_key=key)
        begun.append(mesh)
        await mesh.start(echo, return_everything)
        await until(lambda: bool(mesh.bootstrap_failures()), within=9)
        assert set(mesh.bootstrap_failures()) == {address}
        return mesh.bootstrap_failures()[address]

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
    with silent_host("127.0.0.1", 0) as port:
        assert await reason(at(port), patience=patience) == "timed out"


@contextmanager
def silent_host(host: str, port: int) -> Iterator[int]:
    """Listen at a port that answers no further connection; yield the port."""
    with socket.create_server((host, port), backlog=0) as full:
        crowd = [socket.socket() for _ in range(3)]
        for client in crowd:
            client.setblocking(False)
            with suppress(BlockingIOError):
                client.connect(full.getsockname())
        yield int(full.getsockname()[1])
        for client in crowd:
            client.close()


class TwoHosts(trio.abc.HostnameResolver):
    """Resolver in which every name stands for two addresses of this machine."""

    async def getaddrinfo(
        self,
        host: Any,
        port: Any,
        family: int = 0,
        type: int = 0,  # noqa: A002
        proto: int = 0,
        flags: int = 0,
    ) -> Any:
        return [(socket.AF_INET, 1, 6, "", (ip, 0)) for ip in ("127.0.0.2", "127.0.0.1")]

    async def getnameinfo(self, sockaddr: Any, flags: int) -> Any:
        raise NotImplementedError


@pytest.mark.parametrize("asked", [False, True], ids=["bootstrap", "connect"])
async def test_a_name_whose_first_address_is_silent_is_reached_at_the_next(
    asked: bool,
) -> None:
    async with world_of(LibP2PWorld) as world:
        assert isinstance(world, LibP2PWorld)
        named = await world.seat("named")
        port = int(named.mesh.addresses()[0].split("/")[4])
        dialler = await world.seat("dialler", dial_timeout=SILENT + 0.5)
        _, thread = inside(dialler)

        async def name_both() -> None:
            trio.socket.set_custom_hostname_resolver(TwoHosts())

        await thread.call(name_both)
        with silent_host("127.0.0.2", port):
            address = f"/dns4/both.example/tcp/{port}/p2p/{named.mesh.peer}"
            if asked:
                await dialler.mesh.connect(address, timeout=SILENT + 0.5)
            else:
                dialler.mesh.set_bootstrap((address,))
            await joined(dialler, named)


async def test_a_name_that_does_not_resolve_is_reported(
    reason: Callable[..., Awaitable[str]],
) -> None:
    assert await reason(f"/dns4/vine.invalid/tcp/1/p2p/{STRANGER}") == "the name does not resolve"


class SlowResolver(TwoHosts):
    """Resolver that resolves no name until it is told to."""

    def __init__(self) -> None:
        self.answers = trio.Event()

    async def getaddrinfo(self, *positional: Any, **keywords: Any) -> Any:
        await self.answers.wait()
        return await super().getaddrinfo(*positional, **keywords)


async def test_a_name_that_takes_too_long_to_resolve_is_reported_and_dialled_once_it_resolves() -> (
    None
):
    async with world_of(LibP2PWorld) as world:
        assert isinstance(world, LibP2PWorld)
        named, dialler = [await world.seat(name) for name in ("named", "dialler")]
        _, thread = inside(dialler)
        resolver = SlowResolver()

        async def use_resolver() -> None:
            trio.socket.set_custom_hostname_resolver(resolver)

        async def answer() -> None:
            resolver.answers.set()

        await thread.call(use_resolver)
        port = int(named.mesh.addresses()[0].split("/")[4])
        address = f"/dns4/slow.example/tcp/{port}/p2p/{named.mesh.peer}"
        with pytest.raises(PeerUnreachable, match="does not resolve in time"):
            await dialler.mesh.connect(address, timeout=0.1)
        dialling = asyncio.ensure_future(dialler.mesh.connect(address, timeout=5))
        await thread.call(answer)
        await dialling
        await joined(dialler, named)


async def test_another_node_at_the_address_is_reported(
    reason: Callable[..., Awaitable[str]],
) -> None:
    other = await listening()
    address = other.addresses()[0].rpartition("/p2p/")[0]
    try:
        reported = await reason(f"{address}/p2p/{STRANGER}")
        assert reported == f"wrong peer id: another node answers there, {other.peer}"
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
        reported = await reason(at(silent.getsockname()[1]), patience=patience)
    assert reported.startswith(NO_NODE)
    assert time.monotonic() - began >= patience


async def test_an_address_at_which_the_node_itself_answers_is_reported() -> None:
    mesh = LibP2PMesh(identity("lonely"), settings())
    await mesh.start(echo, return_everything)
    try:
        address = f"{mesh.addresses()[0].rpartition('/p2p/')[0]}/p2p/{STRANGER}"
        mesh.set_bootstrap((address,))
        await until(lambda: bool(mesh.bootstrap_failures()), within=9)
        assert mesh.bootstrap_failures()[address].startswith("this node itself answers there")
    finally:
        await mesh.stop()


async def test_a_failed_address_is_forgotten_once_it_answers_or_is_no_longer_wanted() -> None:
    async with world_of(LibP2PWorld) as world:
        first = await world.seat("first")
        address = first.mesh.addresses()[0]
        port = int(address.split("/")[4])
        second = await world.seat("second")
        await first.mesh.stop()
        second.mesh.set_bootstrap((address, at(1)))
        await until(lambda: set(second.mesh.bootstrap_failures()) == {address, at(1)})
        second.mesh.set_bootstrap((address,))
        assert set(second.mesh.bootstrap_failures()) == {address}
        again = LibP2PMesh(identity("first"), settings(listen=(f"/ip4/127.0.0.1/tcp/{port}",)))
        await again.start(echo, return_everything)
        try:
            await until(lambda: not second.mesh.bootstrap_failures())
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
        messages = [f"{at(port)!r} cannot be dialled: connection refused" for port in (1, 2)]
        await until(lambda: all(message in caplog.text for message in messages), within=9)
    finally:
        await mesh.stop()


HOST = "127.0.0.1"
OWN = PeerId("own")


def address(peer: str, port: int = 1) -> str:
    return f"/ip4/127.0.0.1/tcp/{port}/p2p/{peer}"


def dialer(
    *, bootstrap: tuple[str, ...] = (), kept: tuple[str, ...] = (), degree: int = 2
) -> Dialer:
    made = Dialer(OWN, degree=degree, redial=1.0, rng=random.Random(1))
    made.set_targets([address(peer) for peer in bootstrap], [address(peer) for peer in kept])
    return made


def peers(targets: list[DialTarget]) -> set[str]:
    return {target.peer for target in targets}


def test_bootstrap_peers_are_dialled_first() -> None:
    made = dialer(bootstrap=("a", "b"), kept=("c", "d", "e"), degree=3)
    first = made.due_targets((), 0.0)
    assert peers(first[:2]) == {"a", "b"}
    assert len(first) == 3


ENOUGH = (PeerId("x"), PeerId("y"))


def times_dialled(dialer: Dialer, peer: str, *, until: float) -> list[float]:
    """Let every dial fail while there are enough other peers; return when this peer was dialled."""
    times, now = [], 0.0
    while now < until:
        for target in dialer.due_targets(ENOUGH, now):
            dialer.note_failure(target.peer, now)
            times += [now] if target.peer == peer else []
        now += 0.25
    return times


def test_with_enough_peers_a_bootstrap_peer_that_does_not_answer_is_dialled_ever_more_rarely() -> (
    None
):
    times = times_dialled(dialer(bootstrap=("a",), kept=("b",)), "a", until=7200.0)
    assert times[0] == 0.0
    pauses = [later - sooner for sooner, later in pairwise(times)]
    assert pauses[0] < 2
    assert 0.7 * RAREST < pauses[-1] < 1.3 * RAREST
    assert len(times) < 45


def test_with_enough_peers_strangers_are_not_dialled() -> None:
    assert times_dialled(dialer(bootstrap=("a",), kept=("b",)), "b", until=600.0) == []


def test_a_lost_peer_is_looked_for_though_there_are_enough_and_given_up_in_the_end() -> None:
    made = dialer(kept=("a", "b"))
    made.note_lost(PeerId("a"), 0.0)
    times = times_dialled(made, "a", until=7200.0)
    assert GIVEN_UP - RAREST < times[-1] < GIVEN_UP + 1.25 * RAREST
    assert len(times) < 16
    # A cut of a minute is noticed soon after it has healed.
    assert any(60 < at < 100 for at in times)


def test_where_one_missed_peer_is_back_the_others_are_tried_at_once() -> None:
    made = dialer(kept=("a", "b", "c"))
    for peer in (PeerId("a"), PeerId("b")):
        made.note_lost(peer, 0.0)
        for _ in range(8):
            made.note_failure(peer, 0.0)
    assert made.due_targets(ENOUGH, 20.0) == []
    made.note_connected(PeerId("a"), HOST)
    assert peers(made.due_targets((*ENOUGH, PeerId("a")), 20.0)) == {"b"}


def test_a_lost_peer_whose_only_way_leads_through_a_relay_is_not_looked_for() -> None:
    made = dialer()
    made.set_targets([], ["/ip4/192.0.2.1/tcp/1/p2p/relay/p2p-circuit/p2p/a"])
    made.note_lost(PeerId("a"), 0.0)
    assert made.due_targets(ENOUGH, 60.0) == []
    assert peers(made.due_targets((), 60.0)) == {"a"}


def test_a_node_that_lacks_peers_retries_failed_ones_sooner() -> None:
    made = dialer(bootstrap=("a",))
    for _ in range(12):
        made.note_failure(PeerId("a"), 0.0)
    assert made.due_targets(ENOUGH, 20.0) == []
    assert peers(made.due_targets((), 20.0)) == {"a"}


def test_other_peers_are_dialled_up_to_the_degree() -> None:
    made = dialer(degree=3)
    made.set_targets((), [f"/dns4/host-{name}/tcp/1/p2p/{name}" for name in "abcd"])
    assert len(made.due_targets((), 0.0)) == 3
    assert len(made.due_targets((PeerId("x"), PeerId("y")), 0.0)) == 1
    assert made.due_targets((PeerId("x"), PeerId("y"), PeerId("z")), 0.0) == []


def test_the_node_itself_and_connected_peers_are_not_dialled() -> None:
    made = dialer(bootstrap=("own", "a"), kept=("own", "b"), degree=9)
    assert peers(made.due_targets((PeerId("a"),), 0.0)) == {"b"}


def test_addresses_of_one_peer_are_one_target() -> None:
    made = dialer()
    made.set_targets([address("a", 1)], [address("a", 2), address("a", 1)])
    (target,) = made.due_targets((), 0.0)
    assert target == DialTarget(PeerId("a"), (address("a", 1), address("a", 2)), bootstrap=True)


def test_an_address_without_a_peer_is_left_out() -> None:
    made = dialer()
    made.set_targets(["/ip4/127.0.0.1/tcp/1", "", "/p2p/"], ["/p2p/a/p2p-circuit"])
    assert made.due_targets((), 0.0) == []


def test_a_failed_peer_waits_longer_each_time_up_to_ten_times_the_first() -> None:
    made, waits, now = dialer(kept=("a",)), [], 0.0
    for _ in range(10):
        made.note_failure(PeerId("a"), now)
        began = now
        while not made.due_targets((), now):
            now += 0.05
        waits.append(now - began)
    assert 0.7 < waits[0] < 1.35
    assert waits[2] > waits[0]
    assert 7.4 < waits[-1] < 12.6


def pauses_of(dialer: Dialer, *, connected: tuple[PeerId, ...], until: float) -> dict[float, float]:
    """Let every dial fail; return the pause after each dial, by the time of the dial."""
    times, now = [], 0.0
    while now < until:
        for target in dialer.due_targets(connected, now):
            dialer.note_failure(target.peer, now)
            times.append(now)
        now += 0.25
    return {sooner: later - sooner for sooner, later in pairwise(times)}


def test_a_node_without_peers_dials_a_lost_one_each_second_for_a_minute_and_then_more_rarely() -> (
    None
):
    for bootstrap in (True, False):
        made = dialer(**{"bootstrap" if bootstrap else "kept": ("a",)})
        made.note_lost(PeerId("a"), 0.0)
        pauses = pauses_of(made, connected=(), until=3600.0)
        assert all(URGENT <= pause < 1.55 for at, pause in pauses.items() if at < PATIENCE)
        assert all(pause < 2.2 for at, pause in pauses.items() if at < 90)
        assert all(9.9 < pause < 12.8 for at, pause in pauses.items() if at > 10 * PATIENCE)


def test_a_node_without_peers_dials_a_bootstrap_peer_that_never_answered_as_often() -> None:
    pauses = pauses_of(dialer(bootstrap=("a",)), connected=(), until=60.0)
    assert all(URGENT <= pause < 1.55 for pause in pauses.values())


def test_a_node_without_peers_is_no_slower_where_redial_is_long_and_quicker_where_it_is_short() -> (
    None
):
    for redial, shortest, longest in ((3.0, 0.9, 1.5), (0.25, 0.2, 0.6)):
        dialer = Dialer(OWN, degree=2, redial=redial, rng=random.Random(1))
        dialer.set_targets([address("a")], [])
        pauses = pauses_of(dialer, connected=(), until=10.0)
        assert all(shortest < pause < longest for pause in pauses.values())


def test_a_relay_that_held_a_place_is_dialled_each_second_though_there_are_enough_peers() -> None:
    made = dialer(kept=("a", "b"))
    made.note_lost(PeerId("a"), 0.0, relay=True)
    pauses = pauses_of(made, connected=ENOUGH, until=7200.0)
    assert all(URGENT <= pause < 1.55 for at, pause in pauses.items() if at < PATIENCE)
    assert all(pause < 12.8 for pause in pauses.values())
    assert GIVEN_UP - 25 < max(pauses) < GIVEN_UP + 25


def test_a_lost_peer_is_dialled_again_after_the_pause_however_often_it_failed_before() -> None:
    made = dialer(bootstrap=("a",))
    for _ in range(5):
        made.note_failure(PeerId("a"), 0.0)
    made.note_connected(PeerId("a"), HOST)
    made.note_lost(PeerId("a"), 100.0)
    assert made.due_targets((), 100.5) == []
    assert peers(made.due_targets((), 101.3)) == {"a"}


def test_a_host_where_no_peer_was_met_is_dialled_once_a_second_however_many_are_said_to_be_there() -> (
    None
):
    dialer = Dialer(OWN, degree=50, redial=1.0, rng=random.Random(1))
    dialer.set_targets(
        (), [f"/ip4/192.0.2.7/tcp/{port}/p2p/made-up-{port}" for port in range(1, 200)]
    )
    dials = 0
    for tenth in range(400):
        for target in dialer.due_targets((), tenth / 10):
            dialer.note_failure(target.peer, tenth / 10)
            dials += 1
    assert dials == 40


def test_at_a_host_where_a_peer_was_met_all_peers_may_be_dialled() -> None:
    made = dialer(kept=tuple("abcdef"), degree=4)
    (first,) = made.due_targets((), 0.0)
    made.note_connected(first.peer, HOST)
    assert len(made.due_targets((first.peer,), 0.1)) == 3


def test_a_peer_met_at_one_host_of_its_record_does_not_count_as_met_at_the_others() -> None:
    """The liar listens at the first address itself; the others are a third party's, which is dialled once a second at most."""
    dialer = Dialer(OWN, degree=4, redial=1.0, rng=random.Random(1))
    liar = PeerId("liar")
    addresses = [f"/ip4/192.0.2.7/tcp/{port}/p2p/{liar}" for port in range(1, 16)]
    dialer.set_targets((), [f"/ip4/198.51.100.1/tcp/1/p2p/{liar}", *addresses])
    dialer.note_connected(liar, "198.51.100.1")
    dialer.note_lost(liar, 0.0)
    dialled = []
    for tenth in range(400):
        for target in dialer.due_targets((), tenth / 10):
            dialled += map(host_of, target.addresses)
            dialer.note_failure(target.peer, tenth / 10)
    assert 10 < dialled.count("192.0.2.7") <= 40


def test_hosts_are_remembered_within_a_bound() -> None:
    dialer = Dialer(OWN, degree=2 * MAX_HOSTS, redial=1.0, rng=random.Random(1))
    dialer.set_targets(
        (), [f"/dns4/host-{number}/tcp/1/p2p/p-{number}" for number in range(MAX_HOSTS + 9)]
    )
    for target in dialer.due_targets((), 0.0):
        dialer.note_connected(target.peer, host_of(target.addresses[0]))
    assert (len(dialer._tried), len(dialer._met)) == (MAX_HOSTS, MAX_HOSTS)
