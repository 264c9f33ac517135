"""The pulses of many nodes: which are followed, which are lost, and which are probed when."""

from itertools import pairwise
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from registry.members.liveness import LIFE, Evidence, Status
from registry.members.membership import (
    FEW,
    LONGEST_LEASE,
    RARELY,
    REQUESTED_PROBE_PAUSE,
    Membership,
)
from registry.members.probe import OwnProbe, ProbeStep
from registry.records import PeerId
from registry.settings import RegistrySettings
from registry.sync import MAX_AGE
from tests.strategies import IDENTITIES

A, B, C, D = (identity.peer for identity in IDENTITIES[:4])
SETTINGS = RegistrySettings()


def members() -> Membership:
    return Membership(SETTINGS, lambda: 0.5)


def test_strangers_are_not_followed() -> None:
    some = members()
    assert not some.observe(A, Evidence.LINKED, 0.0)
    assert not some.health
    assert some.next_due() == inf


def test_restored_nodes_are_lost_until_they_are_heard() -> None:
    some = members()
    some.restore(A, 5.0)
    assert some.health[A].contact is Status.LOST
    assert not some.observe(A, Evidence.LINKED, 6.0)
    assert some.start_due_probes(6.0) == [A]
    assert some.observe(A, Evidence.ANSWERED, 6.1)
    assert some.health[A].contact is Status.ALIVE


def test_lost_nodes_are_listed_from_the_one_that_was_silent_for_longest() -> None:
    some = members()
    for now, node in enumerate((B, A, C)):
        some.note_record(node, heard_at=float(now), now=float(now), has_left=False)
    some.tick(SETTINGS.lease + 1.0)
    assert some.lost_nodes() == [B, A]
    some.forget(B)
    assert some.lost_nodes() == [A]


# Probes.


def knowing(*nodes: PeerId, linked: bool = True, **settings: float) -> Membership:
    some = Membership(RegistrySettings(**settings), lambda: 0.5)
    for node in nodes:
        some.note_record(node, heard_at=0.0, now=0.0, has_left=False)
        if linked:
            some.observe(node, Evidence.LINKED, 0.0)
    return some


def steps(some: Membership, until: float, *, dead: frozenset[PeerId] = frozenset()) -> list[PeerId]:
    """Run until then in steps of a tenth of a second, answering for all but the dead; return the nodes that were probed."""
    return [node for _, node in story(some, until, dead=dead)]


def story(
    some: Membership,
    until: float,
    *,
    since: float = 0.0,
    dead: frozenset[PeerId] = frozenset(),
    proven: frozenset[PeerId] = frozenset(),
) -> list[tuple[float, PeerId]]:
    """Run from `since` to `until`; our own way to `proven` is shut. Return which nodes were probed, and when."""
    probed: list[tuple[float, PeerId]] = []
    for tenth in range(int(since * 10) + 1, int(until * 10) + 1):
        now = tenth / 10
        some.tick(now)
        for node in some.start_due_probes(now):
            probed.append((now, node))
            if node in dead:
                some.observe(node, Evidence.MISSED, now)
                some.observe(node, Evidence.UNREACHED, now)
            elif node in proven:
                some.observe(node, Evidence.MISSED, now)
                some.observe(node, Evidence.PROVEN, now + 0.01)
                some.observe(node, Evidence.MISSED, now + 0.02)
            else:
                some.observe(node, Evidence.ANSWERED, now)
            some.end_probe(node, now + 0.02)
    return probed


def test_only_connected_peers_are_probed_in_turn() -> None:
    some = knowing(A, B)
    some.note_record(C, heard_at=0.0, now=0.0, has_left=False)
    probed = steps(some, 20.0)
    assert probed.count(C) == 0
    assert abs(probed.count(A) - probed.count(B)) <= 1
    assert len(probed) <= 20.0 / SETTINGS.probe + 1


def test_a_node_that_is_heard_all_the_time_is_not_probed() -> None:
    some = knowing(A)
    for tenth in range(100):
        some.observe(A, Evidence.WORD, tenth / 10)
        some.tick(tenth / 10)
        assert some.start_due_probes(tenth / 10) == []


