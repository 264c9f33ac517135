"""Whether other nodes can dial this one: a few of them are asked, and one that cannot is enough."""

from registry.mesh.libp2p.reservations import ASKED, MISSED_AGAIN, REACHED_AGAIN, Reachability
from registry.records import PeerId

A, B, C = map(PeerId, "ABC")


def test_a_node_that_was_told_nothing_is_not_hidden() -> None:
    reachability = Reachability()
    assert not reachability.hidden
    reachability.answered(A, None, 0)
    assert not reachability.hidden


def test_one_peer_that_cannot_reach_us_makes_us_hidden_until_it_can() -> None:
    reachability = Reachability()
    reachability.answered(A, True, 0)
    reachability.answered(B, False, 0)
    assert reachability.hidden
    reachability.answered(B, True, 60)
    assert not reachability.hidden


def test_the_verdict_of_a_peer_that_is_gone_counts_until_another_gives_one() -> None:
    reachability = Reachability()
    reachability.answered(A, False, 0)
    for now in range(1, 4):
        reachability.next({B} if now == 2 else set(), now)
        assert reachability.hidden
    reachability.answered(B, True, 5)
    assert not reachability.hidden
    reachability.next({C}, 6)
    assert not reachability.hidden


def test_peers_are_asked_again_sooner_when_they_could_not_reach_us() -> None:
    reachability = Reachability()
    reachability.answered(A, False, 0)
    reachability.answered(B, True, 0)
    assert reachability.next({A, B}, MISSED_AGAIN - 1) is None
    assert reachability.next({A, B}, MISSED_AGAIN) == A
    reachability.answered(A, True, MISSED_AGAIN)
    assert reachability.next({A, B}, REACHED_AGAIN - 1) is None
    assert reachability.next({A, B}, REACHED_AGAIN) == B


def test_a_few_answers_are_enough() -> None:
    reachability = Reachability()
    many = {PeerId(str(number)) for number in range(20)}
    asked = []
    while (peer := reachability.next(many, 0)) is not None:
        asked.append(peer)
        reachability.answered(peer, True, 0)
    assert len(asked) == ASKED
