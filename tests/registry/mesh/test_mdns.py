"""Multicast discovery: nodes of one network find each other, whatever else is sent there."""

import asyncio
import os
import secrets
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st
from zeroconf import DNSOutgoing, DNSPointer, DNSText, const
from zeroconf.asyncio import AsyncServiceInfo, AsyncZeroconf

from registry.mesh import Origin
from registry.mesh.discovered import MAX_CLAIMED
from registry.mesh.libp2p.mesh import LibP2PMesh
from registry.mesh.mdns import MAX_TEXT_BYTES, addresses_in, hosts_in, service_of, text_of
from tests.registry.mesh.worlds import Seat, echo, identity, return_everything, settings, until

ADDRESS = f"/ip4/192.0.2.7/tcp/6101/p2p/{identity('a').peer}"
NETWORK = ("224.0.0.251", 5353)


@contextmanager
def speaking() -> Iterator[socket.socket]:
    """Open a socket that speaks to every multicast listener of this machine."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as spoken:
        spoken.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton("127.0.0.1"))
        yield spoken


def line(text: bytes) -> bytes:
    return bytes([len(text)]) + text


class TestATextRecord:
    def test_carries_addresses_there_and_back(self) -> None:
        assert addresses_in(text_of([ADDRESS, ADDRESS + "x"])) == (ADDRESS, ADDRESS + "x")

    def test_holds_a_few_that_fit(self) -> None:
        text = text_of(["/" + "x" * 300, *[ADDRESS] * 100])
        assert addresses_in(text) == (ADDRESS,) * MAX_CLAIMED

    @pytest.mark.parametrize(
        "text",
        [
            b"",
            b"\0",
            b"\0" * MAX_TEXT_BYTES,
            b"\xff",
            line(b"dnsaddr"),
            line(b"other=" + ADDRESS.encode()),
            line(b"dnsaddr=/ip4/\xff\xfe"),
            line(b"dnsaddr=" + ADDRESS.encode()) * 100,
        ],
    )
    def test_that_is_nonsense_names_nothing(self, text: bytes) -> None:
        assert addresses_in(text) == ()

    def test_is_read_as_far_as_it_goes(self) -> None:
        text = line(b"DNSADDR=/cut") + line(b"id=7") + bytes([200]) + b"dnsaddr=/ip4"
        assert addresses_in(text) == ("/cut", "/ip4")

    @given(st.binary(max_size=600))
    def test_of_any_bytes_does_no_harm(self, text: bytes) -> None:
        assert len(addresses_in(text)) <= MAX_CLAIMED


def test_a_private_mesh_has_a_name_of_its_own_that_does_not_hold_the_key() -> None:
    key, other = "ab" * 32, "ac" * 32
    assert service_of(None) == "_p2p._udp.local."
    assert len({service_of(None), service_of(key), service_of(other)}) == 3
    assert key[:6] not in service_of(key)


def test_multicast_is_sent_from_the_hosts_that_we_listen_on() -> None:
    listened = (ADDRESS, ADDRESS, "/ip6/2001:db8::1/tcp/1/p2p/x", "/dns4/a.example/tcp/1")
    assert hosts_in(listened) == ("192.0.2.7", "2001:db8::1")


@pytest.fixture
def swarm_key() -> str:
    """Return a key of this run alone, so that no other nodes of this machine are found."""
    return secrets.token_hex(32)


Seating = Callable[..., "asyncio.Future[Seat]"]


@pytest.fixture
async def seat(swarm_key: str) -> AsyncIterator[Seating]:
    seats: list[Seat] = []

    async def start(name: str, **changes: object) -> Seat:
        topic = str(changes.pop("topic", "modelvine/1"))
        mesh = LibP2PMesh(
            identity(name), settings(mdns=True, **changes), swarm_key=swarm_key, topic=topic
        )
        seats.append(Seat(mesh))
        await mesh.start(echo, return_everything)
        return seats[-1]

    yield start
    for each in seats:
        await each.mesh.stop()


async def test_two_nodes_that_know_no_others_find_each_other(seat: Seating) -> None:
    first, second = await seat("first"), await seat("second")
    await until(lambda: bool(first.peers() and second.peers()))
    origins = {c.origin for s in (first, second) for c in s.mesh.connections()}
    assert Origin.MDNS in origins


async def test_a_node_that_says_no_more_than_libp2p_asks_for_is_found(
    seat: Seating, swarm_key: str
) -> None:
    """Other implementations answer with a name and a text alone."""
    silent = LibP2PMesh(identity("silent"), settings(), swarm_key=swarm_key)
    await silent.start(echo, return_everything)
    first = await seat("first")
    service = service_of(swarm_key)
    name, text = f"silent.{service}", text_of(silent.addresses())
    answer = DNSOutgoing(const._FLAGS_QR_RESPONSE | const._FLAGS_AA)
    for record in (
        DNSPointer(service, const._TYPE_PTR, const._CLASS_IN, 120, name),
        DNSText(name, const._TYPE_TXT, const._CLASS_IN, 120, text),
    ):
        answer.add_answer_at_time(record, 0)
    with speaking() as network:

        def said() -> bool:
            for packet in answer.packets():
                network.sendto(packet, NETWORK)
            return silent.peer in first.peers()

        await until(said)
    await silent.stop()


async def test_lies_on_the_network_do_not_keep_nodes_apart(seat: Seating, swarm_key: str) -> None:
    first = await seat("first")
    service = service_of(swarm_key)
    liar = AsyncZeroconf(interfaces=["127.0.0.1"])
    nobody = f"/ip4/127.0.0.1/tcp/9/p2p/{identity('nobody').peer}".encode()
    lies = [
        b"",
        os.urandom(200),
        line(b"dnsaddr=" + nobody),
        line(b"dnsaddr=" + first.mesh.addresses()[0].encode()),
    ]
    for number, text in enumerate(lies):
        name = f"liar{number}.{service}"
        info = AsyncServiceInfo(
            service, name, port=9, properties=text, parsed_addresses=["127.0.0.1"]
        )
        await (await liar.async_register_service(info))
    with speaking() as noise:
        for length in range(1, 400):
            noise.sendto(os.urandom(length), NETWORK)
            noise.sendto(b"\0\0\x84\0" + os.urandom(length), NETWORK)
    second = await seat("second")
    await until(lambda: bool(first.peers() and second.peers()))
    assert first.mesh.is_running()
    assert second.mesh.is_running()
    await liar.async_close()


async def test_a_node_that_found_others_ends_at_once_and_leaves_nothing_running(
    seat: Seating,
) -> None:
    tasks = asyncio.all_tasks()
    first, second = await seat("first"), await seat("second")
    await until(lambda: bool(first.peers() and second.peers()))
    async with asyncio.timeout(5):
        await first.mesh.stop()
        await second.mesh.stop()
    assert asyncio.all_tasks() == tasks