def test_a_silent_peer_is_suspect_after_one_missed_probe_and_lost_after_the_time_for_doubt() -> (
    None
):
    some = knowing(A, B)
    seen_at: dict[Status, float] = {}
    some.observe(B, Evidence.ANSWERED, 0.0)
    for tenth in range(1, 100):
        now = tenth / 10
        some.tick(now)
        for node in some.start_due_probes(now):
            evidence = Evidence.ANSWERED if node == B else Evidence.UNREACHED
            some.observe(node, evidence, now)
            some.end_probe(node, now)
        seen_at.setdefault(some.health[A].contact, now)
    assert seen_at[Status.SUSPECT] <= 3.0
    assert 0.0 <= seen_at[Status.LOST] - seen_at[Status.SUSPECT] - SETTINGS.suspicion <= 0.2
    assert some.health[B].contact is Status.ALIVE


@pytest.mark.parametrize("life", sorted(LIFE))
def test_any_sign_of_life_ends_the_doubt(life: Evidence) -> None:
    some = knowing(A)
    some.observe(A, Evidence.PARTED, 1.0)
    assert some.start_due_probes(1.0) == [A]
    if life is Evidence.ASKED:
        some.observe(A, Evidence.LINKED, 1.1)
    some.observe(A, life, 1.2)
    assert some.health[A].contact is Status.ALIVE
    # A round without an answer says nothing about a node that has spoken since, only about our own way to it.
    some.observe(A, Evidence.UNREACHED, 1.3)
    answered = life is Evidence.ANSWERED
    assert some.health[A].contact is (Status.ALIVE if answered else Status.UNREACHABLE)
    assert some.take_due_doubts(10.0) == []


@pytest.mark.parametrize("late", [Evidence.ANSWERED, Evidence.PROVEN])
def test_an_answer_to_a_question_from_before_the_connection_ended_settles_no_doubt(
    late: Evidence,
) -> None:
    some = knowing(A, B)
    some.observe(A, Evidence.PARTED, 1.0)
    assert not some.observe(A, late, 1.1, asked_at=0.9)
    assert some.health[A].contact is Status.SUSPECT
    steps(some, 20.0, dead=frozenset({A}))
    assert some.health[A].contact is Status.LOST
    # Nor does it bring back a node that is lost.
    assert not some.observe(A, late, 20.1, asked_at=0.9)
    assert some.observe(A, late, 20.3, asked_at=20.2)


def test_a_late_answer_counts_while_the_connection_stands_since_that_is_probed_in_turn() -> None:
    some = knowing(A)
    some.request_probe(A, 1.0)
    some.start_due_probes(1.0)
    some.observe(A, Evidence.MISSED, 2.0)
    assert some.observe(A, Evidence.ANSWERED, 2.1, asked_at=1.5)
    assert story(some, 5.0, since=2.1) != []


def test_a_question_that_is_read_after_its_connection_ended_settles_no_doubt() -> None:
    some = knowing(A)
    some.observe(A, Evidence.PARTED, 1.0)
    assert not some.observe(A, Evidence.ASKED, 1.1)
    some.observe(A, Evidence.LINKED, 1.2)
    assert some.observe(A, Evidence.ASKED, 1.3)


# Our own way.


def test_a_node_that_lives_out_of_our_reach_is_tried_ever_more_rarely_and_never_doubted() -> None:
    some = knowing(A, B)
    probed = story(some, 200.0, proven=frozenset({A}))
    probed_at = [when for when, node in probed if node == A]
    pauses = [b - a for a, b in pairwise(probed_at)]
    assert some.health[A].contact is Status.UNREACHABLE
    assert some.health[A].since <= 4.0
    assert pauses[0] <= 1.3
    # A way that was shut for half a minute is tried again within four seconds.
    assert max(b - a for a, b in pairwise(probed_at) if b < 30.0) <= 4.5
    assert max(pauses) <= RARELY * 1.1 + 0.2
    assert len(probed_at) < 40


def test_a_node_out_of_reach_is_alive_at_its_first_answer() -> None:
    some = knowing(A, B)
    story(some, 30.0, proven=frozenset({A}))
    assert some.observe(A, Evidence.ANSWERED, 30.0)
    assert some.health[A].contact is Status.ALIVE
    assert some.start_due_probes(30.1) == []


def test_a_node_that_dies_out_of_our_reach_is_lost() -> None:
    some = knowing(A, B)
    story(some, 20.0, proven=frozenset({A}))
    story(some, 50.0, since=20.0, dead=frozenset({A}))
    assert some.health[A].contact is Status.LOST


