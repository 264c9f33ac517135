"""Promises of a relay: bounded in number and time, and a peer that is served is not put out for a newcomer."""

from dataclasses import replace

from registry.mesh.libp2p.eviction import NEW_SECONDS
from registry.mesh.libp2p.relay import CarryBook, RelayBook, RelayLimits, RelayRefusal
from registry.records import PeerId

LIMITS = RelayLimits(reservations=2, circuits=3, circuits_per_peer=2, size=1, seconds=1, lease=100)
A, B, C, D = map(PeerId, "ABCD")
HOME, AWAY = "10.0.0.1", "10.0.0.2"


def book(**changes: int) -> RelayBook:
    return RelayBook(replace(LIMITS, **changes), lambda _: True)


def test_a_place_lasts_for_its_lease_and_longer_when_it_is_renewed() -> None:
    relay = book()
    assert relay.reserve(A, HOME, 0) is None
    assert relay.open(B, A, 99) is None
    assert relay.open(C, A, 100) is RelayRefusal.NO_RESERVATION
    assert relay.reserve(A, HOME, 100) is None
    assert relay.open(C, A, 199) is None


def test_when_all_places_are_taken_a_newcomer_is_refused_and_old_holders_are_renewed() -> None:
    relay = book()
    assert [relay.reserve(peer, HOME, 0) for peer in (A, B, C)] == [
        None,
        None,
        RelayRefusal.TOO_MANY,
    ]
    assert relay.reserve(A, HOME, 50) is None
    assert relay.reservations(50) == 2
    assert relay.reserve(C, HOME, 100) is None
    assert relay.reserve(B, HOME, 100) is RelayRefusal.TOO_MANY


def test_a_place_ends_with_its_holders_connection() -> None:
    relay = book()
    relay.reserve(A, HOME, 0)
    relay.stay({A, B})
    assert relay.reservations(0) == 1
    relay.stay({B})
    assert relay.open(B, A, 0) is RelayRefusal.NO_RESERVATION


def test_circuits_are_bounded_for_each_end_and_in_all() -> None:
    relay = book(reservations=9)
    for peer in (A, B, C):
        relay.reserve(peer, HOME, 0)
    assert relay.open(D, A, 0) is None
    assert relay.open(D, B, 0) is None
    assert relay.open(D, C, 0) is RelayRefusal.TOO_MANY
    assert relay.open(B, C, 0) is None
    assert relay.circuits == 3
    assert relay.open(A, C, 0) is RelayRefusal.TOO_MANY
    relay.close(D, A)
    assert relay.open(A, C, 0) is None
    for pair in ((D, B), (B, C), (A, C)):
        relay.close(*pair)
    assert relay.circuits == 0
    assert not relay._circuits


def test_the_address_with_most_reservations_gives_an_unused_one_for_another() -> None:
    relay = book(reservations=3)
    for peer in (A, B, C):
        relay.reserve(peer, HOME, 0)
    relay.open(D, A, 0)
    relay.open(D, B, 0)
    assert relay.reserve(D, AWAY, 1) == C
    assert relay.reservations(1) == 3
    # A and B are in use, and an address with one place more than another does not lose it.
    assert relay.reserve(C, "10.0.0.3", 2) is RelayRefusal.TOO_MANY


def test_an_unused_reservation_of_an_unknown_peer_gives_way_to_its_neighbour() -> None:
    known = {A}
    relay = RelayBook(LIMITS, known.__contains__)
    for peer in (A, B):
        relay.reserve(peer, HOME, 0)
    assert relay.reserve(C, HOME, NEW_SECONDS - 1) is RelayRefusal.TOO_MANY
    assert relay.reserve(C, HOME, NEW_SECONDS) == B
    assert relay.open(D, B, NEW_SECONDS) is RelayRefusal.NO_RESERVATION


def test_circuits_are_carried_between_members_alone() -> None:
    carried = CarryBook(2, {A, B}.__contains__)
    assert carried.open(A, C, 0) is carried.open(C, A, 0) is RelayRefusal.NO_RESERVATION
    assert CarryBook(0, lambda _: True).open(A, B, 0) is RelayRefusal.NO_RESERVATION
    assert carried.open(A, B, 0) is None


def test_carried_circuits_are_bounded_and_one_asker_has_half_of_them() -> None:
    carried = CarryBook(4, lambda _: True)
    opened = [carried.open(asker, D, 0) for asker in (A, A, A, B, C, C)]
    full = RelayRefusal.TOO_MANY
    assert opened == [None, None, full, None, None, full]
    assert carried.circuits == 4
    carried.close(A, D)
    assert carried.open(B, D, 0) is None
