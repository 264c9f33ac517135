"""Laws of drawing two."""

from collections import Counter
from random import Random

from registry.records import PeerId, Service
from router.candidates import Candidate
from router.policies.p2c import order


def at(node: str, in_flight: int = 0) -> Candidate:
    return Candidate(PeerId(node), Service("p", "m"), in_flight=in_flight)


def test_of_two_the_less_loaded_is_first() -> None:
    for seed in range(20):
        assert order([at("busy", 5), at("idle", 1)], Random(seed).random)[0] == at("idle", 1)


def test_the_most_loaded_of_many_is_never_first() -> None:
    found = [at("busy", 9), *(at(f"n{number}") for number in range(5))]
    assert all(order(found, Random(seed).random)[0] != found[0] for seed in range(200))


def test_equally_loaded_candidates_share_the_load() -> None:
    found = [at(f"n{number}") for number in range(4)]
    draw = Random(1).random
    firsts = Counter(order(found, draw)[0].node for _ in range(4000))
    assert len(firsts) == 4
    assert max(firsts.values()) < 1.2 * min(firsts.values())
