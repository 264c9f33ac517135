"""Eviction when too many peers have come: the idle give way, the crowd of one network, else the newcomer."""

from collections.abc import Collection

import pytest

from registry.mesh.libp2p.watch import NEW_SECONDS, InboundPeer, find_excess, network_of
from registry.records import PeerId

LATER = 100.0


def callers(*addresses: str) -> list[InboundPeer]:
    """Return callers a, b, c … that came a second apart."""
    return [InboundPeer(PeerId(chr(97 + n)), address, n) for n, address in enumerate(addresses)]


def leave(
    inbound: list[InboundPeer],
    known_peers: Collection[str] = (),
    *,
    capacity: int = 100,
    per_address: int = 100,
    now: float = LATER,
) -> str:
    knows = known_peers.__contains__
    return "".join(
        find_excess(inbound, now, capacity=capacity, per_address=per_address, knows=knows)
    )


def test_no_peer_leaves_while_there_is_room() -> None:
    assert not leave(callers("10.0.0.1", "10.0.0.1"), capacity=2, per_address=2)


def test_peers_that_showed_no_record_leave_first_and_the_longest_idle_of_them_before_the_rest() -> (
    None
):
    inbound = callers("10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4")
    assert leave(inbound, "ac", capacity=3) == "b"
    assert leave(inbound, "ac", capacity=2) == "bd"


def test_a_peer_that_has_just_come_has_time_to_show_its_record() -> None:
    inbound = callers("10.0.0.1", "10.0.0.2", "10.0.0.3")
    # The newcomer itself is sent away while it is no other peer's turn.
    assert leave(inbound, "a", capacity=2, now=1 + NEW_SECONDS / 2) == "c"
    assert leave(inbound, "a", capacity=2, now=1 + NEW_SECONDS) == "b"


def test_idle_peers_of_the_fullest_network_and_address_leave_before_other_idle_ones() -> None:
    inbound = callers("192.0.2.1", "10.0.0.1", "10.0.0.2", "10.0.0.2", "10.0.0.3")
    assert leave(inbound, capacity=4) == "c"
    assert leave(inbound, capacity=2) == "cbd"


def test_a_network_that_holds_more_gives_way_to_one_that_holds_less() -> None:
    inbound = callers("10.0.0.1", "10.0.0.2", "10.0.0.3", "192.0.2.1")
    assert leave(inbound, "abcd", capacity=3) == "c"
    # A peer that was sent away does not take another's place by coming back.
    again = [*inbound[:2], inbound[3], InboundPeer(PeerId("c"), "10.0.0.3", 9.0)]
    assert leave(again, "abcd", capacity=3) == "c"


def test_where_all_are_known_and_of_one_network_the_newcomer_leaves() -> None:
    assert leave(callers("10.0.0.1", "10.0.0.2", "10.0.0.3"), "abc", capacity=2) == "c"


def test_one_address_holds_no_more_than_its_share_and_its_idle_peers_make_room() -> None:
    inbound = callers("10.0.0.1", "10.0.0.1", "10.0.0.2", "10.0.0.1")
    assert leave(inbound, "acd", per_address=2) == "b"
    assert leave(inbound, "abcd", per_address=2) == "d"


@pytest.mark.parametrize(
    ("one", "other"),
    [("10.1.2.3", "10.1.2.250"), ("2001:db8:1::1", "2001:db8:1:ffff::1"), ("", "")],
)
def test_neighbours_are_of_one_network(one: str, other: str) -> None:
    assert network_of(one) == network_of(other)
    assert network_of(one) not in (network_of("10.1.3.1"), network_of("2001:db8:2::1"))
