"""Places at relays, held and renewed in time; and whether other nodes can dial this one."""

import random

from registry.mesh.libp2p.reservations import (
    ADDRESSES,
    ASKED,
    HELD,
    MISSED_AGAIN,
    REACHED_AGAIN,
    RENEW_WITHIN,
    Reachability,
    Reservations,
)
from registry.records import PeerId

OWN, A, B, C = map(PeerId, ("own", "A", "B", "C"))


def at(relay: PeerId, count: int = 1) -> list[str]:
    return [f"/ip4/192.0.2.{n}/tcp/1/p2p/{relay}" for n in range(1, count + 1)]


def holding(*relays: PeerId, lease: float = 600.0) -> Reservations:
    reservations = Reservations(OWN, random.Random(1))
    for relay in relays:
        reservations.note_granted(relay, at(relay), lease, 0)
    return reservations


def test_connected_peers_are_asked_until_two_places_are_held() -> None:
    reservations = holding()
    asked = []
    while (relay := reservations.next({A, B, C}, 0)) is not None:
        asked.append(relay)
        reservations.note_granted(relay, at(relay), 600, 0)
    assert len(asked) == HELD
    assert reservations.relays == set(asked)


def test_the_addresses_that_are_announced_lead_through_the_relays_to_us() -> None:
    assert holding(B, A).addresses == (
        "/ip4/192.0.2.1/tcp/1/p2p/A/p2p-circuit/p2p/own",
        "/ip4/192.0.2.1/tcp/1/p2p/B/p2p-circuit/p2p/own",
    )


def test_of_the_addresses_that_a_relay_names_only_its_own_count_and_a_few_of_them() -> None:
    reservations = holding()
    addresses = [*at(B), f"{at(B)[0]}/p2p-circuit/p2p/A", "junk", *at(A, 9)]
    reservations.note_granted(A, addresses, 600, 0)
    assert len(reservations.addresses) == ADDRESSES
    assert all("/p2p/A/p2p-circuit/p2p/own" in address for address in reservations.addresses)


def test_a_place_is_renewed_after_half_its_lease_and_within_two_minutes_whatever_the_relays_clock() -> (
    None
):
    for lease, when in ((60.0, 30.0), (86_400.0, RENEW_WITHIN), (-3600.0, 1.0)):
        reservations = holding(A, B, lease=lease)
        assert reservations.next({A, B}, when - 0.5) is None
        assert reservations.next({A, B}, when) == A


def test_a_place_that_is_refused_or_lost_is_sought_elsewhere() -> None:
    reservations = holding(A, B)
    reservations.note_refused(A, 0)
    assert reservations.next({A, B, C}, 0) == C
    reservations.note_granted(C, at(C), 600, 0)
    reservations.note_disconnected(B)
    assert reservations.relays == {C}
    assert reservations.next({A, B, C}, 0) == B


def test_a_relay_that_refused_is_asked_again_later_and_at_once_when_it_comes_back() -> None:
    reservations = holding()
    reservations.note_refused(A, 0)
    assert reservations.next({A}, 9) is None
    assert reservations.next({A}, 10) == A
    reservations.note_refused(A, 10)
    assert reservations.next({A}, 29) is None
    reservations.note_disconnected(A)
    assert reservations.next({A}, 29) == A


def test_a_node_that_is_reached_directly_gives_up_its_places() -> None:
    reservations = holding(A, B)
    reservations.clear()
    assert reservations.addresses == ()


def test_a_node_that_was_told_nothing_is_not_hidden() -> None:
    reachability = Reachability()
    assert not reachability.is_hidden
    reachability.note_answer(A, None, 0)
    assert not reachability.is_hidden


def test_one_peer_that_cannot_reach_us_makes_us_hidden_until_it_can() -> None:
    reachability = Reachability()
    reachability.note_answer(A, True, 0)
    reachability.note_answer(B, False, 0)
    assert reachability.is_hidden
    reachability.note_answer(B, True, 60)
    assert not reachability.is_hidden


def test_the_verdict_of_a_peer_that_is_gone_counts_until_another_gives_one() -> None:
    reachability = Reachability()
    reachability.note_answer(A, False, 0)
    for now in range(1, 4):
        reachability.next({B} if now == 2 else set(), now)
        assert reachability.is_hidden
    reachability.note_answer(B, True, 5)
    assert not reachability.is_hidden
    reachability.next({C}, 6)
    assert not reachability.is_hidden


def test_peers_are_asked_again_sooner_when_they_could_not_reach_us() -> None:
    reachability = Reachability()
    reachability.note_answer(A, False, 0)
    reachability.note_answer(B, True, 0)
    assert reachability.next({A, B}, MISSED_AGAIN - 1) is None
    assert reachability.next({A, B}, MISSED_AGAIN) == A
    reachability.note_answer(A, True, MISSED_AGAIN)
    assert reachability.next({A, B}, REACHED_AGAIN - 1) is None
    assert reachability.next({A, B}, REACHED_AGAIN) == B


def test_a_few_answers_are_enough() -> None:
    reachability = Reachability()
    many = {PeerId(str(number)) for number in range(20)}
    asked = []
    while (peer := reachability.next(many, 0)) is not None:
        asked.append(peer)
        reachability.note_answer(peer, True, 0)
    assert len(asked) == ASKED
