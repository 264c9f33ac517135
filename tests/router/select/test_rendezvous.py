"""Laws of rendezvous hashing: the same on every node, in proportion to capacity, and few keys move."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from registry.records import PeerId, Service
from router.openai.prefixes import Prefix, Prefixes
from router.select.candidates import Candidate
from router.select.rendezvous import conversation_key, order_by_key
from tests.router.world import chat

FOUND = [Candidate(PeerId(name), Service("p", "m")) for name in "abcd"]
KEYS = [str(number).encode() for number in range(1_000)]


def order(key: bytes, candidates: Sequence[Candidate], parts: Sequence[float]) -> list[PeerId]:
    return [candidates[index].node for index in order_by_key(key, candidates, parts)]


def test_the_order_does_not_depend_on_the_order_of_the_candidates() -> None:
    for key in KEYS[:50]:
        assert order(key, FOUND, [1] * 4) == order(key, FOUND[::-1], [1] * 4)


def test_each_candidate_is_first_in_proportion_to_its_capacity() -> None:
    firsts = Counter(order(key, FOUND, [4, 1, 1, 1])[0] for key in KEYS)
    assert 500 < firsts[PeerId("a")] < 640
    assert all(100 < firsts[PeerId(name)] < 190 for name in "bcd")


def test_a_candidate_that_leaves_moves_only_its_own_keys() -> None:
    for key in KEYS:
        before, after = order(key, FOUND, [1] * 4), order(key, FOUND[1:], [1] * 3)
        assert after == [node for node in before if node != "a"]


def test_no_key_moves_when_an_estimated_speed_changes_a_little() -> None:
    for key in KEYS:
        assert order(key, FOUND, [4.0, 1.0, 1.1, 0.9]) == order(key, FOUND, [3.2, 1.3, 0.8, 1.2])


def test_the_key_of_a_conversation_is_its_session_or_its_opening() -> None:
    request = replace(chat(), prefixes=Prefixes((Prefix(b"first", 5), Prefix(b"later", 9))))
    assert conversation_key(request) == b"first"
    assert conversation_key(replace(request, session="mine")) == b"mine"
    assert conversation_key(chat()) == b""
