"""Announced doubts, by nodes that were connected lately; and self-awareness: who misses many answers is more patient."""

from collections.abc import Callable
from math import inf

import pytest

from registry.members.suspicion import MANY, MAX_FACTOR, NEAR, WINDOW, Awareness, Suspicion
from registry.records import PeerId
from registry.settings import RegistrySettings

A, B = PeerId("a"), PeerId("b")
SETTINGS = RegistrySettings()
LATER = SETTINGS.probe_timeout


def doubts(jitter: Callable[[], float] = lambda: 0.5) -> Suspicion:
    return Suspicion(SETTINGS, jitter)


def test_a_node_that_was_connected_lately_announces_its_doubt_once_and_a_little_later() -> None:
    some = doubts()
    some.note_disconnected(A, 1.0)
    some.schedule_doubt(A, 1.1, heard_at=0.5, linked=False)
    some.schedule_doubt(B, 1.1, heard_at=0.5, linked=True)
    assert some.take_due(1.1) == []
    assert some.take_due(1.1 + LATER) == [A, B]
    assert some.next_due() == inf
    some.schedule_doubt(A, 2.5, heard_at=0.5, linked=False)
    assert some.take_due(inf) == []
    # The doubted node spoke meanwhile, so this is another doubt.
    some.schedule_doubt(A, 2.6, heard_at=2.0, linked=False)
    assert some.take_due(inf) == [A]


def test_a_node_that_was_not_connected_lately_announces_nothing() -> None:
    some = doubts()
    some.note_disconnected(A, 1.0)
    some.tick(1.1 + NEAR * SETTINGS.suspicion)
    some.schedule_doubt(A, 50.0, heard_at=0.5, linked=False)
    some.schedule_doubt(B, 50.0, heard_at=0.5, linked=False)
    assert some.next_due() == inf


def test_a_node_that_heard_anothers_doubt_announces_none_whether_it_had_probed_before_or_not() -> (
    None
):
    for looked_first in (True, False):
        some = doubts()
        if looked_first:
            some.schedule_doubt(A, 1.0, heard_at=0.5, linked=True)
        assert some.note_doubt(A, 1.1) == 1.1
        some.schedule_doubt(A, 1.2, heard_at=0.5, linked=True)
        assert some.take_due(10.0) == []


def test_a_doubt_is_not_announced_once_the_doubted_node_has_spoken() -> None:
    some = doubts()
    some.schedule_doubt(A, 1.0, heard_at=0.5, linked=True)
    some.cancel_doubt(A)
    assert some.take_due(10.0) == []


def test_of_ten_nodes_that_notice_at_once_a_few_announce_it() -> None:
    # A doubt takes a fifth of a second to reach the others.
    delays = [number / 10 * LATER for number in range(10)]
    announced = [delay for delay in delays if delay < min(delays) + 0.2]
    assert len(announced) <= 3


def test_another_nodes_doubts_count_once_in_the_time_of_suspicion_and_are_forgotten_after_it() -> (
    None
):
    some = doubts()
    assert some.note_doubt(A, 1.0) == 1.0
    assert some.note_doubt(A, 2.0) == some.note_doubt(A, 3.0) == 1.0 + SETTINGS.suspicion
    later = 1.1 + SETTINGS.suspicion
    some.tick(later)
    assert some.note_doubt(A, later) == later
    some.forget(A)
    assert some.note_doubt(A, 4.2) == 4.2


PEERS = [PeerId(f"peer-{number}") for number in range(10)]


def after(missed: int, answered: int) -> Awareness:
    awareness = Awareness()
    for index, peer in enumerate(PEERS[: missed + answered]):
        awareness.note_probe(peer, answered=index >= missed, now=1.0)
    return awareness


@pytest.mark.parametrize("missed", range(MANY))
def test_a_few_silent_peers_say_nothing_about_us(missed: int) -> None:
    assert after(missed, 0).factor(1.0) == 1.0


def test_many_silent_peers_make_us_mistrust_ourselves_unless_most_answer() -> None:
    assert after(MANY, MANY - 1).factor(1.0) == 2.0
    assert after(MANY, MANY).factor(1.0) == 1.0


def test_mistrust_ends_with_answers_and_with_time() -> None:
    awareness = after(MANY, 0)
    assert awareness.factor(1.0 + WINDOW + 0.1) == 1.0
    awareness.note_probe(PEERS[0], answered=True, now=2.0)
    assert awareness.factor(2.0) == 1.0


@pytest.mark.parametrize(("stood_still", "factor"), [(1.0, 2.0), (2.0, 3.0), (600.0, MAX_FACTOR)])
def test_a_node_that_stood_still_is_more_patient_for_a_while(
    stood_still: float, factor: float
) -> None:
    awareness = Awareness()
    awareness.note_stall(stood_still, 100.0)
    assert awareness.factor(100.0) == factor
    assert awareness.factor(200.0) == 1.0


def test_what_is_remembered_is_bounded_by_time() -> None:
    awareness = Awareness()
    for number in range(10_000):
        awareness.note_probe(PeerId(str(number)), answered=False, now=float(number))
    assert len(awareness._outcomes) <= WINDOW + 1
