"""Announced doubts: by nodes that were connected lately, by one of them for all, and never after another's."""

from collections.abc import Callable
from math import inf

from registry.members.suspicion import NEAR, Suspicion
from registry.records import PeerId
from registry.settings import RegistrySettings

A, B = PeerId("a"), PeerId("b")
SETTINGS = RegistrySettings()
LATER = SETTINGS.probe_timeout


def doubts(jitter: Callable[[], float] = lambda: 0.5) -> Suspicion:
    return Suspicion(SETTINGS, jitter)


def test_a_node_that_was_connected_lately_announces_its_doubt_once_and_a_little_later() -> None:
    some = doubts()
    some.parted(A, 1.0)
    some.unreached(A, 1.1, heard=0.5, linked=False)
    some.unreached(B, 1.1, heard=0.5, linked=True)
    assert some.said(1.1) == []
    assert some.said(1.1 + LATER) == [A, B]
    assert some.due() == inf
    some.unreached(A, 2.5, heard=0.5, linked=False)
    assert some.said(inf) == []
    # The doubted node spoke meanwhile, so this is another doubt.
    some.unreached(A, 2.6, heard=2.0, linked=False)
    assert some.said(inf) == [A]


def test_a_node_that_was_not_connected_lately_announces_nothing() -> None:
    some = doubts()
    some.parted(A, 1.0)
    some.tick(1.1 + NEAR * SETTINGS.suspicion)
    some.unreached(A, 50.0, heard=0.5, linked=False)
    some.unreached(B, 50.0, heard=0.5, linked=False)
    assert some.due() == inf


def test_a_node_that_heard_anothers_doubt_announces_none_whether_it_had_probed_before_or_not() -> (
    None
):
    for looked_first in (True, False):
        some = doubts()
        if looked_first:
            some.unreached(A, 1.0, heard=0.5, linked=True)
        assert some.hear(A, 1.1) == 1.1
        some.unreached(A, 1.2, heard=0.5, linked=True)
        assert some.said(10.0) == []


def test_a_doubt_is_not_announced_once_the_doubted_node_has_spoken() -> None:
    some = doubts()
    some.unreached(A, 1.0, heard=0.5, linked=True)
    some.settle(A)
    assert some.said(10.0) == []


def test_of_ten_nodes_that_notice_at_once_a_few_announce_it() -> None:
    # A doubt takes a fifth of a second to reach the others.
    waits = [number / 10 * LATER for number in range(10)]
    said = [at for at in waits if at < min(waits) + 0.2]
    assert len(said) <= 3


def test_another_nodes_doubts_count_once_in_the_time_of_suspicion_and_are_forgotten_after_it() -> (
    None
):
    some = doubts()
    assert some.hear(A, 1.0) == 1.0
    assert some.hear(A, 2.0) == some.hear(A, 3.0) == 1.0 + SETTINGS.suspicion
    later = 1.1 + SETTINGS.suspicion
    some.tick(later)
    assert some.hear(A, later) == later
    some.forget(A)
    assert some.hear(A, 4.2) == 4.2
