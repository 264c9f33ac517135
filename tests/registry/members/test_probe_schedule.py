"""Turns of probes: the peer that was silent longest is next, after a pause, and busy ones are passed over."""

from registry.members.liveness import Pulse, first_pulse
from registry.members.probe import ProbeSchedule
from registry.records import PeerId
from registry.settings import RegistrySettings

A, B, STRANGER = PeerId("a"), PeerId("b"), PeerId("c")
SETTINGS = RegistrySettings()


def heard(**at: float) -> dict[PeerId, Pulse]:
    return {PeerId(n): first_pulse(heard=t, now=t, lease=100.0) for n, t in at.items()}


def turns(*linked: PeerId) -> ProbeSchedule:
    some = ProbeSchedule(SETTINGS, lambda: 0.5)
    for node in linked:
        some.join(node)
    return some


def test_the_peer_that_was_silent_longest_is_next_once_it_was_silent_long_enough() -> None:
    assert turns(A, B).next(heard(a=5.0, b=4.0)) == (B, 4.0 + 1.5 * SETTINGS.probe)


def test_strangers_disconnected_peers_and_busy_ones_have_no_turn() -> None:
    some = turns(A, STRANGER)
    assert some.next(heard(a=1.0, b=0.0), {A: 0.0}) is None
    some.part(A)
    assert some.next(heard(a=1.0, b=0.0)) is None


def test_a_turn_that_was_taken_counts_like_a_sign_of_life_and_the_next_one_waits() -> None:
    some = turns(A, B)
    some.take(B, 10.0)
    node, at = some.next(heard(a=5.0, b=4.0)) or (STRANGER, 0.0)
    assert node == A
    assert at == 10.0 + SETTINGS.probe
