"""Claimed addresses: a peer's claim is believed as far as it can be true, seen from this node."""

import pytest

from registry.intake.dialable import (
    direct_addresses,
    is_credible_host,
    is_local_only,
    relayed_addresses,
)
from registry.records import Reach
from registry.signing import Identity

NODE = Identity(bytes([1]) * 32).peer
OTHER = Identity(bytes([2]) * 32).peer

ANYWHERE = [
    "192.0.2.7",
    "10.0.0.1",
    "192.168.77.2",
    "2001:db8::1",
    "fd00::1",
    "node.example",
    "node",
]
NOWHERE = ["", "0.0.0.0", "::", "224.0.0.1", "ff02::1", "169.254.1.1", "fe80::1", "255.255.255.255"]
LOOPBACK = [
    "127.0.0.1",
    "127.255.0.9",
    "::1",
    "localhost",
    "LOCALHOST.",
    "a.localhost",
    "::ffff:127.0.0.1",
]
DISGUISED = ["127.1", "2130706433", "0x7f000001", "0x7f.1", "0177.0.0.1"]


@pytest.mark.parametrize("together", [True, False])
def test_only_addresses_that_a_machine_can_have_are_believed(together: bool) -> None:
    assert [host for host in ANYWHERE if not is_credible_host(host, together=together)] == []
    assert [host for host in NOWHERE + DISGUISED if is_credible_host(host, together=together)] == []


def test_a_claim_of_loopback_counts_only_among_nodes_of_one_machine() -> None:
    assert [host for host in LOOPBACK if is_credible_host(host, together=False)] == []
    assert [host for host in LOOPBACK if not is_credible_host(host, together=True)] == []


@pytest.mark.parametrize(
    ("own", "together"),
    [
        (Reach(), True),
        (Reach(mesh=(f"/ip4/127.0.0.1/tcp/1/p2p/{NODE}",), links=("127.0.0.1:2", "[::1]:2")), True),
        (Reach(mesh=(f"/ip4/127.0.0.1/tcp/1/p2p/{NODE}",), links=("192.0.2.1:2",)), False),
        (Reach(mesh=(f"/ip4/192.0.2.1/tcp/1/p2p/{NODE}",), links=("127.0.0.1:2",)), False),
        (Reach(mesh=(f"/dns4/node.example/tcp/1/p2p/{NODE}",)), False),
    ],
)
def test_we_are_among_ourselves_when_all_our_own_addresses_are_loopback(
    own: Reach,
    together: bool,
) -> None:
    assert is_local_only(own) is together


def test_only_addresses_that_lead_to_the_node_itself_are_dialled() -> None:
    good = f"/ip4/192.0.2.7/tcp/1/p2p/{NODE}"
    reach = Reach(
        mesh=(
            f"/ip4/192.0.2.7/tcp/1/p2p/{OTHER}",
            "/ip4/192.0.2.7/tcp/1",
            f"/p2p/{NODE}",
            f"/ip4/127.0.0.1/tcp/1/p2p/{NODE}",
            f"/ip4/169.254.0.1/tcp/1/p2p/{NODE}",
            good,
        )
    )
    assert direct_addresses(reach, NODE, together=False) == (good,)


def test_an_address_at_a_relay_is_told_from_one_of_the_nodes_own() -> None:
    direct = f"/ip4/192.168.77.2/tcp/1/p2p/{NODE}"
    relayed = f"/ip4/192.0.2.7/tcp/1/p2p/{OTHER}/p2p-circuit/p2p/{NODE}"
    nowhere = f"/ip4/127.0.0.1/tcp/1/p2p/{OTHER}/p2p-circuit/p2p/{NODE}"
    reach = Reach(mesh=(nowhere, relayed, direct))
    assert direct_addresses(reach, NODE, together=False) == (direct,)
    assert relayed_addresses(reach, NODE, together=False) == (relayed,)
