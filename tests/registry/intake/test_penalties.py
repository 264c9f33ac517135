"""Penalties: a peer that does again and again what no honest peer does is cut off for a while."""

from registry.admission import BARRED_SECONDS, OFFENCES, Penalties
from registry.records import PeerId

LIAR, OTHER = PeerId("liar"), PeerId("other")


def test_a_few_offences_are_forgiven_and_the_next_bars_a_peer_once() -> None:
    blame = Penalties()
    assert not any(blame.offence(LIAR, 0.0) for _ in range(OFFENCES))
    assert not blame.barred(LIAR, 0.0)
    assert blame.offence(LIAR, 0.0)
    assert not blame.offence(LIAR, 1.0)
    assert blame.barred(LIAR, 1.0)
    assert not blame.barred(OTHER, 1.0)


def test_a_barred_peer_is_heard_again_after_its_time() -> None:
    blame = Penalties()
    for _ in range(OFFENCES + 1):
        blame.offence(LIAR, 0.0)
    assert blame.barred(LIAR, BARRED_SECONDS - 0.1)
    assert not blame.barred(LIAR, BARRED_SECONDS)


def test_a_fault_now_and_then_never_bars_a_peer() -> None:
    blame = Penalties()
    assert not any(blame.offence(LIAR, 10.0 * n) for n in range(1_000))
