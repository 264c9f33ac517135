"""Claims of strangers: which are worth a dial, how many are kept, and how long a useless stranger is left alone."""

import random

import pytest

from registry.mesh import Origin
from registry.mesh.discovered import (
    MAX_CLAIMED,
    MAX_REFUSED,
    MAX_STRANGERS,
    DiscoveredPeers,
    claimed_peer,
    only_loopback,
)
from registry.records import PeerId
from tests.registry.mesh.worlds import identity

PEER = identity("stranger").peer
OWN = identity("own").peer


def claim(host: str, *, port: int | str = 6101, peer: str = PEER, kind: str = "ip4") -> str:
    return f"/{kind}/{host}/tcp/{port}/p2p/{peer}"


def strangers(*, loopback: bool = False) -> DiscoveredPeers:
    return DiscoveredPeers(OWN, loopback=loopback, rng=random.Random(1))


@pytest.mark.parametrize(
    "address",
    [claim("192.0.2.7"), claim("10.1.2.3", port=65_535), claim("2001:db8::7", kind="ip6")],
)
def test_a_numeric_tcp_address_names_its_peer(address: str) -> None:
    assert claimed_peer(address, loopback=False) == PEER


@pytest.mark.parametrize(
    "address",
    [
        "",
        "/",
        "/p2p/" + PEER,
        claim("192.0.2.7", port=0),
        claim("192.0.2.7", port=65_536),
        claim("192.0.2.7", port="\u0661"),
        claim("192.0.2.7", peer=""),
        claim("192.0.2.7", peer="12D3KooWnonsense"),
        claim("192.0.2.7", peer=PEER + "/p2p-circuit"),
        claim("192.0.2.7", peer="QmYyQSo1c1Ym7orWxLYvCrM2EmxFTANf8wXmmE7DWjhx5N"),
        claim("192.0.2.300"),
        claim("192.0.2.7\n"),
        claim("2001:db8::7"),
        claim("192.0.2.7", kind="ip6"),
        claim("0.0.0.0"),
        claim("224.0.0.251"),
        claim("127.0.0.1"),
        claim("::1", kind="ip6"),
        claim("fe80::1", kind="ip6"),
        claim("victim.example", kind="dns4"),
        claim("192.0.2.7").replace("tcp", "udp"),
        claim("192.0.2.7") + "/p2p-circuit/p2p/" + PEER,
        claim("1" * 5_000),
    ],
    ids=lambda address: address[:48],
)
def test_any_other_address_is_not_dialled(address: str) -> None:
    assert claimed_peer(address, loopback=False) == ""


def test_loopback_addresses_count_only_for_nodes_that_have_no_others() -> None:
    assert claimed_peer(claim("127.0.0.1"), loopback=True) == PEER
    assert claimed_peer(claim("127.0.0.1"), loopback=False) == ""
    assert only_loopback(("/ip4/127.0.0.1/tcp/0", "/ip6/::1/tcp/0"))
    assert not only_loopback(("/ip4/127.0.0.1/tcp/0", "/ip4/0.0.0.0/tcp/0"))


def test_each_source_replaces_its_own_claims_only() -> None:
    discovered, other = strangers(), identity("other").peer
    discovered.claim(Origin.MDNS, [claim("192.0.2.7"), claim("192.0.2.7", peer=OWN)])
    discovered.claim(Origin.RENDEZVOUS, [claim("192.0.2.8", peer=other)])
    assert set(discovered.addresses(0.0)) == {claim("192.0.2.7"), claim("192.0.2.8", peer=other)}
    assert (discovered.origin(PEER), discovered.origin(other)) == (Origin.MDNS, Origin.RENDEZVOUS)
    discovered.claim(Origin.MDNS, [])
    assert discovered.addresses(0.0) == (claim("192.0.2.8", peer=other),)
    assert discovered.origin(PEER) is None


def test_a_flood_of_claims_does_not_keep_the_others_out() -> None:
    discovered = strangers()
    flood = [claim("192.0.2.7", peer=identity(f"made up {n}").peer) for n in range(200)]
    kept = 0
    for _ in range(100):
        discovered.claim(Origin.MDNS, [*flood, claim("192.0.2.8")])
        assert len(discovered.addresses(0.0)) == MAX_STRANGERS
        kept += claim("192.0.2.8") in discovered.addresses(0.0)
    assert kept > 3


def test_of_one_stranger_a_few_addresses_are_kept() -> None:
    discovered = strangers()
    discovered.claim(Origin.MDNS, [claim("192.0.2.7", port=port) for port in range(1, 100)])
    assert len(discovered.addresses(0.0)) == MAX_CLAIMED


def test_a_useless_stranger_is_left_alone_longer_each_time_and_forgiven_once_it_proves_itself() -> (
    None
):
    discovered, waits, now = strangers(), [], 0.0
    discovered.claim(Origin.MDNS, [claim("192.0.2.7")])
    for _ in range(10):
        discovered.refuse(PEER, now)
        began = now
        while not discovered.addresses(now):
            now += 1.0
        waits.append(now - began)
    assert 22 <= waits[0] <= 39
    assert waits[0] < waits[2] < waits[-1] <= 751
    discovered.accept(PEER)
    discovered.refuse(PEER, now)
    assert discovered.addresses(now + 40.0)


def test_refusals_are_bounded() -> None:
    discovered = strangers()
    discovered.claim(Origin.MDNS, [claim("192.0.2.7")])
    discovered.refuse(PEER, 0.0)
    for n in range(MAX_REFUSED):
        discovered.refuse(PeerId(f"made up {n}"), 0.0)
    assert discovered.addresses(0.0) == (claim("192.0.2.7"),)
