"""Laws of shares: by slots where they are known, the same on every node, and within bounds."""

from collections import Counter
from dataclasses import replace
from random import Random

from registry.records import Load, PeerId, Service
from router.select.candidates import Candidate
from router.select.weights import draw, rendezvous, weights, with_room_first
from router.state.remote_load import Reported
from tests.router.world import own


def at(node: str, *, slots: int = 0, in_flight: int = 0) -> Candidate:
    report = Reported(Load(in_flight, slots=slots), ours=in_flight, age=0.0)
    return Candidate(PeerId(node), Service("p", "m"), in_flight=in_flight, report=report)


def test_slots_are_those_that_were_registered_or_reported_and_else_unknown() -> None:
    assert own("http://127.0.0.1:1", capacity=4).slots == 4
    assert at("n", slots=7).slots == 7
    assert replace(at("n"), report=None).slots == 0


def test_one_unknown_makes_all_alike() -> None:
    assert weights([at("a", slots=2), at("b", slots=8)]) == [2, 8]
    assert weights([at("a", slots=2), at("b")]) == [1, 1]


def test_drawing_follows_the_weights_and_leaves_out_nothing_but_zero() -> None:
    drawn = Counter(draw([1, 0, 3], Random(seed).random) for seed in range(2000))
    assert drawn[1] == 0
    assert 2.4 < drawn[2] / drawn[0] < 3.8


def test_rendezvous_is_the_same_whoever_asks_and_follows_the_slots() -> None:
    found = [at("a", slots=2), at("b", slots=8)]
    firsts: Counter[PeerId] = Counter()
    for number in range(1000):
        key = str(number).encode()
        first = rendezvous(key, found)[0]
        assert first == rendezvous(key, found[::-1])[0]
        firsts[first.node] += 1
    assert 730 < firsts[PeerId("b")] < 870


def test_whoever_has_far_more_than_its_share_comes_last_and_the_rest_stays() -> None:
    found = [at("a", in_flight=1), at("b", in_flight=40), at("c"), at("d", in_flight=2)]
    assert [c.node for c in with_room_first(found)] == ["a", "c", "d", "b"]


def test_a_share_is_counted_by_slots() -> None:
    found = [at("big", slots=30, in_flight=30), at("small", slots=10, in_flight=10)]
    assert with_room_first(found) == found


def test_nobody_has_room_then_the_order_stays() -> None:
    found = [at("a", in_flight=50)]
    assert with_room_first(found) == found
    assert with_room_first([]) == []
