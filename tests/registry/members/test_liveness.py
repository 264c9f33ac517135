"""Liveness: the table is total, a sign of life clears doubt, only an answer opens our way, and time alone ends a lease."""

from dataclasses import replace
from itertools import product
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from registry.members.liveness import (
    CONFIRMED,
    FRESH,
    LIFE,
    OPENS,
    REASONS,
    SHUTS,
    TABLE,
    UNPROBED,
    Evidence,
    MemberHealth,
    Presence,
    Status,
    initial_health,
    presence,
)
from registry.records import Standing

LEASE, SUSPICION = 15.0, 6.0
EVERY_CASE = list(product(Status, Evidence))


def alive(heard_at: float = 0.0) -> MemberHealth:
    return initial_health(heard_at=heard_at, now=heard_at, lease=LEASE)


def at(health: MemberHealth, now: float) -> MemberHealth:
    return health.at_time(now, lease=LEASE, suspicion=SUSPICION)


def unreached(health: MemberHealth, *times: float) -> MemberHealth:
    for now in times:
        health = health.with_evidence(Evidence.UNREACHED, now)
    return health


def due(health: MemberHealth) -> float:
    return health.next_change_at(lease=LEASE, suspicion=SUSPICION)


@pytest.mark.parametrize(("contact", "evidence"), EVERY_CASE)
def test_every_evidence_in_every_state_leads_to_a_state(
    contact: Status, evidence: Evidence
) -> None:
    shut = Evidence.FAILED if contact is Status.UNREACHABLE else None
    health = MemberHealth(contact, heard=1.0, since=1.0, why=Evidence.WORD, shut=shut)
    after = health.with_evidence(evidence, 2.0)
    expected = TABLE[contact].get(evidence, contact)
    assert after.contact is expected
    assert after.heard == (2.0 if evidence in LIFE else 1.0)
    assert (after.since, after.why) == (
        (1.0, Evidence.WORD) if expected is contact else (2.0, evidence)
    )


@pytest.mark.parametrize("contact", Status)
def test_the_table_has_a_row_for_every_state(contact: Status) -> None:
    assert contact in TABLE


@pytest.mark.parametrize("evidence", sorted(LIFE))
@pytest.mark.parametrize("contact", [Status.ALIVE, Status.SUSPECT, Status.LOST])
def test_any_sign_of_life_makes_a_node_alive_if_our_way_to_it_is_open(
    contact: Status, evidence: Evidence
) -> None:
    before = MemberHealth(contact, heard=0.0, since=0.0, why=Evidence.SILENCE)
    assert before.with_evidence(evidence, 1.0).contact is Status.ALIVE


@pytest.mark.parametrize("shut", sorted(SHUTS))
def test_a_living_node_that_does_not_answer_us_is_unreachable_because_of_what_failed(
    shut: Evidence,
) -> None:
    doubted = alive().with_evidence(shut, 1.0)
    for sign in LIFE - OPENS:
        health = doubted.with_evidence(sign, 2.0)
        assert (health.contact, health.why, health.since) == (Status.UNREACHABLE, shut, 2.0)
        assert health.with_evidence(Evidence.ANSWERED, 3.0).contact is Status.ALIVE


def test_our_own_failures_do_not_make_an_unreachable_node_suspect_but_a_round_without_proof_does() -> (
    None
):
    health = alive().with_evidence(Evidence.MISSED, 1.0).with_evidence(Evidence.PROVEN, 2.0)
    for evidence in (Evidence.MISSED, Evidence.FAILED, Evidence.PARTED, Evidence.LINKED):
        assert health.with_evidence(evidence, 3.0).contact is Status.UNREACHABLE
    assert health.with_evidence(Evidence.UNREACHED, 3.0).contact is Status.SUSPECT


def test_a_node_that_spoke_while_our_way_failed_is_unreachable_not_suspect() -> None:
    health = alive().with_path_failure(Evidence.MISSED, 1.0)
    assert (health.contact, health.why) == (Status.UNREACHABLE, Evidence.MISSED)
    assert health.heard == 0.0


def test_a_connection_alone_does_not_end_a_doubt() -> None:
    doubted = alive().with_evidence(Evidence.MISSED, 1.0)
    assert doubted.with_evidence(Evidence.LINKED, 2.0) == doubted


def test_losing_a_node_forgets_that_it_was_not_reached() -> None:
    lost = at(alive().with_evidence(Evidence.MISSED, 1.0), 1e9)
    assert lost.contact is Status.LOST
    assert lost.with_evidence(Evidence.WORD, 2e9).contact is Status.ALIVE


@pytest.mark.parametrize(
    "evidence", [Evidence.PARTED, Evidence.FAILED, Evidence.MISSED, Evidence.UNREACHED]
)
def test_one_failure_makes_a_node_suspect_and_not_lost(evidence: Evidence) -> None:
    assert alive().with_evidence(evidence, 1.0).contact is Status.SUSPECT


def test_a_node_whose_doubt_is_not_cleared_in_time_is_lost_because_of_the_doubt() -> None:
    doubted = unreached(alive().with_evidence(Evidence.FAILED, 1.0), 1.5, 2.5)
    assert at(doubted, 1.5 + SUSPICION - 0.01) is doubted
    lost = at(doubted, 1.5 + SUSPICION)
    assert (lost.contact, lost.why) == (Status.LOST, Evidence.DOUBT)


def test_one_round_of_probes_confirms_nothing_however_long_ago() -> None:
    once = unreached(alive(), 1.0)
    assert due(once) == min(LEASE, 1.0 + UNPROBED * SUSPICION)
    assert CONFIRMED == 2


