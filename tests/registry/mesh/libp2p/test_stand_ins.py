"""Stand-ins for parts of libp2p: unused ones cannot be called, and names resolve as elsewhere on the machine."""

import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import libp2p
import pytest
import trio
from multiaddr import Multiaddr

from registry.mesh.libp2p.stand_ins import UNUSED, DNSResolver

ALONE = [
    "Crypto",
    "aioquic",
    "cbor2",
    "coincurve",
    "dns",
    "fastecdsa",
    "grpc",
    "httpx",
    "miniupnpc",
    "requests",
    "sqlite3",
    "trio_websocket",
    "zeroconf",
]
"""Modules that only unused parts import, or a node in a private network, or one that is told to find others by multicast."""

IMPORTED = f"""
import sys, registry.mesh.libp2p.mesh
print([name for name in {ALONE} if name in sys.modules])
"""

SHOWN = """
import registry.mesh.libp2p.mesh
from libp2p.crypto.pb.crypto_pb2 import KeyType, PublicKey
from libp2p.security.noise.messages import NoiseHandshakePayload
from libp2p.security.noise.pb.noise_pb2 import NoiseHandshakePayload as Message

for kind in (KeyType.RSA, KeyType.Secp256k1):
    key = PublicKey(key_type=kind, data=b"a key").SerializeToString()
    try:
        NoiseHandshakePayload.deserialize(Message(identity_key=key, identity_sig=b"-").SerializeToString())
    except ValueError as error:
        print(error)
"""


def told(script: str) -> str:
    # In a process of its own, because tests import some of these modules.
    command = [sys.executable, "-c", script]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def test_what_only_unused_parts_need_is_not_imported() -> None:
    assert told(IMPORTED) == "[]"


def test_the_unused_parts_are_where_libp2p_has_them() -> None:
    folder = Path(libp2p.__file__).parent.parent
    paths = [folder / name.replace(".", "/") for name in UNUSED]
    assert [str(p) for p in paths if not (p.is_dir() or p.with_suffix(".py").exists())] == []


def test_a_peer_whose_key_is_of_another_kind_is_refused_as_one_whose_key_cannot_be_read() -> None:
    lines = told(SHOWN).splitlines()
    assert [line.rpartition(": ")[2] for line in lines] == [
        "RSAPublicKey.from_bytes is not a part of nodes",
        "Secp256k1PublicKey.from_bytes is not a part of nodes",
    ]


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
        addresses: list[tuple[socket.AddressFamily, Any]] = [
            (socket.AF_INET6, ("fe80::7%eth0", 0, 0, 2)),
            (socket.AF_INET6, ("2001:db8::7", 0, 0, 0)),
            (socket.AF_INET, ("192.0.2.7", 0)),
            (socket.AF_INET, ("192.0.2.7", 0)),
        ]
        return [(of, type, 6, "", address) for of, address in addresses if family in (0, of)]

    async def getnameinfo(self, sockaddr: Any, flags: int) -> Any:
        raise NotImplementedError


def resolved(address: str, hosts: Hosts | None = None) -> Sequence[str]:
    async def ask() -> Sequence[str]:
        trio.socket.set_custom_hostname_resolver(hosts)
        return [str(result) for result in await DNSResolver().resolve(Multiaddr(address))]

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
    assert resolved(f"/{kind}/both.example/{rest}", Hosts()) == [
        f"{address}/{rest}" for address in found
    ]


def test_names_of_this_machine_count() -> None:
    assert resolved(f"/dns4/localhost/tcp/1/p2p/{PEER}") == [f"/ip4/127.0.0.1/tcp/1/p2p/{PEER}"]


def test_an_address_without_a_name_stays() -> None:
    assert resolved("/ip4/192.0.2.9/tcp/1", Hosts()) == ["/ip4/192.0.2.9/tcp/1"]


def test_an_address_whose_name_does_not_resolve_stays() -> None:
    address = "/dns4/nobody.example/tcp/1"
    assert resolved(address, Hosts()) == [address]
