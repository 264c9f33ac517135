"""The pulses of many nodes: who is followed, who is lost, and who is forgotten first."""

from math import inf

from registry.liveness import Contact, Evidence
from registry.membership import Membership
from registry.settings import RegistrySettings
from tests.strategies import IDENTITIES

A, B, C = (identity.peer for identity in IDENTITIES[:3])
SETTINGS = RegistrySettings()


def members() -> Membership:
    return Membership(SETTINGS)


def test_strangers_are_not_followed() -> None:
    some = members()
    assert not some.observe(A, Evidence.LINKED, 0.0)
    assert not some.pulses
    assert some.due() == inf


def test_the_restored_are_lost_until_they_are_heard() -> None:
    some = members()
    some.restore(A, 5.0)
    assert some.pulses[A].contact is Contact.LOST
    assert some.observe(A, Evidence.LINKED, 6.0)
    assert some.pulses[A].contact is Contact.ALIVE


def test_the_lost_are_listed_from_the_one_that_was_silent_for_longest() -> None:
    some = members()
    for now, node in enumerate((B, A, C)):
        some.follow(node, heard=float(now), now=float(now))
    some.tick(SETTINGS.lease + 1.0)
    assert some.lost() == [B, A]
    some.forget(B)
    assert some.lost() == [A]