def test_another_nodes_doubt_counts_as_one_round_of_probes_but_not_as_both() -> None:
    accused = replace(alive().with_evidence(Evidence.PARTED, 1.0), accused=1.2)
    assert due(accused) > 1.2 + SUSPICION
    assert due(unreached(accused, 2.0)) == 1.2 + SUSPICION
    # The other node's doubt is forgotten at the next sign of life, and after some time.
    health = unreached(
        accused.with_evidence(Evidence.WORD, 1.5).with_evidence(Evidence.PARTED, 1.6), 2.0
    )
    assert due(health) > 1.2 + SUSPICION
    later = unreached(replace(alive(100.0), accused=1.2), 101.0)
    assert due(later) == 100.0 + LEASE


def test_a_doubt_that_no_probe_confirmed_lasts_longer_but_not_for_ever() -> None:
    doubted = MemberHealth(Status.ALIVE, heard=0.9, since=0.0, why=Evidence.WORD)
    doubted = doubted.with_evidence(Evidence.FAILED, 1.0)
    assert doubted.next_change_at(lease=100.0, suspicion=6.0) == 1.0 + UNPROBED * 6.0


def test_a_new_doubt_is_not_confirmed_by_the_probes_of_an_old_one() -> None:
    old = unreached(alive(), 1.0)
    assert old.rounds == 1
    assert old.with_evidence(Evidence.ANSWERED, 2.0).with_evidence(Evidence.PARTED, 3.0).rounds == 0


def test_time_in_which_we_stood_still_does_not_count_as_silence() -> None:
    health = alive(heard_at=0.0)
    woken = LEASE + 100.0
    assert health.at_time(woken, lease=LEASE, suspicion=SUSPICION, awake=woken) is health
    assert health.next_change_at(lease=LEASE, suspicion=SUSPICION, awake=woken) == woken + LEASE


def test_every_evidence_has_its_reason_in_words() -> None:
    assert set(REASONS) == set(Evidence)


def test_a_second_failure_does_not_prolong_the_doubt() -> None:
    doubted = alive().with_evidence(Evidence.FAILED, 1.0)
    assert due(doubted.with_evidence(Evidence.FAILED, 5.0)) == due(doubted)


def test_a_lease_ends_on_the_receivers_clock_and_not_before() -> None:
    assert at(alive(heard_at=100.0), 100.0 + LEASE - 0.01).contact is Status.ALIVE
    lost = at(alive(heard_at=100.0), 100.0 + LEASE)
    assert (lost.contact, lost.why) == (Status.LOST, Evidence.SILENCE)


def test_a_lost_node_stays_lost_however_much_time_passes() -> None:
    lost = at(alive(), LEASE)
    assert due(lost) == inf
    assert at(lost, 1e9) is lost


@given(st.floats(0, 1e6), st.lists(st.tuples(st.sampled_from(Evidence), st.floats(0, 20))))
def test_a_pulse_changes_when_it_is_due_and_not_before(
    start: float, story: list[tuple[Evidence, float]]
) -> None:
    health, now = alive(heard_at=start), start
    for evidence, pause in story:
        if due(health) < inf:
            assert at(health, due(health)).contact is not health.contact
        now += pause
        if now < due(health):
            assert at(health, now) is health
        health = at(health, now).with_evidence(evidence, now)
        assert health.heard <= now
        assert health.since <= now


@pytest.mark.parametrize(("age", "contact"), [(0.0, Status.ALIVE), (LEASE, Status.LOST)])
def test_a_node_known_by_hearsay_is_alive_as_long_as_what_was_heard_is_fresh(
    age: float, contact: Status
) -> None:
    health = initial_health(heard_at=1_000.0 - age, now=1_000.0, lease=LEASE)
    assert health.contact is contact
    assert due(health) == (inf if contact is Status.LOST else 1_000.0 - age + LEASE)


@pytest.mark.parametrize(
    ("standing", "contact", "seen"),
    [
        (Standing.SERVING, Status.ALIVE, Presence.ALIVE),
        (Standing.SERVING, Status.UNREACHABLE, Presence.UNREACHABLE),
        (Standing.SERVING, Status.SUSPECT, Presence.SUSPECT),
        (Standing.SERVING, Status.LOST, Presence.LOST),
        (Standing.DRAINING, Status.ALIVE, Presence.DRAINING),
        (Standing.DRAINING, Status.UNREACHABLE, Presence.DRAINING),
        (Standing.DRAINING, Status.SUSPECT, Presence.DRAINING),
        (Standing.DRAINING, Status.LOST, Presence.LOST),
        (Standing.LEFT, Status.ALIVE, Presence.LEFT),
        (Standing.LEFT, Status.UNREACHABLE, Presence.LEFT),
        (Standing.LEFT, Status.SUSPECT, Presence.LEFT),
        (Standing.LEFT, Status.LOST, Presence.LEFT),
    ],
)
def test_the_presence_of_a_node_follows_from_its_own_standing_and_our_contact(
    standing: Standing, contact: Status, seen: Presence
) -> None:
    assert presence(standing, contact) is seen


def test_a_node_is_well_only_if_it_was_heard_just_now_is_reached_and_was_not_doubted_since() -> (
    None
):
    soon = FRESH / 2
    assert alive().is_healthy(soon)
    assert not alive().is_healthy(FRESH)
    assert not alive().with_evidence(Evidence.FAILED, 0.0).is_healthy(soon)
    assert not replace(alive(), shut=Evidence.MISSED).is_healthy(soon)
    # Another node has doubted it since.
    assert not replace(alive(), accused=soon / 2).is_healthy(soon)
