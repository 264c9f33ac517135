"""Laws of a relay's promises: bounded in number and time, and whoever is served is not put out for a newcomer."""

from dataclasses import replace

from registry.mesh.libp2p.relay import RelayBook, RelayLimits, RelayRefusal
from registry.records import PeerId

LIMITS = RelayLimits(reservations=2, circuits=3, circuits_per_peer=2, size=1, seconds=1, lease=100)
A, B, C, D = map(PeerId, "ABCD")


def book(**changes: int) -> RelayBook:
    return RelayBook(replace(LIMITS, **changes))


def test_a_place_lasts_for_its_lease_and_longer_when_it_is_renewed() -> None:
    relay = book()
    assert relay.reserve(A, 0) is None
    assert relay.open(B, A, 99) is None
    assert relay.open(C, A, 100) is RelayRefusal.NO_RESERVATION
    assert relay.reserve(A, 100) is None
    assert relay.open(C, A, 199) is None


def test_when_all_places_are_taken_a_newcomer_is_refused_and_the_old_renewed() -> None:
    relay = book()
    assert [relay.reserve(peer, 0) for peer in (A, B, C)] == [None, None, RelayRefusal.TOO_MANY]
    assert relay.reserve(A, 50) is None
    assert relay.reservations(50) == 2
    assert relay.reserve(C, 100) is None
    assert relay.reserve(B, 100) is RelayRefusal.TOO_MANY


def test_a_place_ends_with_its_holders_connection() -> None:
    relay = book()
    relay.reserve(A, 0)
    relay.stay({A, B})
    assert relay.reservations(0) == 1
    relay.stay({B})
    assert relay.open(B, A, 0) is RelayRefusal.NO_RESERVATION


def test_circuits_are_bounded_for_each_end_and_in_all() -> None:
    relay = book(reservations=9)
    for peer in (A, B, C):
        relay.reserve(peer, 0)
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
