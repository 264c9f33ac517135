"""Names in addresses, which are resolved as other programs of the machine resolve them."""

import socket
from collections.abc import Sequence
from typing import Any

import pytest
import trio
from multiaddr import Multiaddr

from registry.mesh.libp2p.names import DNSResolver

PEER = "12D3KooWEQu8XgrLjaXRvBQsMrFyx13EPVfbspUwsxfZZbtRmEbV"


class Hosts(trio.abc.HostnameResolver):
    """Resolver that knows one name: a link-local address, and two others of which one is given twice."""

    async def getaddrinfo(
        self,
        host: Any,
        port: Any,
        family: int = 0,
        type: int = 0,  # noqa: A002
        proto: int = 0,
        flags: int = 0,
    ) -> Any:
        if host != b"both.example":
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        found: list[tuple[socket.AddressFamily, Any]] = [
            (socket.AF_INET6, ("fe80::7%eth0", 0, 0, 2)),
            (socket.AF_INET6, ("2001:db8::7", 0, 0, 0)),
            (socket.AF_INET, ("192.0.2.7", 0)),
            (socket.AF_INET, ("192.0.2.7", 0)),
        ]
        return [(of, type, 6, "", at) for of, at in found if family in (0, of)]

    async def getnameinfo(self, sockaddr: Any, flags: int) -> Any:
        raise NotImplementedError


def resolved(address: str, hosts: Hosts | None = None) -> Sequence[str]:
    async def ask() -> Sequence[str]:
        trio.socket.set_custom_hostname_resolver(hosts)
        return [str(one) for one in await DNSResolver().resolve(Multiaddr(address))]

    return trio.run(ask)


@pytest.mark.parametrize(
    ("kind", "found"),
    [
        ("dns", ["/ip6/2001:db8::7", "/ip4/192.0.2.7"]),
        ("dns4", ["/ip4/192.0.2.7"]),
        ("dns6", ["/ip6/2001:db8::7"]),
    ],
)
def test_a_name_becomes_each_of_its_addresses_once_in_their_order(
    kind: str, found: list[str]
) -> None:
    rest = f"tcp/6101/p2p/{PEER}"
    assert resolved(f"/{kind}/both.example/{rest}", Hosts()) == [f"{at}/{rest}" for at in found]


def test_names_of_this_machine_count() -> None:
    assert resolved(f"/dns4/localhost/tcp/1/p2p/{PEER}") == [f"/ip4/127.0.0.1/tcp/1/p2p/{PEER}"]


def test_an_address_without_a_name_stays() -> None:
    assert resolved("/ip4/192.0.2.9/tcp/1", Hosts()) == ["/ip4/192.0.2.9/tcp/1"]


def test_an_address_whose_name_does_not_resolve_stays() -> None:
    address = "/dns4/nobody.example/tcp/1"
    assert resolved(address, Hosts()) == [address]
