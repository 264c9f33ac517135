"""The pulses of many nodes: who is followed, who is lost, and who is forgotten first."""

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from registry.liveness import LIFE, Contact, Evidence
from registry.membership import Membership
from registry.records import PeerId
from registry.settings import RegistrySettings
from tests.strategies import IDENTITIES

A, B, C, D = (identity.peer for identity in IDENTITIES[:4])
SETTINGS = RegistrySettings()


def members() -> Membership:
    return Membership(SETTINGS, lambda: 0.5)


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
        some.follow(node, heard=float(now), now=float(now), left=False)
    some.tick(SETTINGS.lease + 1.0)
    assert some.lost() == [B, A]
    some.forget(B)
    assert some.lost() == [A]


# Probes.


def knowing(*nodes: PeerId, linked: bool = True, **settings: float) -> Membership:
    some = Membership(RegistrySettings(**settings), lambda: 0.5)
    for node in nodes:
        some.follow(node, heard=0.0, now=0.0, left=False)
        if linked:
            some.observe(node, Evidence.LINKED, 0.0)
    return some


def steps(some: Membership, until: float, *, dead: frozenset[PeerId] = frozenset()) -> list[PeerId]:
    """Live until then in steps of a tenth of a second, answering for all but the dead; return who was probed."""
    probed: list[PeerId] = []
    for tenth in range(1, int(until * 10) + 1):
        now = tenth / 10
        some.tick(now)
        for node in some.probes(now):
            probed.append(node)
            if node in dead:
                some.observe(node, Evidence.MISSED, now)
                some.observe(node, Evidence.UNREACHED, now)
            else:
                some.observe(node, Evidence.ANSWERED, now)
    return probed


def test_connected_peers_are_probed_in_turn_and_nobody_else() -> None:
    some = knowing(A, B)
    some.follow(C, heard=0.0, now=0.0, left=False)
    probed = steps(some, 20.0)
    assert probed.count(C) == 0
    assert abs(probed.count(A) - probed.count(B)) <= 1
    assert len(probed) <= 20.0 / SETTINGS.probe + 1


def test_who_is_heard_all_the_time_is_not_probed() -> None:
    some = knowing(A)
    for tenth in range(100):
        some.observe(A, Evidence.WORD, tenth / 10)
        some.tick(tenth / 10)
        assert some.probes(tenth / 10) == []


def test_a_silent_peer_is_suspect_after_one_missed_probe_and_lost_after_the_time_for_doubt() -> (
    None
):
    some = knowing(A, B)
    seen: dict[Contact, float] = {}
    some.observe(B, Evidence.ANSWERED, 0.0)
    for tenth in range(1, 100):
        now = tenth / 10
        some.tick(now)
        for node in some.probes(now):
            evidence = Evidence.ANSWERED if node == B else Evidence.UNREACHED
            some.observe(node, evidence, now)
        seen.setdefault(some.pulses[A].contact, now)
    assert seen[Contact.SUSPECT] <= 3.0
    assert seen[Contact.LOST] - seen[Contact.SUSPECT] <= SETTINGS.suspicion + 0.2
    assert some.pulses[B].contact is Contact.ALIVE


@pytest.mark.parametrize("life", sorted(LIFE))
def test_any_sign_of_life_ends_the_doubt_and_the_round(life: Evidence) -> None:
    some = knowing(A)
    some.observe(A, Evidence.PARTED, 1.0)
    assert some.probes(1.0) == [A]
    some.observe(A, life, 1.2)
    assert some.pulses[A].contact is Contact.ALIVE
    # What the round still says was found out before.
    assert not some.observe(A, Evidence.UNREACHED, 1.3)
    assert some.pulses[A].contact is Contact.ALIVE
    assert some.doubts(10.0) == []


def test_another_nodes_doubt_makes_us_look_and_nothing_else() -> None:
    some = knowing(A, linked=False)
    some.accuse(A, 1.0)
    some.tick(1.0)
    assert some.probes(1.0) == []
    assert some.pulses[A].contact is Contact.ALIVE
    assert some.probes(1.0 + SETTINGS.probe_timeout) == [A]