def test_a_new_connection_to_a_node_out_of_reach_is_tried_at_once() -> None:
    some = knowing(A, B)
    story(some, 60.0, proven=frozenset({A}))
    some.observe(A, Evidence.LINKED, 60.1)
    assert some.health[A].contact is Status.UNREACHABLE
    assert A in some.start_due_probes(60.1)


def test_a_request_that_waits_makes_us_probe_at_once_but_not_over_and_over() -> None:
    some = knowing(A)
    some.observe(A, Evidence.ANSWERED, 10.0)
    assert some.request_probe(A, 10.1)
    assert not some.request_probe(A, 10.2)
    assert some.start_due_probes(10.2) == [A]
    some.observe(A, Evidence.ANSWERED, 10.3)
    assert some.request_probe(A, 10.2 + REQUESTED_PROBE_PAUSE)


def test_a_node_that_left_our_probe_unanswered_is_silent_until_it_answers_whatever_others_prove() -> (
    None
):
    some = knowing(A)
    some.request_probe(A, 1.0)
    some.start_due_probes(1.0)
    some.observe(A, Evidence.MISSED, 1.8)
    some.observe(A, Evidence.PROVEN, 1.9)
    assert some.is_silent(A)
    some.observe(A, Evidence.ANSWERED, 2.0)
    assert not some.is_silent(A)
    assert not some.is_silent(B)


def test_a_closed_connection_or_a_failed_request_is_no_silence() -> None:
    some = knowing(A, B)
    some.observe(A, Evidence.PARTED, 1.0)
    some.observe(B, Evidence.FAILED, 1.0)
    assert not some.is_silent(A)
    assert not some.is_silent(B)


@pytest.mark.parametrize("node", [A, B, C])
def test_strangers_lost_nodes_and_nodes_that_left_are_not_looked_for(node: PeerId) -> None:
    some = knowing(A, B, linked=False)
    some.tick(SETTINGS.lease + 1.0)
    some.note_record(B, heard_at=SETTINGS.lease, now=SETTINGS.lease + 1.0, has_left=True)
    assert not some.request_probe(node, SETTINGS.lease + 2.0)


def test_a_node_that_is_looked_for_is_dialled_and_one_merely_accused_is_left_to_intermediaries() -> (
    None
):
    some = knowing(A, B, linked=False)
    some.request_probe(A, 1.0)
    some.note_doubt(B, 1.0)
    assert some.start_due_probes(1.5) == [A, B]
    some.tick(1.5)
    assert next(some.probe_round(A, {C: 0.1})) == ProbeStep(OwnProbe.DIAL, (C,))
    assert next(some.probe_round(B, {C: 0.1})) == ProbeStep(OwnProbe.NOTHING, (C,))


def test_the_intermediary_whose_proof_came_before_is_asked_first() -> None:
    some = knowing(A)
    some.note_proof(A, C)
    some.observe(A, Evidence.MISSED, 0.0)
    some.request_probe(A, 1.0)
    some.start_due_probes(1.0)
    crowd = {PeerId(f"peer-{number}"): 0.1 for number in range(50)}
    assert next(some.probe_round(A, {**crowd, C: 0.1})).intermediaries[0] == C


# Doubts.


def test_another_nodes_doubt_makes_us_probe_and_changes_nothing_else() -> None:
    some = knowing(A, linked=False)
    some.note_doubt(A, 1.0)
    some.tick(1.0)
    assert some.start_due_probes(1.0) == []
    assert some.health[A].contact is Status.ALIVE
    assert some.start_due_probes(1.0 + SETTINGS.probe_timeout) == [A]


def test_a_sign_of_life_in_time_makes_the_probe_needless() -> None:
    some = knowing(A, linked=False)
    some.note_doubt(A, 1.0)
    some.observe(A, Evidence.WORD, 1.1)
    assert some.start_due_probes(5.0) == []


def test_doubts_without_end_cost_one_probe_in_the_time_of_suspicion() -> None:
    some = knowing(A, linked=False)
    probed = 0
    for tenth in range(1, 301):
        some.note_doubt(A, tenth / 10)
        some.tick(tenth / 10)
        for node in some.start_due_probes(tenth / 10):
            probed += 1
            some.observe(node, Evidence.ANSWERED, tenth / 10)
            some.end_probe(node, tenth / 10)
    assert probed <= 30 / SETTINGS.suspicion + 1


