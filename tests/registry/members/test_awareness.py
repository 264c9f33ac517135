"""Self-awareness: a node that misses many answers, or stood still, is more patient; one that misses a few is not."""

import pytest

from registry.members.suspicion import MANY, MOST, WINDOW, Awareness
from registry.records import PeerId

PEERS = [PeerId(f"peer-{number}") for number in range(10)]


def after(missed: int, answered: int) -> Awareness:
    one = Awareness()
    for place, peer in enumerate(PEERS[: missed + answered]):
        one.note(peer, answered=place >= missed, now=1.0)
    return one


@pytest.mark.parametrize("missed", range(MANY))
def test_a_few_silent_peers_say_nothing_about_us(missed: int) -> None:
    assert after(missed, 0).factor(1.0) == 1.0


def test_many_silent_peers_make_us_mistrust_ourselves_unless_most_answer() -> None:
    assert after(MANY, MANY - 1).factor(1.0) == 2.0
    assert after(MANY, MANY).factor(1.0) == 1.0


def test_mistrust_ends_with_answers_and_with_time() -> None:
    one = after(MANY, 0)
    assert one.factor(1.0 + WINDOW + 0.1) == 1.0
    one.note(PEERS[0], answered=True, now=2.0)
    assert one.factor(2.0) == 1.0


@pytest.mark.parametrize(("stood_still", "factor"), [(1.0, 2.0), (2.0, 3.0), (600.0, MOST)])
def test_a_node_that_stood_still_is_more_patient_for_a_while(
    stood_still: float, factor: float
) -> None:
    one = Awareness()
    one.stalled(stood_still, 100.0)
    assert one.factor(100.0) == factor
    assert one.factor(200.0) == 1.0


def test_what_is_remembered_is_bounded_by_time() -> None:
    one = Awareness()
    for number in range(10_000):
        one.note(PeerId(str(number)), answered=False, now=float(number))
    assert len(one._outcomes) <= WINDOW + 1