def test_a_sign_of_life_in_time_makes_looking_needless() -> None:
    some = knowing(A, linked=False)
    some.accuse(A, 1.0)
    some.observe(A, Evidence.WORD, 1.1)
    assert some.probes(5.0) == []


def test_doubts_without_end_cost_one_probe_in_the_time_for_doubt() -> None:
    some = knowing(A, linked=False)
    probed = 0
    for tenth in range(1, 301):
        some.accuse(A, tenth / 10)
        some.tick(tenth / 10)
        for node in some.probes(tenth / 10):
            probed += 1
            some.observe(node, Evidence.ANSWERED, tenth / 10)
    assert probed <= 30 / SETTINGS.suspicion + 1


def test_we_doubt_aloud_once_and_not_when_another_has() -> None:
    some = knowing(A, B, C)
    for node in (A, B):
        some.observe(node, Evidence.PARTED, 1.0)
    some.probes(1.0)
    for node in (A, B):
        some.observe(node, Evidence.UNREACHED, 1.1)
    some.accuse(B, 1.15)
    assert some.doubts(3.0) == [A]
    assert some.doubts(9.0) == []


def test_who_misses_many_at_once_accuses_nobody_and_waits_longer() -> None:
    few, many = knowing(A), knowing(A, B, C, D)
    for some in (few, many):
        steps(some, SETTINGS.suspicion + 3.5, dead=frozenset({A, B, C, D}))
    assert few.pulses[A].contact is Contact.LOST
    waiting = [node for node in (A, B, C, D) if many.pulses[node].contact is Contact.SUSPECT]
    assert waiting
    assert many.doubts(100.0) == []


def test_who_stood_still_takes_nobody_for_silent() -> None:
    some = knowing(A, linked=False, lease=120.0)
    some.stalled(1_000.0, 1_000.0)
    assert some.tick(1_000.0) == frozenset()
    assert some.tick(1_120.0) == {A}


def test_who_said_goodbye_is_not_looked_for() -> None:
    some = knowing(A)
    some.follow(A, heard=1.0, now=1.0, left=True)
    some.observe(A, Evidence.PARTED, 1.1)
    some.accuse(A, 1.2)
    assert steps(some, 10.0) == []


def test_hearsay_counts_for_whom_we_never_heard_and_for_nobody_else() -> None:
    some = knowing(A, linked=False)
    some.tick(SETTINGS.lease + 1.0)
    some.restore(B, 0.0)
    now = SETTINGS.lease + 2.0
    assert not some.told(A, now, now)
    assert not some.told(B, now - SETTINGS.lease - 1.0, now)
    assert some.told(B, now - 1.0, now)
    assert some.pulses[B].contact is Contact.ALIVE
    assert not some.told(C, now, now)


def test_among_many_the_lease_grows_as_heartbeats_become_rarer() -> None:
    some = members()
    for number in range(49):
        some.follow(PeerId(f"peer-{number}"), heard=0.0, now=0.0, left=False)
    some.tick(1.0)
    assert some.rarity == 10.0
    assert some.lease == 10.0 * SETTINGS.lease


@given(
    st.lists(
        st.tuples(st.sampled_from([A, B, C]), st.sampled_from(Evidence), st.floats(0.01, 5.0)),
        max_size=40,
    )
)
def test_whatever_is_seen_something_is_due_only_when_there_is_something_to_do(story) -> None:
    some, now = knowing(A, B), 0.0
    for node, evidence, pause in story:
        now += pause
        some.tick(now)
        some.observe(node, evidence, now)
        some.probes(now)
        some.doubts(now)
        due = some.due()
        if due == inf:
            continue
        now = max(now, due)
        changed = some.tick(now)
        assert changed or some.probes(now) or some.doubts(now) or some.due() > now
        assert len(some._running) <= 3