def test_a_node_that_misses_many_at_once_accuses_none_and_waits_longer() -> None:
    few, many = knowing(A), knowing(A, B, C, D)
    for some in (few, many):
        steps(some, SETTINGS.suspicion + 4.0, dead=frozenset({A, B, C, D}))
    assert few.health[A].contact is Status.LOST
    suspects = [node for node in (A, B, C, D) if many.health[node].contact is Status.SUSPECT]
    assert suspects
    assert many.take_due_doubts(100.0) == []


@pytest.mark.parametrize("speaks", [False, True])
def test_a_doubt_while_we_mistrust_ourselves_is_announced_later_unless_the_node_speaks(
    *, speaks: bool
) -> None:
    some = knowing(A)
    some.note_stall(1.0, 0.9)
    some.observe(A, Evidence.PARTED, 1.0)
    steps(some, 9.0, dead=frozenset({A}))
    assert some.health[A].contact is Status.LOST
    assert some.take_due_doubts(9.0) == []
    if speaks:
        some.observe(A, Evidence.WORD, 9.1)
    some.tick(12.0)
    assert some.take_due_doubts(12.0) == ([] if speaks else [A])


def test_a_second_doubt_soon_after_a_refuted_one_makes_us_probe_once_the_time_of_suspicion_is_over() -> (
    None
):
    some = knowing(A, linked=False)
    some.note_doubt(A, 1.0)
    some.observe(A, Evidence.WORD, 1.1)
    some.note_doubt(A, 2.0)
    assert steps(some, 1.0 + SETTINGS.suspicion) == []
    assert steps(some, 2.0 + SETTINGS.suspicion) == [A]


def test_the_result_of_a_round_counts_though_we_stood_still_in_the_midst_of_it() -> None:
    some = knowing(A, linked=False)
    some.note_doubt(A, 1.0)
    assert some.start_due_probes(2.0) == [A]
    some.note_stall(60.0, 62.0)
    some.tick(62.0)
    assert some.observe(A, Evidence.UNREACHED, 62.1)


def test_a_node_that_stood_still_takes_no_other_for_silent() -> None:
    some = knowing(A, linked=False, lease=120.0)
    some.note_stall(1_000.0, 1_000.0)
    assert some.tick(1_000.0) == frozenset()
    assert some.tick(1_120.0) == {A}


def test_a_node_that_said_goodbye_is_not_looked_for() -> None:
    some = knowing(A)
    some.note_record(A, heard_at=1.0, now=1.0, has_left=True)
    some.observe(A, Evidence.PARTED, 1.1)
    some.note_doubt(A, 1.2)
    assert steps(some, 10.0) == []


def test_hearsay_counts_only_for_a_followed_node_that_we_never_heard() -> None:
    some = knowing(A, linked=False)
    some.tick(SETTINGS.lease + 1.0)
    some.restore(B, 0.0)
    now = SETTINGS.lease + 2.0
    assert not some.note_hearsay(A, now, now)
    assert not some.note_hearsay(B, now - SETTINGS.lease - 1.0, now)
    assert some.note_hearsay(B, now - 1.0, now)
    assert some.health[B].contact is Status.ALIVE
    assert not some.note_hearsay(C, now, now)


def test_among_many_the_lease_grows_as_heartbeats_become_rarer() -> None:
    some = members()
    for number in range(49):
        some.note_record(PeerId(f"peer-{number}"), heard_at=0.0, now=0.0, has_left=False)
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
        for probed in some.start_due_probes(now)[:1]:
            some.end_probe(probed, now)
        some.take_due_doubts(now)
        due = some.next_due()
        if due == inf:
            continue
        now = max(now, due)
        changed = some.tick(now)
        assert (
            changed
            or some.start_due_probes(now)
            or some.take_due_doubts(now)
            or some.next_due() > now
        )
        assert len(some._running) <= 3


def test_the_lease_grows_with_the_mesh_until_it_is_a_week() -> None:
    some = Membership(RegistrySettings(lease=14_400, heartbeat=3_600), lambda: 0.5)
    for number in range(299):
        some.note_record(PeerId(str(number)), heard_at=0.0, now=0.0, has_left=False)
        if number == 98:
            some.tick(1.0)
            assert some.lease == 14_400 * 100 / FEW
    some.tick(1.0)
    assert some.lease == LONGEST_LEASE < MAX_AGE
